//! Sets of blocks, as runs: by their place to join neighbours, and by their length to find the tightest fit.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::block::Extent;

/// Blocks, as runs that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// File and first block of each run, and how many it has.
    by_place: BTreeMap<(u32, u32), u32>,
    by_length: BTreeSet<(u32, u32, u32)>,
    blocks: u64,
}

impl Runs {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_place.iter().map(run_of)
    }

    /// The shortest run of at least so many blocks.
    pub(super) fn tightest(&self, blocks: u32) -> Option<Extent> {
        let (blocks, file, first_block) = *self.by_length.range((blocks, 0, 0)..).next()?;
        Some(Extent { file, first_block, blocks })
    }

    /// The run that ends where `block` begins.
    pub(super) fn before(&self, file: u32, block: u32) -> Option<Extent> {
        let run = self.by_place.range((file, 0)..(file, block)).next_back().map(run_of)?;
        (run.end_block() == u64::from(block)).then_some(run)
    }

    /// The run that begins at `block`.
    pub(super) fn from(&self, file: u32, block: u32) -> Option<Extent> {
        self.by_place.get_key_value(&(file, block)).map(run_of)
    }

    /// Adds blocks that it does not have.
    pub(super) fn insert(&mut self, mut extent: Extent) {
        debug_assert!(self.overlapping(extent).next().is_none());
        if let Some(before) = self.before(extent.file, extent.first_block) {
            self.remove_run(before);
            extent.first_block = before.first_block;
            extent.blocks += before.blocks;
        }
        if let Some(next) = self.from(extent.file, extent.first_block + extent.blocks) {
            self.remove_run(next);
            extent.blocks += next.blocks;
        }
        self.insert_run(extent);
    }

    /// Removes those of its blocks that are in `extent`, and returns them in order.
    pub(super) fn remove(&mut self, extent: Extent) -> Vec<Extent> {
        let found: Vec<(Extent, Extent)> = self.overlapping(extent).collect();
        let cut = |(run, part)| {
            self.cut(run, part);
            part
        };
        found.into_iter().map(cut).collect()
    }

    /// Removes a part of a run.
    pub(super) fn cut(&mut self, run: Extent, part: Extent) {
        self.remove_run(run);
        let before = part.first_block - run.first_block;
        let behind = run.blocks - before - part.blocks;
        if before > 0 {
            self.insert_run(Extent { blocks: before, ..run });
        }
        if behind > 0 {
            let first_block = part.first_block + part.blocks;
            self.insert_run(Extent { first_block, blocks: behind, ..run });
        }
    }

    /// The runs that overlap `extent`, in order, and the part of each within.
    fn overlapping(&self, extent: Extent) -> impl Iterator<Item = (Extent, Extent)> {
        let Extent { file, first_block, .. } = extent;
        let end = extent.end_block().min(u64::from(u32::MAX)) as u32;
        // A run that begins before it may reach into it.
        let before = self.by_place.range(..(file, first_block)).next_back();
        let from = before.filter(|(key, _)| key.0 == file).map_or(first_block, |(key, _)| key.1);
        self.by_place.range((file, from)..(file, end)).map(run_of).filter_map(move |run| {
            let (start, stop) =
                (run.first_block.max(first_block), (run.first_block + run.blocks).min(end));
            let part = || Extent { file, first_block: start, blocks: stop - start };
            (start < stop).then(|| (run, part()))
        })
    }

    fn insert_run(&mut self, run: Extent) {
        self.by_place.insert((run.file, run.first_block), run.blocks);
        self.by_length.insert((run.blocks, run.file, run.first_block));
        self.blocks += u64::from(run.blocks);
    }

    fn remove_run(&mut self, run: Extent) {
        self.by_place.remove(&(run.file, run.first_block));
        self.by_length.remove(&(run.blocks, run.file, run.first_block));
        self.blocks -= u64::from(run.blocks);
    }
}

fn run_of((&(file, first_block), &blocks): (&(u32, u32), &u32)) -> Extent {
    Extent { file, first_block, blocks }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_a_set(steps in prop::collection::vec((0_u32..2, 0_u32..40, 1_u32..20, any::<bool>()), 1..60), length in 1_u32..20) {
            let mut set = Runs::default();
            let mut model = BTreeSet::new();
            for (file, first_block, blocks, comes) in steps {
                let extent = Extent { file, first_block, blocks };
                let all = (first_block..first_block + blocks).map(|block| (file, block));
                let removed = set.remove(extent);
                let listed = |runs: Vec<Extent>| -> Vec<(u32, u32)> {
                    let blocks = |run: Extent| (run.first_block..run.end_block() as u32).map(move |block| (run.file, block));
                    runs.into_iter().flat_map(blocks).collect()
                };
                let expected: Vec<_> = all.clone().filter(|block| model.contains(block)).collect();
                prop_assert_eq!(listed(removed), expected);
                match comes {
                    true => { set.insert(extent); model.extend(all); }
                    false => all.for_each(|block| { model.remove(&block); }),
                }
                prop_assert_eq!(set.blocks(), model.len() as u64);
                prop_assert_eq!(listed(set.iter().collect()), model.iter().copied().collect::<Vec<_>>());
                let touching = |run: Extent| set.from(run.file, run.end_block() as u32);
                prop_assert!(set.iter().all(|run| touching(run).is_none()), "neighbours were not joined");
                let shortest = set.iter().filter(|run| run.blocks >= length).map(|run| run.blocks).min();
                prop_assert_eq!(set.tightest(length).map(|run| run.blocks), shortest);
            }
        }
    }
}
