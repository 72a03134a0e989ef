//! The sessions of a store whose power is taken, as a seed has them.

use super::common::random::Random;
use super::plan::End;

const MOST_STEPS: u64 = 25;

/// A session as the seed has it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) persistent: bool,
    pub(crate) steps: u64,
    /// Transfers and syncs after which it ends at the latest.
    pub(crate) events: u64,
    pub(crate) end: End,
    pub(crate) reactors: usize,
    /// One in so many syncs of the reactors fails; none with 0.
    pub(crate) failing_syncs: u64,
}

/// The life of a store.
pub(crate) struct Plan {
    /// Blocks of each data file that is there from the start; without any, the store makes a large one.
    pub(crate) file_blocks: Vec<u64>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) random: Random,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Small files, as a store has them that was always small: preallocating large ones takes most of the time.
        let file_blocks = match random.below(16) {
            0 => Vec::new(),
            1 => vec![12],
            _ => (0..3 + random.below(4)).map(|_| 8 + random.below(16)).collect(),
        };
        let is_chain = random.below(3) > 0;
        let (mut sessions, mut power_losses) = (Vec::new(), 0);
        let most_power_losses = if is_chain { 1 + random.below(4) } else { 1 };
        while power_losses < most_power_losses {
            let end = match random.below(8) {
                _ if !is_chain => End::PowerLoss,
                0..3 => End::Kill,
                3 => End::Close,
                4 => End::CloseThenPowerLoss,
                _ => End::PowerLoss,
            };
            power_losses += u64::from(matches!(end, End::PowerLoss | End::CloseThenPowerLoss));
            let steps = if is_chain { random.below(10) } else { MOST_STEPS };
            let events = match random.below(4) {
                // Many in the middle of opening.
                0 => 1 + random.below(8),
                _ => 1 + random.below(4 * steps.max(4)),
            };
            let persistent = random.one_of(2);
            let reactors = 1 + random.below(3) as usize;
            let failing_syncs = random.choose(&[0, 0, 3, 8, 20]);
            sessions.push(Session { persistent, steps, events, end, reactors, failing_syncs });
        }
        Self { file_blocks, sessions, random }
    }

    pub(crate) fn count(&self, ends: &[End]) -> u64 {
        self.sessions.iter().filter(|session| ends.contains(&session.end)).count() as u64
    }

    pub(crate) fn power_losses(&self) -> u64 {
        self.count(&[End::PowerLoss, End::CloseThenPowerLoss])
    }
}
