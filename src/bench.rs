//! What `benches/batch.rs` and the simulator of `make eviction` need of the inside. Only with the feature `bench`; not part of the API.

use std::io;
use std::sync::Arc;

use crate::batch_completion::Batch;
use crate::completion_queue::{Completion, CompletionQueue};

pub use crate::evict::probe::{EvictionProbe, Held};
pub use crate::index::probe::IndexProbe;
pub use crate::key::Digest;
pub use crate::schedule::{Class, Grant, Limits, Scheduler};

/// Batches without a store behind them.
pub struct Countdown {
    completions: Arc<CompletionQueue>,
    drained: Vec<Completion>,
}

impl Countdown {
    /// A queue of completions of its own.
    ///
    /// # Errors
    /// The system refuses an eventfd.
    pub fn new() -> io::Result<Self> {
        Ok(Self { completions: Arc::new(CompletionQueue::new()?), drained: Vec::new() })
    }

    /// Starts a batch, answers each of its keys, announces its completion and drains it. Returns the answers drained.
    pub fn run(&mut self, keys: usize) -> usize {
        for item in Batch::start(1, keys, Box::new(()), &self.completions) {
            item.succeed();
        }
        self.completions.announce();
        self.completions.drain(&mut self.drained);
        self.drained.drain(..).map(|completion| completion.results.len()).sum()
    }
}
