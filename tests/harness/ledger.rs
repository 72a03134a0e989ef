//! What was submitted and acknowledged of each key, and so what may be there.
//!
//! The result of an operation is ruled out by a completed one that it precedes: because it was completed before that one was begun, or
//! because the same thread submitted it earlier. Whatever is not ruled out may be there. A process that may be killed tells each change
//! on its standard output, before it submits and after it was answered: its parent keeps the same ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use super::plan::Chunk;

/// A chunk, or nothing.
pub(crate) type Held = Option<Chunk>;
pub(crate) type Possible = BTreeSet<Held>;

/// A SET or DELETE on one key.
#[derive(Clone)]
struct Operation {
    id: u64,
    thread: u64,
    begun: u64,
    ended: Option<u64>,
    result: Held,
}

impl Operation {
    fn precedes(&self, other: &Self) -> bool {
        let earlier_in_thread = self.thread == other.thread && self.begun < other.begun;
        earlier_in_thread || self.ended.is_some_and(|ended| ended < other.begun)
    }
}

/// When a key was stored and used last, by the clock of the store: the last use came between `earliest_ms` and `latest_ms`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) stored_ms: u64,
    pub(crate) earliest_ms: u64,
    pub(crate) latest_ms: u64,
    /// Of any use since the last close.
    most_ms: u64,
}

#[derive(Clone)]
struct Known {
    /// What may be there from before the operations.
    before: Possible,
    operations: Vec<Operation>,
    uses: Uses,
}

impl Default for Known {
    fn default() -> Self {
        Self { before: [None].into(), operations: Vec::new(), uses: Uses::default() }
    }
}

impl Known {
    fn possible(&self) -> Possible {
        let completed = || self.operations.iter().filter(|operation| operation.ended.is_some());
        let remains = |operation: &&Operation| !completed().any(|other| operation.precedes(other));
        let results = self.operations.iter().filter(remains).map(|operation| operation.result);
        let before = self.before.iter().copied().filter(|_| completed().next().is_none());
        results.chain(before).collect()
    }
}

/// What is known of all keys, and numbers that go on from session to session.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    known: BTreeMap<u64, Known>,
    tallies: BTreeMap<String, u64>,
    now: u64,
    pub(crate) tells: bool,
}

impl Ledger {
    fn known(&mut self, key: u64) -> &mut Known {
        self.known.entry(key).or_default()
    }

    /// What may be there.
    pub(crate) fn possible(&self, key: u64) -> Possible {
        self.known.get(&key).map_or_else(|| [None].into(), Known::possible)
    }

    /// What a load beside the operations of this session may find: also what they replace.
    pub(crate) fn readable(&self, key: u64) -> Possible {
        let known = self.known.get(&key);
        let results = |known: &Known| known.operations.iter().map(|one| one.result).collect();
        let mut all: Possible = known.map(results).unwrap_or_default();
        all.extend(known.map_or_else(|| [None].into(), |known| known.before.clone()));
        all
    }

    /// The one chunk that a key has, where that is certain.
    pub(crate) fn held(&self, key: u64) -> Held {
        let possible = self.possible(key);
        if possible.len() == 1 { possible.first().copied().flatten() } else { None }
    }

    /// Keys of which a chunk may be there, in order.
    pub(crate) fn keys(&self) -> Vec<u64> {
        let is_known = |known: &Known| known.possible().iter().any(Option::is_some);
        let known = self.known.iter().filter(|(_, known)| is_known(known));
        known.map(|(key, _)| *key).collect()
    }

    /// Operations that are not answered, in order: their numbers and results.
    pub(crate) fn unanswered(&self, key: u64) -> Vec<(u64, Held)> {
        let operations = self.known.get(&key).map_or(&[][..], |known| &known.operations);
        let open = operations.iter().filter(|operation| operation.ended.is_none());
        open.map(|operation| (operation.id, operation.result)).collect()
    }

    /// An operation is about to be submitted.
    pub(crate) fn begin(&mut self, key: u64, id: u64, thread: u64, result: Held) {
        self.now += 1;
        let operation = Operation { id, thread, begun: self.now, ended: None, result };
        self.known(key).operations.push(operation);
        self.tell(|| format!("begin {key} {id} {thread}{}", words([result])));
    }

    /// It is acknowledged.
    pub(crate) fn end(&mut self, key: u64, id: u64) {
        self.now += 1;
        let now = Some(self.now);
        let mut operations = self.known(key).operations.iter_mut();
        operations.find(|operation| operation.id == id).expect("it was begun").ended = now;
        self.tell(|| format!("end {key} {id}"));
    }

    /// This may be there as well.
    pub(crate) fn may_be(&mut self, key: u64, held: Held) {
        self.known(key).before.insert(held);
        self.tell(|| format!("may {key}{}", words([held])));
    }

