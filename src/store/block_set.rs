//! Sets of blocks of the data files, as runs.

use std::collections::BTreeMap;

use crate::block::Extent;

/// Blocks, as runs that do not overlap.
#[derive(Debug, Default)]
pub(super) struct BlockSet {
    /// File and first block of each run, and how many it has.
    runs: BTreeMap<(u32, u32), u32>,
    blocks: u64,
}

impl BlockSet {
    /// How many it has.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = Extent> {
        self.runs.iter().map(|(&(file, first_block), &blocks)| Extent { file, first_block, blocks })
    }

    /// Those of its blocks that are in `extent`, in order.
    pub(super) fn within(&self, extent: Extent) -> Vec<Extent> {
        let Extent { file, first_block, .. } = extent;
        let end = extent.end_block().min(u64::from(u32::MAX)) as u32;
        // A run that begins before it may reach into it.
        let before = self.runs.range(..(file, first_block)).next_back();
        let from = before.filter(|(key, _)| key.0 == file).map_or(first_block, |(key, _)| key.1);
        let cut = |(&(_, first), &blocks): (&(u32, u32), &u32)| {
            let (start, stop) = (first.max(first_block), (first + blocks).min(end));
            (start < stop).then(|| Extent { file, first_block: start, blocks: stop - start })
        };
        self.runs.range((file, from)..(file, end)).filter_map(cut).collect()
    }

    pub(super) fn insert(&mut self, extent: Extent) {
        self.remove(extent);
        self.blocks += u64::from(extent.blocks);
        let Extent { file, first_block, blocks } = extent;
        // Extents of a file come in order, and many follow each other.
        match self.runs.range_mut(..(file, first_block)).next_back() {
            Some((&(other, first), before)) if other == file && first + *before == first_block => {
                *before += blocks;
            }
            _ => drop(self.runs.insert((file, first_block), blocks)),
        }
    }

    pub(super) fn remove(&mut self, extent: Extent) {
        let Extent { file, .. } = extent;
        for part in self.within(extent) {
            let (&(_, first), &blocks) = self
                .runs
                .range(..=(file, part.first_block))
                .next_back()
                .expect("the part is one of a run");
            self.runs.remove(&(file, first));
            let (end, part_end) = (first + blocks, part.first_block + part.blocks);
            if first < part.first_block {
                self.runs.insert((file, first), part.first_block - first);
            }
            if part_end < end {
                self.runs.insert((file, part_end), end - part_end);
            }
            self.blocks -= u64::from(part.blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((0_u32..2, 0_u32..40, 1_u32..20, any::<bool>()), 1..60), (from, length) in (0_u32..40, 1_u32..20)) {
            let mut set = BlockSet::default();
            let mut model = BTreeSet::new();
            for (file, first_block, blocks, comes) in steps {
                let extent = Extent { file, first_block, blocks };
                let all = (first_block..first_block + blocks).map(|block| (file, block));
                match comes {
                    true => { set.insert(extent); model.extend(all); }
                    false => { set.remove(extent); all.for_each(|block| { model.remove(&block); }); }
                }
                let listed = |runs: Vec<Extent>| -> Vec<(u32, u32)> {
                    let blocks = |run: Extent| (run.first_block..run.end_block() as u32).map(move |block| (run.file, block));
                    runs.into_iter().flat_map(blocks).collect()
                };
                prop_assert_eq!(set.blocks(), model.len() as u64);
                prop_assert_eq!(listed(set.runs().collect()), model.iter().copied().collect::<Vec<_>>());
                let range = Extent { file: 1, first_block: from, blocks: length };
                let expected: Vec<_> = model.range((1, from)..(1, from + length)).copied().collect();
                prop_assert_eq!(listed(set.within(range)), expected);
            }
        }
    }
}
