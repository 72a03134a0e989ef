//! One submitting thread: keeps its batches in flight and settles their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvring::{Connector, SubmitError};

use crate::content::{Content, spoil};
use crate::keyspace::{Cursor, Generations, KeySpace, NextKey};
use crate::memory::BatchMemory;
use crate::plan::Plan;
use crate::progress::ProgressMeter;
use crate::random::{Random, mix};
use crate::report::{Operation, Tally};
use crate::router::{Arrival, Router};

/// What the jobs of a phase do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) kind: WorkKind,
    /// In random order.
    pub(crate) random: bool,
    /// Until when, over the keys again and again; one pass if there is none.
    pub(crate) deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkKind {
    Only(Operation),
    /// GETs and SETs, with this percentage of GETs among the batches.
    Mix(u64),
}

/// What all jobs use.
pub(crate) struct JobContext<'run> {
    pub(crate) connector: &'run Connector,
    pub(crate) router: &'run Router,
    pub(crate) stop: &'run AtomicBool,
    pub(crate) progress: &'run ProgressMeter,
}

pub(crate) struct Job {
    number: usize,
    batch: usize,
    verify: bool,
    seed: u64,
    content: Content,
    random: Random,
    keys: KeySpace,
    idle: Vec<BatchMemory>,
    in_flight: HashMap<u64, Flight>,
}

/// A batch that is being worked on.
struct Flight {
    operation: Operation,
    keys: Vec<u64>,
    lengths: Vec<usize>,
    /// What each key of a GET may hold.
    expected: Vec<Generations>,
    memory: BatchMemory,
    submitted: Instant,
}

impl Job {
    pub(crate) fn new(number: usize, plan: &Plan) -> Self {
        let seed = mix(plan.seed ^ mix(number as u64));
        let longest_bytes = plan.sizes.longest_bytes() as usize;
        let memory = |slot| {
            let (batch, align) = (plan.batch as usize, plan.align_bytes as usize);
            BatchMemory::new(batch, longest_bytes, align, seed ^ slot)
        };
        Self {
            number,
            batch: plan.batch as usize,
            verify: plan.verify,
            seed,
            content: Content::new(plan.seed, plan.verify),
            random: Random::new(seed),
            keys: KeySpace::new(number as u64, plan.keys_per_job(), plan.sizes.clone(), plan.seed),
            idle: (0..plan.batches_in_flight()).map(memory).collect(),
            in_flight: HashMap::new(),
        }
    }

    /// Registers its memory with the store, none of which is in flight.
    pub(crate) fn register(&mut self, connector: &Connector) -> Result<(), SubmitError> {
        self.idle.iter_mut().try_for_each(|memory| memory.register(connector))
    }

