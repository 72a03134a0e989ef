//! Which stores this process has open, by id. A store that was closed while its device failed does not say so itself: its
//! session block still names this process.
//!
//! Atomics, and no lock: a fork could wait for ever for one that another thread held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// More than any process has; those past it count as open nowhere.
const MOST_STORES: usize = 1024;

const NONE: u64 = 0;
const OPEN: u64 = 1;
const CLOSING: u64 = 2;
const STATE_BITS: u64 = 3;

/// In each cell the first half of an id, with a state in its lowest bits.
static STORES: [AtomicU64; MOST_STORES] = [const { AtomicU64::new(NONE) }; MOST_STORES];

/// How this process has a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Open,
    /// It was closed, and something that was asked of its device has not come back.
    Closing,
}

/// A store that this process has open, until it is closed or dropped.
#[derive(Debug)]
pub(crate) struct OpenStore {
    cell: Option<&'static AtomicU64>,
    id: u64,
    /// The cell may be another's.
    is_closed: AtomicBool,
}

impl OpenStore {
    pub(crate) fn new(id: [u8; 16]) -> Self {
        let id = key_of(id);
        let take = |cell: &&AtomicU64| {
            cell.compare_exchange(NONE, id | OPEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        Self { cell: STORES.iter().find(take), id, is_closed: AtomicBool::new(false) }
    }

    /// Its files are about to be given up.
    pub(crate) fn note_closing(&self) {
        if let Some(cell) = self.cell
            && !self.is_closed.load(Ordering::SeqCst)
        {
            cell.store(self.id | CLOSING, Ordering::SeqCst);
        }
    }

    /// Its files are given up.
    pub(crate) fn note_closed(&self) {
        if let Some(cell) = self.cell
            && !self.is_closed.swap(true, Ordering::SeqCst)
        {
            cell.store(NONE, Ordering::SeqCst);
        }
    }
}

impl Drop for OpenStore {
    fn drop(&mut self) {
        self.note_closed();
    }
}

/// How this process has the store with this id, if it has it.
pub(crate) fn hold_on(id: [u8; 16]) -> Option<Hold> {
    let found = STORES.iter().map(|cell| cell.load(Ordering::SeqCst));
    let states = found.filter(|found| found & !STATE_BITS == key_of(id) && *found != NONE);
    states.map(|found| found & STATE_BITS).min().map(|state| match state {
        OPEN => Hold::Open,
        _ => Hold::Closing,
    })
}

/// Ids are random: half of one tells them apart.
fn key_of(id: [u8; 16]) -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&id[..8]);
    u64::from_le_bytes(half) & !STATE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_open_until_it_is_closed() {
        let (id, other) = ([7; 16], [9; 16]);
        let store = OpenStore::new(id);
        assert_eq!((hold_on(id), hold_on(other)), (Some(Hold::Open), None));
        store.note_closing();
        assert_eq!(hold_on(id), Some(Hold::Closing));
        store.note_closed();
        assert_eq!(hold_on(id), None);
        let again = OpenStore::new(id);
        drop(store);
        assert_eq!(hold_on(id), Some(Hold::Open), "it is the other's by now");
        drop(again);
        assert_eq!(hold_on(id), None);
    }
}
