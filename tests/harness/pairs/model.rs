//! What a store must answer: of each key which chunks may be there, and which keys the store has told to be stored.

use std::collections::{HashMap, HashSet};

use kvring::{Connector, KeyChange, KeyEvent};

use crate::ledger::Ledger;
use crate::plan::{key_of, name};

/// Keys that were told at once.
const PAGE: usize = 1000;

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) ledger: Ledger,
    /// Keys that the store has told to be stored.
    books: HashSet<String>,
    pub(crate) pinned: HashSet<u64>,
    /// Until when, by the clock.
    pub(crate) leased: HashMap<u64, u64>,
    pub(crate) versions: u64,
}

impl Model {
    pub(crate) fn is_stored(&self, key: u64) -> bool {
        self.books.contains(&name(key))
    }

    /// In order.
    pub(crate) fn stored(&self) -> Vec<u64> {
        let mut stored: Vec<u64> = self.books.iter().map(|name| key_of(name)).collect();
        stored.sort_unstable();
        stored
    }

    /// Nobody guards a key any more, and nothing is there.
    pub(crate) fn remove(&mut self, key: u64) {
        self.ledger.settle(key.to_owned(), [None]);
        self.pinned.remove(&key);
        self.leased.remove(&key);
    }

    pub(crate) fn note_use(&mut self, key: u64, now_ms: u64, is_set: bool) {
        let last_ms = self.ledger.uses(key).earliest_ms.max(now_ms);
        self.ledger.end_use(key, last_ms, is_set);
    }

    /// Starts books of a store that was opened.
    pub(crate) fn open_books(&mut self, connector: &Connector) {
        connector.watch_keys().expect("an open store");
        self.books.clear();
        loop {
            let stored = connector.take_stored_keys(PAGE).expect("an open store");
            if stored.is_empty() {
                break;
            }
            self.books.extend(stored.into_iter().map(|event| event.key));
        }
    }

    /// Takes what the store tells.
    pub(crate) fn follow(&mut self, connector: &Connector) -> Result<(), String> {
        for KeyEvent { key, change, .. } in
            connector.take_key_events(usize::MAX).expect("an open store")
        {
            let is_told = match change {
                KeyChange::Stored => self.books.insert(key.clone()),
                KeyChange::Gone => self.books.remove(&key),
                KeyChange::StoredAgain => self.books.contains(&key),
            };
            if !is_told {
                return Err(format!("'{key}' is told to be {change:?} out of turn"));
            }
        }
        Ok(())
    }

    /// Keys that must be stored and are not by the books: they are misses from here on.
    pub(crate) fn take_vanished(&mut self) -> Vec<u64> {
        let mut gone = self.ledger.keys();
        gone.retain(|key| !self.ledger.possible(*key).contains(&None) && !self.is_stored(*key));
        gone.iter().for_each(|key| self.ledger.settle(*key, [None]));
        gone
    }

    /// A session has ended: guards end with it. After a kill, a use may not have been written.
    pub(crate) fn end_session(&mut self, was_killed: bool) {
        self.pinned.clear();
        self.leased.clear();
        self.ledger.end_session(was_killed);
    }
}