    /// Does one phase; returns when all of its batches are answered, or the store refuses or hangs.
    pub(crate) fn run(&mut self, work: Work, context: &JobContext<'_>) -> Tally {
        let mut tally = Tally::new();
        let once =
            work.deadline.is_none() || matches!(work.kind, WorkKind::Only(Operation::Delete));
        let mut cursor = Cursor::new(self.keys.count(), once, work.random, self.seed);
        let mut outcome = self.work(work, &mut cursor, context, &mut tally);
        // What was in flight when the store refused a batch is answered still.
        while !self.in_flight.is_empty() && outcome.is_err() {
            match context.router.wait(self.number, context.connector, context.stop) {
                Ok(arrived) => self.settle_all(arrived, context, &mut tally),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let Err(error) = outcome {
            tally.complain(error);
            tally.ended_early = true;
            context.stop.store(true, Ordering::Relaxed);
        }
        tally
    }

    fn work(
        &mut self,
        work: Work,
        cursor: &mut Cursor,
        context: &JobContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let mut more = true;
        loop {
            while more && let Some(memory) = self.idle.pop() {
                let over = work.deadline.is_some_and(|deadline| Instant::now() >= deadline);
                if over || context.stop.load(Ordering::Relaxed) {
                    more = false;
                    self.idle.push(memory);
                    break;
                }
                let (keys, end) = self.take(cursor);
                more = !end;
                if keys.is_empty() {
                    self.idle.push(memory);
                    break;
                }
                let operation = match work.kind {
                    WorkKind::Only(operation) => operation,
                    WorkKind::Mix(gets) if self.random.below(100) < gets => Operation::Get,
                    WorkKind::Mix(_) => Operation::Set,
                };
                self.submit(operation, keys, memory, context).map_err(|error| error.to_string())?;
            }
            if self.in_flight.is_empty() {
                return Ok(());
            }
            let arrived = context.router.wait(self.number, context.connector, context.stop)?;
            self.settle_all(arrived, context, tally);
        }
    }

    /// The keys of the next batch, and whether they are the last.
    fn take(&self, cursor: &mut Cursor) -> (Vec<u64>, bool) {
        let mut keys = Vec::with_capacity(self.batch);
        while keys.len() < self.batch {
            match cursor.next(&self.keys) {
                NextKey::Key(key) => keys.push(key),
                NextKey::Busy => break,
                NextKey::End => return (keys, true),
            }
            // A batch has a key once, so that the order in which its keys are worked on does not matter.
            if cursor.is_at_end_of_pass() {
                break;
            }
        }
        (keys, false)
    }

    fn submit(
        &mut self,
        operation: Operation,
        keys: Vec<u64>,
        mut memory: BatchMemory,
        context: &JobContext<'_>,
    ) -> Result<(), SubmitError> {
        let names: Vec<String> = keys.iter().map(|key| self.keys.name(*key)).collect();
        let (mut lengths, mut expected) = (Vec::new(), Vec::new());
        if matches!(operation, Operation::Get | Operation::Set) {
            lengths = keys.iter().map(|key| self.keys.length(*key)).collect();
            expected = keys.iter().map(|key| self.keys.generations(*key)).collect();
            self.prepare(operation, &keys, &lengths, &mut memory);
        }
        let (buffers, keep_alive) = memory.lend(&lengths);
        let connector = context.connector;
        let submitted = Instant::now();
        let future_id = match operation {
            Operation::Get => connector.submit_get(&names, &buffers, keep_alive),
            Operation::Set => connector.submit_set(&names, &buffers, keep_alive),
            Operation::Exists => connector.submit_exists(&names),
            Operation::Delete => connector.submit_delete(&names),
        }?;
        context.router.claim(self.number, future_id);
        let flight = Flight { operation, keys, lengths, expected, memory, submitted };
        self.in_flight.insert(future_id, flight);
        Ok(())
    }

    /// Writes the next generation of each key into the memory of a SET; makes that of a GET look like none of them.
    fn prepare(
        &mut self,
        operation: Operation,
        keys: &[u64],
        lengths: &[usize],
        memory: &mut BatchMemory,
    ) {
        for (position, (key, length)) in keys.iter().zip(lengths).enumerate() {
            let chunk = memory.chunk(position, *length).expect("idle memory is not lent");
            if operation == Operation::Set {
                let generation = self.keys.begin_set(*key);
                self.content.fill(chunk, self.keys.identity(*key), generation);
            } else if self.verify {
                spoil(chunk);
            }
        }
    }

    fn settle_all(&mut self, arrived: Vec<Arrival>, context: &JobContext<'_>, tally: &mut Tally) {
        for arrived in arrived {
            self.settle(arrived, context, tally);
        }
    }

    fn settle(&mut self, arrived: Arrival, context: &JobContext<'_>, tally: &mut Tally) {
        let Arrival { mut completion, at } = arrived;
        let Some(mut flight) = self.in_flight.remove(&completion.future_id) else {
            tally.complain(format!("batch {} was answered twice", completion.future_id));
            tally.ended_early = true;
            return;
        };
        let (ok, results) = (completion.ok, std::mem::take(&mut completion.results));
        if let Some(code) = completion.code {
            tally.fail_batch(code, std::mem::take(&mut completion.error));
        }
        // From here on the memory is this job's again.
        drop(completion);
        if results.len() != flight.keys.len() {
            tally.complain(format!("{} answers to {} keys", results.len(), flight.keys.len()));
            tally.ended_early = true;
        }
        let class = tally.class(flight.operation);
        class.record(at.duration_since(flight.submitted));
        class.batches += 1;
        class.keys += results.len() as u64;
        let (mut bytes, mut wrong) = (0, 0);
        for (position, succeeded) in results.iter().enumerate().take(flight.keys.len()) {
            let key = flight.keys[position];
            let length = flight.lengths.get(position).map_or(0, |length| *length as u64);
            match flight.operation {
                Operation::Get | Operation::Exists if *succeeded => class.hits += 1,
                Operation::Get | Operation::Exists if ok => class.misses += 1,
                _ => class.failed += u64::from(!succeeded),
            }
            match flight.operation {
                Operation::Get if *succeeded => {
                    bytes += length;
                    if self.verify && !self.is_right(&mut flight, position) {
                        wrong += 1;
                    }
                }
                Operation::Set => {
                    bytes += if *succeeded { length } else { 0 };
                    self.keys.end_set(key, *succeeded);
                }
                _ => {}
            }
        }
        class.bytes += bytes;
        tally.wrong_chunks += wrong;
        if wrong > 0 {
            tally.complain("a loaded chunk is not what was stored under its key");
        }
        context.progress.add(results.len() as u64, bytes);
        self.idle.push(flight.memory);
    }

    /// Whether the chunk at this place of a GET is one that its key may hold.
    fn is_right(&self, flight: &mut Flight, position: usize) -> bool {
        let (key, length) = (flight.keys[position], flight.lengths[position]);
        let Generations { stored, tried } = flight.expected[position];
        let identity = self.keys.identity(key);
        let Some(chunk) = flight.memory.chunk(position, length) else { return false };
        (stored.max(1)..=tried).any(|generation| self.content.matches(chunk, identity, generation))
    }
}
