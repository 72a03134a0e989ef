//! Unreserved blocks of data files: a copy shares them (a reflink), or the file has a hole there. A write to them takes new
//! blocks of the file system. Where it lacks space for all of them, only as many are given out as there is space for.
//!
//! An unreserved block is *paid* when it may be written: its space is taken off what may be spent. An extent with a block that
//! cannot be paid is not given out, and nothing is evicted for it.

use crate::block::Extent;
use crate::store::allocator::Allocator;
use crate::store::runs::Runs;

/// Free blocks that a file system may refuse to give: it keeps some for its own maps.
const MOST_REFUSED_BLOCKS: u64 = 8192;

/// The unreserved blocks. The sets are empty where the space suffices for all.
#[derive(Debug, Default)]
pub(super) struct Unreserved {
    /// How many the last look found.
    pub(super) found_blocks: u64,
    /// Not paid.
    unpaid: Runs,
    /// Those not paid that are free; the allocator does not have them.
    withheld: Runs,
    /// Paid, and not seen to have blocks of their own since.
    paid: Runs,
    /// How many may still be paid.
    spendable: u64,
    /// Blocks that the file system had free when it refused a write.
    refused_blocks: u64,
}

impl Unreserved {
    /// Takes over what a look at the files has found, and how much the file system has free. `is_refused`: it has refused a write
    /// since the last look.
    pub(super) fn note(
        &mut self,
        allocator: &mut Allocator,
        found: Runs,
        free_blocks: u64,
        is_refused: bool,
    ) {
        let withheld = std::mem::take(&mut self.withheld);
        withheld.iter().for_each(|run| allocator.put_back(run));
        let paid = std::mem::take(&mut self.paid);
        let mut refused_blocks = self.refused_blocks;
        if is_refused {
            refused_blocks = refused_blocks.max(free_blocks.min(MOST_REFUSED_BLOCKS));
        }
        let usable_blocks = free_blocks.saturating_sub(refused_blocks);
        let found_blocks = found.blocks();
        if found_blocks <= usable_blocks {
            *self = Self { found_blocks, ..Self::default() };
            return;
        }
        *self = Self { found_blocks, refused_blocks, ..Self::default() };
        for run in paid.iter() {
            found.within(run).into_iter().for_each(|part| self.paid.insert(part));
        }
        // Free blocks are paid anew.
        for run in found.iter() {
            for part in allocator.take_free_within(run) {
                self.withheld.insert(part);
                self.paid.remove(part);
            }
        }
        self.unpaid = found;
        self.paid.iter().for_each(|part| drop(self.unpaid.remove(part)));
        self.spendable = usable_blocks.saturating_sub(self.paid.blocks());
        let withheld: Vec<Extent> = self.withheld.iter().collect();
        for run in withheld {
            let blocks = run.blocks.min(u32::try_from(self.spendable).unwrap_or(u32::MAX));
            if blocks == 0 {
                break;
            }
            let part = Extent { blocks, ..run };
            self.pay(part);
            self.withheld.remove(part);
            allocator.put_back(part);
        }
    }

    /// Takes an extent back, but for the parts of it that cannot be paid.
    pub(super) fn free(&mut self, allocator: &mut Allocator, extent: Extent) {
        allocator.free(extent);
        for part in self.unpaid.within(extent) {
            match u64::from(part.blocks) <= self.spendable {
                true => self.pay(part),
                false => {
                    let free = allocator.take_free_within(part);
                    free.into_iter().for_each(|part| self.withheld.insert(part));
                }
            }
        }
    }

    /// Whether all of the extent could be given out if it was free.
    pub(super) fn makes_room(&self, extent: Extent) -> bool {
        let unpaid = self.unpaid.within(extent);
        unpaid.iter().map(|part| u64::from(part.blocks)).sum::<u64>() <= self.spendable
    }

    /// Blocks of chunks that are not paid, and how many blocks in all cannot be paid for want of space.
    pub(super) fn lost_blocks(&self) -> (u64, u64) {
        let unpaid = self.unpaid.blocks();
        (unpaid - self.withheld.blocks(), unpaid.saturating_sub(self.spendable))
    }

    /// Whether the space does not suffice for all of them.
    pub(super) fn is_short(&self) -> bool {
        self.unpaid.blocks() > self.spendable
    }

    fn pay(&mut self, part: Extent) {
        self.unpaid.remove(part);
        self.paid.insert(part);
        self.spendable -= u64::from(part.blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first_block: u32, blocks: u32) -> Extent {
        Extent { file: 0, first_block, blocks }
    }

    fn set(runs: &[Extent]) -> Runs {
        let mut set = Runs::default();
        runs.iter().for_each(|run| set.insert(*run));
        set
    }

    /// A file of 100 blocks, of which the first 40 are given out, ten at a time.
    fn allocator() -> (Allocator, Vec<Extent>) {
        let mut allocator = Allocator::default();
        allocator.add_file(0, 100);
        let held = (0..4).map(|_| allocator.allocate(10).unwrap()).collect();
        (allocator, held)
    }

    /// Free blocks, each given out.
    fn drain(allocator: &mut Allocator) -> Vec<Extent> {
        std::iter::from_fn(|| allocator.allocate(1)).collect()
    }

    #[test]
    fn where_there_is_space_nothing_is_withheld() {
        let (mut allocator, held) = allocator();
        let mut unreserved = Unreserved::default();
        unreserved.note(&mut allocator, set(&[extent(0, 100)]), 100, false);
        assert!(!unreserved.is_short() && unreserved.makes_room(held[0]));
        assert_eq!(unreserved.found_blocks, 100);
        assert_eq!(drain(&mut allocator).len(), 60);
    }

    #[test]
    fn no_more_is_given_out_than_there_is_space_for() {
        let (mut allocator, held) = allocator();
        let mut unreserved = Unreserved::default();
        unreserved.note(&mut allocator, set(&[extent(0, 90)]), 25, false);
        assert!(unreserved.is_short());
        // 25 of the 50 unreserved ones, and ten that are reserved.
        let given: Vec<Extent> = drain(&mut allocator);
        assert_eq!(given.len(), 35);
        assert!(!unreserved.makes_room(held[0]) && unreserved.makes_room(given[0]));
        unreserved.free(&mut allocator, held[0]);
        assert_eq!(allocator.allocate(1), None);
        // Some were written and are reserved now: space was used for them.
        unreserved.note(&mut allocator, set(&[extent(0, 40), extent(50, 40)]), 15, false);
        assert_eq!(allocator.allocate(1), None, "the other 15 have to be written yet");
        // Elsewhere some was freed.
        unreserved.note(&mut allocator, set(&[extent(0, 40), extent(50, 40)]), 18, false);
        assert_eq!(drain(&mut allocator).len(), 3);
        // The copy is gone.
        unreserved.note(&mut allocator, Runs::default(), 0, false);
        assert_eq!((unreserved.found_blocks, unreserved.is_short()), (0, false));
        let rest = drain(&mut allocator).len();
        assert_eq!(rest + 35 + 3 + 30, 100, "all but what is held and was given out");
    }

    #[test]
    fn what_the_file_system_refuses_is_not_there() {
        let (mut allocator, _) = allocator();
        let mut unreserved = Unreserved::default();
        unreserved.note(&mut allocator, set(&[extent(0, 100)]), 20, true);
        assert_eq!(drain(&mut allocator).len(), 0);
        unreserved.note(&mut allocator, set(&[extent(0, 100)]), 30, false);
        assert_eq!(drain(&mut allocator).len(), 10);
    }
}
