//! What a store may hold of each key, by what its owners said before and after each operation.
//!
//! The result of an operation is ruled out by a completed one that it precedes: because it was completed before that one
//! was begun, or because the same thread submitted it earlier. Whatever is not ruled out may be there.

use std::collections::{BTreeMap, BTreeSet};

use super::{Client, KEYS, content, length, name};

/// A version, or nothing.
pub(crate) type Held = Option<u64>;

struct Operation {
    number: u64,
    thread: u64,
    begun: usize,
    ended: Option<usize>,
    result: Held,
}

impl Operation {
    fn precedes(&self, other: &Self) -> bool {
        let earlier_in_thread = self.thread == other.thread && self.begun < other.begun;
        earlier_in_thread || self.ended.is_some_and(|ended| ended < other.begun)
    }
}

struct Known {
    /// What may be there from earlier rounds.
    before: BTreeSet<Held>,
    operations: Vec<Operation>,
}

impl Known {
    fn possible(&self) -> BTreeSet<Held> {
        let completed = || self.operations.iter().filter(|operation| operation.ended.is_some());
        let remains = |operation: &&Operation| !completed().any(|other| operation.precedes(other));
        let results = self.operations.iter().filter(remains).map(|operation| operation.result);
        let before = self.before.iter().copied().filter(|_| completed().next().is_none());
        results.chain(before).collect()
    }
}

/// How an owner said that it closed the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) clean: bool,
    pub(crate) partial_flush: bool,
    pub(crate) abandoned: u64,
}

/// What is known of all keys.
pub(crate) struct Oracle {
    keys: BTreeMap<u64, Known>,
    lines: usize,
    /// What the last owner that closed the store had counted.
    counters: String,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        let known = || Known { before: BTreeSet::from([None]), operations: Vec::new() };
        Self {
            keys: (0..KEYS).map(|number| (number, known())).collect(),
            lines: 0,
            counters: String::new(),
        }
    }

    /// Takes in what an owner said: `set OPERATION KEY THREAD`, `delete OPERATION KEY THREAD`, `done OPERATION KEY`. The
    /// number of a SET is the version that it writes. Returns how the owner closed the store, if it did.
    pub(crate) fn read(&mut self, line: &str) -> Option<Closed> {
        self.lines += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let word = |position: usize| words[position].parse::<u64>().unwrap();
        match words[0] {
            verb @ ("set" | "delete") => {
                let (number, thread) = (word(1), word(3));
                let result = (verb == "set").then_some(number);
                let operation =
                    Operation { number, thread, begun: self.lines, ended: None, result };
                self.known(word(2)).operations.push(operation);
            }
            "done" => {
                let (number, now) = (word(1), self.lines);
                let operations = &mut self.known(word(2)).operations;
                let operation = operations.iter_mut().find(|operation| operation.number == number);
                operation.expect("it was begun").ended = Some(now);
            }
            "counters" => line.clone_into(&mut self.counters),
            "closed" => {
                let [clean, partial_flush] = [1, 2].map(|position| words[position] == "true");
                return Some(Closed { clean, partial_flush, abandoned: word(3) });
            }
            _ => {}
        }
        None
    }

    /// The owner is gone: what it had begun is done or never will be.
    pub(crate) fn end_round(&mut self) {
        for known in self.keys.values_mut() {
            known.before = known.possible();
            known.operations.clear();
        }
    }

    /// Compares the flags of a close with what it left undone. Ends the round.
    pub(crate) fn end_closed_round(
        &mut self,
        closed: Closed,
        client: &Client,
        persistent: bool,
    ) -> Result<(), String> {
        let Closed { clean, partial_flush, abandoned } = closed;
        let recovery = client.connector.recovery();
        if !clean || recovery.clean_shutdown != clean || partial_flush != (abandoned > 0) {
            return Err(format!("{closed:?}, but {recovery}"));
        }
        let open = |known: &Known| {
            known.operations.iter().filter(|operation| operation.ended.is_none()).count() as u64
        };
        if abandoned > self.keys.values().map(open).sum() {
            return Err(format!("{closed:?} is more than there was to do"));
        }
        let now = self.lines;
        let (mut undone, mut is_exact) = (0, true);
        for (number, known) in &mut self.keys {
            let possible = known.possible();
            let all = &mut known.operations;
            let open: Vec<Held> = all
                .iter()
                .filter(|other| other.ended.is_none())
                .map(|other| other.result)
                .collect();
            // In order: what is there was done last, and what comes behind it was not.
            if open.contains(&None) {
                is_exact = false;
            } else if !open.is_empty() {
                let held = look(client, *number, &possible)?;
                let done = open.iter().position(|result| *result == held);
                undone += open.len() - done.map_or(0, |last| last + 1);
            }
            if abandoned == 0 {
                let open = all.iter_mut().filter(|operation| operation.ended.is_none());
                open.for_each(|operation| operation.ended = Some(now));
            }
        }
        let undone = undone as u64;
        // In `persistent` a SET whose predecessor is cleared already stands, although it is not acknowledged.
        if undone > abandoned || (is_exact && !persistent && undone != abandoned) {
            let counters = &self.counters;
            return Err(format!("{closed:?}, but {undone} SETs left nothing; its {counters}"));
        }
        self.end_round();
        Ok(())
    }

    /// Compares every key with what may be there after the last round.
    pub(crate) fn check(&mut self, client: &Client) -> Result<(), String> {
        for (number, known) in &mut self.keys {
            let possible = &known.before;
            let held = look(client, *number, possible)
                .map_err(|error| format!("{error}; possible: {possible:?}"))?;
            if !possible.contains(&held) {
                return Err(format!("key {number}: {held:?} is there; possible: {possible:?}"));
            }
            known.before = BTreeSet::from([held]);
        }
        if client.counter("checksum_mismatch") > 0 {
            return Err("a chunk did not match its checksum".into());
        }
        Ok(())
    }

    fn known(&mut self, number: u64) -> &mut Known {
        self.keys.get_mut(&number).expect("a key below KEYS")
    }
}

/// The version of a key that is there, which must be one of `versions`.
fn look(client: &Client, number: u64, versions: &BTreeSet<Held>) -> Result<Held, String> {
    let held = client.exists(&[name(number)])[0];
    let found: Vec<Vec<u8>> =
        (0..2).filter_map(|parity| client.get_one(&name(number), length(number, parity))).collect();
    match &found[..] {
        [] if !held => Ok(None),
        [bytes] if held => {
            let mut versions = versions.iter().copied().flatten();
            let version = versions.find(|version| *bytes == content(number, *version));
            version.map(Some).ok_or(format!("key {number}: neither of the versions it may have"))
        }
        _ => Err(format!("key {number}: held {held}, {} lengths found", found.len())),
    }
}
