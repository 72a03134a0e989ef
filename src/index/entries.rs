//! The entries of a shard, by number.

use std::ops::{Index, IndexMut};

use super::lookup::prefetch_line;
use super::shard::Entry;

/// Entries in a piece. Pieces, since adding one to many must neither copy them nor leave a hole of their size behind.
const PIECE: usize = 64;

/// Entries in pieces that stay where they are. A number is an entry's until that is removed.
#[derive(Default)]
pub(super) struct Entries {
    pieces: Vec<Vec<Entry>>,
    /// Numbers below the end that are nobody's.
    free: Vec<u32>,
}

impl Entries {
    /// Adds an entry. Returns its number.
    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        if let Some(number) = self.free.pop() {
            self[number] = entry;
            return number;
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            // The first one grows with its entries: many shards of a small store have few.
            let first = self.pieces.is_empty();
            self.pieces.push(if first { Vec::new() } else { Vec::with_capacity(PIECE) });
        }
        let piece = self.pieces.len() - 1;
        let number = piece * PIECE + self.pieces[piece].len();
        self.pieces[piece].push(entry);
        number as u32
    }

    /// Where the numbers end.
    pub(super) fn end(&self) -> u32 {
        let full = self.pieces.len().saturating_sub(1) * PIECE;
        (full + self.pieces.last().map_or(0, Vec::len)) as u32
    }

    /// Brings an entry into the processor's cache, without waiting for it.
    pub(super) fn prefetch(&self, number: u32) {
        prefetch_line((&raw const self[number]).cast());
    }

    /// Removes an entry that is there.
    pub(super) fn remove(&mut self, number: u32) -> Entry {
        debug_assert!(!self.free.contains(&number), "entry {number} is removed twice");
        self.free.push(number);
        self[number]
    }
}

impl Index<u32> for Entries {
    type Output = Entry;

    fn index(&self, number: u32) -> &Entry {
        &self.pieces[number as usize / PIECE][number as usize % PIECE]
    }
}

impl IndexMut<u32> for Entries {
    fn index_mut(&mut self, number: u32) -> &mut Entry {
        &mut self.pieces[number as usize / PIECE][number as usize % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Extent;
    use crate::key::Digest;

    fn entry(first_block: u32) -> Entry {
        let extent = Extent { file: 0, first_block, blocks: 1 };
        Entry::new(Digest::of("key"), extent, 1, None)
    }

    #[test]
    fn numbers_are_used_again_and_the_others_stay() {
        let mut entries = Entries::default();
        let count = 2 * PIECE as u32 + 1;
        let numbers: Vec<u32> = (0..count).map(|number| entries.insert(entry(number))).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        for number in (0..count).step_by(3) {
            assert_eq!(entries.remove(number).first_block, number);
        }
        let again: Vec<u32> = (0..count).step_by(3).map(|_| entries.insert(entry(count))).collect();
        assert!(again.iter().all(|number| number % 3 == 0), "{again:?}");
        assert_eq!(entries.insert(entry(0)), count);
        assert!((0..count).all(|number| {
            let expected = if number % 3 == 0 { count } else { number };
            entries[number].first_block == expected
        }));
    }
}
