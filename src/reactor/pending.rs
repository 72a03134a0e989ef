//! Reactor of a path that no reactor has taken up: loads, and SETs. Whichever reactor has room for one takes it up.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::operation::Operation;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::key::Digest;
use crate::schedule::{Line, Queue};

/// Reactor that are queued, or taken out, under one lock: some ten microseconds.
const MOST_AT_A_TIME: usize = 256;

/// A reactor takes up so many bytes at once, or one operation: small ones cost less together.
const TAKEN_BYTES: u64 = 128 << 10;

#[derive(Default)]
struct Lines {
    /// In the order in which they came.
    loads: VecDeque<Operation>,
    /// SETs that loads wait for.
    promoted: VecDeque<Operation>,
    sets: Queue<Operation>,
    /// Where each of `sets` is.
    numbers: HashMap<Digest, u64>,
}

impl Lines {
    fn push(&mut self, operation: Operation) {
        match operation.set_digest() {
            None => self.loads.push_back(operation),
            Some(digest) => {
                let number = self.sets.push(operation);
                self.numbers.insert(digest, number);
            }
        }
    }

    fn pop(&mut self, line: Line) -> Option<Operation> {
        match line {
            Line::Get => self.loads.pop_front(),
            Line::Promoted => self.promoted.pop_front(),
            Line::Set => {
                let set = self.sets.pop_front()?;
                set.set_digest().map(|digest| self.numbers.remove(&digest));
                Some(set)
            }
            Line::Delete => None,
        }
    }
}

/// How many there are, by line, is read without a lock.
#[derive(Default)]
pub(super) struct Pending {
    lines: Mutex<Lines>,
    counts: [AtomicUsize; 4],
}

impl Pending {
    pub(super) fn push(&self, operations: Vec<Operation>) {
        let mut rest = operations.into_iter().peekable();
        while rest.peek().is_some() {
            let mut lines = self.lines.lock();
            rest.by_ref().take(MOST_AT_A_TIME).for_each(|operation| lines.push(operation));
            self.note_counts(&lines);
        }
    }

    fn note_counts(&self, lines: &Lines) {
        let set = |line: Line, count| self.counts[line as usize].store(count, Ordering::SeqCst);
        set(Line::Get, lines.loads.len());
        set(Line::Promoted, lines.promoted.len());
        set(Line::Set, lines.numbers.len());
    }

    pub(super) fn count(&self, line: Line) -> usize {
        self.counts[line as usize].load(Ordering::SeqCst)
    }

    /// Loads, and SETs that these wait for.
    pub(super) fn has_loads(&self) -> bool {
        self.count(Line::Get) > 0 || self.count(Line::Promoted) > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_loads() && self.count(Line::Set) == 0
    }

    /// The next one of a line, or several small ones.
    pub(super) fn take(&self, line: Line) -> Vec<Operation> {
        let mut taken = Vec::new();
        if self.count(line) == 0 {
            return taken;
        }
        let mut lines = self.lines.lock();
        let mut bytes = 0;
        while bytes < TAKEN_BYTES
            && let Some(operation) = lines.pop(line)
        {
            bytes += operation.cost_bytes();
            taken.push(operation);
        }
        self.note_counts(&lines);
        taken
    }

    /// Some of whatever is left.
    pub(super) fn drain_some(&self) -> Vec<Operation> {
        let mut lines = self.lines.lock();
        let mut taken = Vec::new();
        for line in [Line::Get, Line::Promoted, Line::Set] {
            while taken.len() < MOST_AT_A_TIME
                && let Some(operation) = lines.pop(line)
            {
                taken.push(operation);
            }
        }
        self.note_counts(&lines);
        taken
    }

    /// When the first load came.
    pub(super) fn oldest_load(&self) -> Option<Instant> {
        if self.count(Line::Get) == 0 {
            return None;
        }
        self.lines.lock().loads.front().and_then(Operation::submitted)
    }

    /// Loads that came by `latest`, some of them if they are many.
    pub(super) fn take_late_loads(&self, latest: Instant) -> Vec<Operation> {
        if self.count(Line::Get) == 0 {
            return Vec::new();
        }
        let mut lines = self.lines.lock();
        let is_late = |load: &Operation| load.submitted().is_some_and(|since| since <= latest);
        let late = lines.loads.iter().take(MOST_AT_A_TIME).take_while(|load| is_late(load)).count();
        let late = lines.loads.drain(..late).collect();
        self.note_counts(&lines);
        late
    }

    /// Loads wait for the SETs of these keys: those that are here go before other SETs. Returns the others.
    pub(super) fn promote(&self, awaited: &[Digest]) -> Vec<Digest> {
        if self.count(Line::Set) == 0 {
            return awaited.to_vec();
        }
        let mut lines = self.lines.lock();
        let is_elsewhere = |digest: &Digest| {
            let number = lines.numbers.remove(digest);
            let set = number.and_then(|number| lines.sets.take(number));
            let is_here = set.is_some();
            lines.promoted.extend(set);
            !is_here
        };
        let elsewhere = awaited.iter().copied().filter(is_elsewhere).collect();
        self.note_counts(&lines);
        elsewhere
    }
}
