//! What a store must answer: of each key which chunks may be there, and which keys the store has told to be stored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kvring::{Connector, KeyChange, KeyEvent};

/// A version of a chunk, or none.
pub(crate) type Possible = BTreeSet<Option<u64>>;

/// Keys that were told at once.
const PAGE: usize = 1000;

#[derive(Default)]
pub(crate) struct Model {
    possible: BTreeMap<String, Possible>,
    /// Keys that the store has told to be stored.
    books: HashSet<String>,
    pub(crate) pinned: HashSet<String>,
    /// Until when, by the clock.
    pub(crate) leased: HashMap<String, u64>,
    /// When a key was stored, and when it was used last, by the clock.
    uses: HashMap<String, (u64, u64)>,
    pub(crate) versions: u64,
}

impl Model {
    pub(crate) fn possible(&self, key: &str) -> Possible {
        self.possible.get(key).cloned().unwrap_or_else(|| Possible::from([None]))
    }

    pub(crate) fn settle(&mut self, key: &str, possible: Possible) {
        self.possible.insert(key.to_owned(), possible);
    }

    pub(crate) fn may_miss(&mut self, key: &str) {
        self.possible.entry(key.to_owned()).or_default().insert(None);
    }

    /// The one chunk that a key has, if that is known.
    pub(crate) fn held(&self, key: &str) -> Option<u64> {
        let possible = self.possible.get(key)?;
        if possible.len() == 1 { *possible.first()? } else { None }
    }

    /// Keys of which something may be there, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let is_known = |possible: &Possible| possible.iter().any(Option::is_some);
        let known = self.possible.iter().filter(|(_, possible)| is_known(possible));
        known.map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn is_stored(&self, key: &str) -> bool {
        self.books.contains(key)
    }

    pub(crate) fn stored(&self) -> impl Iterator<Item = &String> {
        self.books.iter()
    }

    /// Nobody guards a key any more, and nothing is there.
    pub(crate) fn remove(&mut self, key: &str) {
        self.settle(key, Possible::from([None]));
        self.pinned.remove(key);
        self.leased.remove(key);
    }

    pub(crate) fn note_use(&mut self, key: &str, now_ms: u64, is_set: bool) {
        let uses = self.uses.entry(key.to_owned()).or_insert((now_ms, now_ms));
        uses.1 = uses.1.max(now_ms);
        if is_set {
            uses.0 = now_ms;
        }
    }

    pub(crate) fn last_use_ms(&self, key: &str) -> u64 {
        self.uses.get(key).map_or(0, |(_, used_ms)| *used_ms)
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
    pub(crate) fn take_vanished(&mut self) -> Vec<String> {
        let books = &self.books;
        let is_gone = |(key, possible): &(&String, &Possible)| {
            !possible.contains(&None) && !books.contains(*key)
        };
        let gone: Vec<String> =
            self.possible.iter().filter(is_gone).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| self.settle(key, Possible::from([None])));
        gone
    }

    /// A session has ended: guards end with it. After a kill, a use may not have been written.
    pub(crate) fn end_session(&mut self, was_killed: bool) {
        self.pinned.clear();
        self.leased.clear();
        if was_killed {
            self.uses.values_mut().for_each(|(stored_ms, used_ms)| *used_ms = *stored_ms);
        }
    }
}
