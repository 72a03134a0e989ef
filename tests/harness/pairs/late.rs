//! An engine that tells late of some transfers: so many looks of its reactor later, whatever time that takes.

use std::collections::HashSet;
use std::time::Duration;

use kvring::EngineError;
use kvring::testing::{Action, Engine, Reaped, Transfer};

use crate::common::faults::FaultEngine;
use crate::common::random::Random;

const MOST_LOOKS: u64 = 8;
/// A reactor looks again after this time at the latest while something is late.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

pub(crate) struct LateEngine {
    real: FaultEngine,
    random: Random,
    /// Of transfers, and of syncs; 0 for none.
    late_one_in: (u64, u64),
    syncs: HashSet<usize>,
    /// What is done, and after how many looks the reactor hears of it.
    late: Vec<(u64, Reaped)>,
}

impl LateEngine {
    pub(crate) fn new(real: FaultEngine, late_one_in: (u64, u64), seed: u64) -> Self {
        let random = Random::new(seed);
        Self { real, random, late_one_in, syncs: HashSet::new(), late: Vec::new() }
    }

    fn looks_until(&mut self, token: usize) -> u64 {
        let (of_transfers, of_syncs) = self.late_one_in;
        let one_in = if self.syncs.remove(&token) { of_syncs } else { of_transfers };
        let is_late = one_in > 0 && self.random.one_of(one_in);
        if is_late { 1 + self.random.below(MOST_LOOKS) } else { 0 }
    }
}

impl Engine for LateEngine {
    fn description(&self) -> String {
        self.real.description()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        if matches!(transfer.action, Action::Sync | Action::SyncDirectory) {
            self.syncs.insert(transfer.token);
        }
        // SAFETY: as the caller vouches.
        unsafe { self.real.submit(transfer) }
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let mut done = Vec::new();
        let timeout = match self.late.is_empty() {
            true => timeout,
            false => Some(timeout.map_or(BETWEEN_LOOKS, |timeout| timeout.min(BETWEEN_LOOKS))),
        };
        let outcome = self.real.reap(timeout, &mut done);
        for one in done {
            let looks = self.looks_until(one.token);
            self.late.push((looks, one));
        }
        let mut due = self.late.extract_if(.., |(looks, _)| *looks == 0).collect::<Vec<_>>();
        self.late.iter_mut().for_each(|(looks, _)| *looks -= 1);
        reaped.extend(due.drain(..).map(|(_, one)| one));
        outcome
    }

    fn cancel_all(&mut self) {
        self.late_one_in = (0, 0);
        self.late.iter_mut().for_each(|(looks, _)| *looks = 0);
        self.real.cancel_all();
    }
}
