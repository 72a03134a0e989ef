//! Which slots of the index file are free.

use std::ops::Range;

/// Slots that one piece of the stack takes. In pieces, so that giving a slot back never copies all the others.
const PIECE: usize = 8192;

#[derive(Debug, Default)]
pub(crate) struct FreeSlots {
    given_back: Vec<Vec<u32>>,
    fresh: Range<u32>,
}

impl FreeSlots {
    /// A slot: the one given back last, else the lowest fresh one.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let Some(piece) = self.given_back.last_mut() else {
            return self.fresh.next();
        };
        let slot = piece.pop();
        if piece.is_empty() {
            self.given_back.pop();
        }
        slot
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        match self.given_back.last_mut() {
            Some(piece) if piece.len() < PIECE => piece.push(slot),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(slot);
                self.given_back.push(piece);
            }
        }
    }

    /// Adds the slots by which the file has grown; they follow the last ones.
    pub(crate) fn add_fresh(&mut self, slots: Range<u32>) {
        if self.fresh.is_empty() {
            self.fresh = slots;
        } else {
            debug_assert_eq!(self.fresh.end, slots.start);
            self.fresh.end = slots.end;
        }
    }

    pub(crate) fn count(&self) -> u32 {
        let full = self.given_back.len().saturating_sub(1) * PIECE;
        let last = self.given_back.last().map_or(0, Vec::len);
        (full + last + self.fresh.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_taken_once_and_the_fresh_ones_last() {
        let mut slots = FreeSlots::default();
        assert!(slots.count() == 0 && slots.take().is_none());
        let count = 2 * PIECE as u32 + 1;
        slots.add_fresh(count..count + 2);
        slots.add_fresh(count + 2..count + 3);
        (0..count).rev().for_each(|slot| slots.give_back(slot));
        assert_eq!(slots.count(), count + 3);
        assert!(slots.given_back.iter().map(Vec::len).eq([PIECE, PIECE, 1]));
        let taken: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken, (0..count + 3).collect::<Vec<_>>());
        assert_eq!(slots.count(), 0);
    }
}