    /// Nothing but this may be there.
    pub(crate) fn settle(&mut self, key: u64, possible: impl IntoIterator<Item = Held>) {
        let known = self.known(key);
        (known.before, known.operations) = (possible.into_iter().collect(), Vec::new());
        self.tell(|| format!("settle {key}{}", words(self.possible(key))));
    }

    /// The owner is gone: what it had begun is done, or never will be. Uses are written behind: after a kill any since the last close
    /// may count as the last one, also one from before the clock was set back, or none since the chunk was stored.
    pub(crate) fn end_session(&mut self, was_killed: bool) {
        for known in self.known.values_mut() {
            (known.before, known.operations) = (known.possible(), Vec::new());
            let uses = &mut known.uses;
            if was_killed {
                (uses.earliest_ms, uses.latest_ms) = (uses.stored_ms, uses.most_ms);
            } else {
                uses.most_ms = uses.latest_ms;
            }
        }
    }

    pub(crate) fn uses(&self, key: u64) -> Uses {
        self.known.get(&key).map(|known| known.uses).unwrap_or_default()
    }

    /// It may be used now.
    pub(crate) fn begin_use(&mut self, key: u64, now_ms: u64) {
        let uses = &mut self.known(key).uses;
        uses.latest_ms = uses.latest_ms.max(now_ms);
        self.note_uses(key);
    }

    /// It was used last at this time, or stored.
    pub(crate) fn end_use(&mut self, key: u64, last_ms: u64, is_stored: bool) {
        let uses = &mut self.known(key).uses;
        (uses.earliest_ms, uses.latest_ms) = (last_ms, last_ms);
        if is_stored {
            uses.stored_ms = last_ms;
        }
        self.note_uses(key);
    }

    fn note_uses(&mut self, key: u64) {
        let uses = &mut self.known(key).uses;
        uses.most_ms = uses.most_ms.max(uses.latest_ms);
        self.tell(|| self.line_of_uses(key));
    }

    fn line_of_uses(&self, key: u64) -> String {
        let Uses { stored_ms, earliest_ms, latest_ms, most_ms } = self.uses(key);
        format!("uses {key} {stored_ms} {earliest_ms} {latest_ms} {most_ms}")
    }

    // --- numbers ---

    pub(crate) fn tally(&self, name: &str) -> u64 {
        self.tallies.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn set_tally(&mut self, name: &str, value: u64) {
        match self.tallies.get_mut(name) {
            Some(tally) => *tally = value,
            None => drop(self.tallies.insert(name.to_owned(), value)),
        }
        self.tell(|| format!("tally {name} {value}"));
    }

    pub(crate) fn count(&mut self, name: &str, amount: u64) {
        if amount > 0 {
            self.set_tally(name, self.tally(name) + amount);
        }
    }

    pub(crate) fn note_most(&mut self, name: &str, value: u64) {
        if value > self.tally(name) {
            self.set_tally(name, value);
        }
    }

    // --- between processes ---

    fn tell(&self, line: impl FnOnce() -> String) {
        if self.tells {
            // It reaches the parent whole or not at all.
            std::io::stdout().lock().write_all((line() + "\n").as_bytes()).unwrap();
        }
    }

    /// All that is known between two sessions, line by line.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let of_key =
            |&key| [format!("settle {key}{}", words(self.possible(key))), self.line_of_uses(key)];
        let tallies = self.tallies.iter().map(|(name, value)| format!("tally {name} {value}"));
        self.known.keys().flat_map(of_key).chain(tallies)
    }

    /// Takes in what another process told. Says whether it was of the ledger.
    pub(crate) fn read(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let key = || words[1].parse::<u64>().expect("a key");
        let number = |place: usize| words[place].parse::<u64>().expect("a number");
        let held = |from: usize| -> Possible {
            let pairs = (from..words.len()).step_by(2);
            pairs.map(|place| held_of(number(place), number(place + 1))).collect()
        };
        match words[0] {
            "begin" => {
                let result = held(4).first().copied().flatten();
                self.begin(key(), number(2), number(3), result);
            }
            "end" => self.end(key(), number(2)),
            "may" => held(2).into_iter().for_each(|held| self.may_be(key(), held)),
            "settle" => self.settle(key(), held(2)),
            "uses" => {
                let [stored_ms, earliest_ms, latest_ms, most_ms] = [2, 3, 4, 5].map(number);
                self.known(key()).uses = Uses { stored_ms, earliest_ms, latest_ms, most_ms };
            }
            "tally" => self.set_tally(words[1], number(2)),
            _ => return false,
        }
        true
    }
}

/// No chunk has the number 0.
fn words(held: impl IntoIterator<Item = Held>) -> String {
    let word =
        |held: Held| held.map_or(" 0 0".into(), |one| format!(" {} {}", one.version, one.length));
    held.into_iter().map(word).collect()
}

fn held_of(version: u64, length: u64) -> Held {
    (version > 0).then_some(Chunk { version, length: length as usize })
}
