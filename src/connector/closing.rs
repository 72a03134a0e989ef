//! Closing a store, and how it was left.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Connector;
use crate::reactor::{Ending, KeeperThread, Reactors};

/// How a store was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The clean flag is on disk: the next open needs no deep check.
    pub clean: bool,
    /// Operations were dropped at the deadline.
    pub partial_flush: bool,
    /// How many.
    pub abandoned: u64,
}

impl std::fmt::Display for Shutdown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let order = if self.clean { "closed in order" } else { "closed, but not in order" };
        write!(formatter, "{order}, {} operations abandoned", self.abandoned)
    }
}

impl Connector {
    /// [`Connector::close_within`] the configured `drain_timeout_s`.
    pub fn close(&self) -> Shutdown {
        self.close_within(self.shared.config.drain_timeout)
    }

    /// Takes nothing new, works on what is queued for at most `drain_timeout`, waits for what is in the kernel, notes
    /// the clean shutdown, gives up the files, and drops the completions that nobody took. No caller memory is used after
    /// it. Idempotent:
    /// a second call waits for the first and says the same. In a fork of the owner it does nothing.
    ///
    /// If the kernel does not finish within 10 s more, the memory it holds is leaked, and the log says so.
    pub fn close_within(&self, drain_timeout: Duration) -> Shutdown {
        if self.process_id != std::process::id() {
            return Shutdown::default();
        }
        let mut shutdown = self.shutdown.lock();
        if let Some(done) = *shutdown {
            return done;
        }
        self.closed.store(true, Ordering::Release);
        drop(self.gate.write());
        self.shared.stop(drain_timeout);
        // It frees places: not behind the back of who gives up the files.
        let keeper = self.keeper.lock().take();
        keeper.into_iter().for_each(KeeperThread::end);
        let reactors = self.reactors.lock().take();
        let ending = reactors.map_or(Ending::Leaked, Reactors::join);
        let mut untaken = Vec::new();
        self.completions.drain(&mut untaken);
        drop(untaken);
        // A leak means that the kernel may still write: the lock stays until it is done, or this process is.
        let clean = ending != Ending::Leaked && self.release(ending == Ending::Orderly);
        let abandoned = self.shared.counters.abandoned.get();
        let done = Shutdown { clean, partial_flush: abandoned > 0, abandoned };
        log::info!("{}: {done}", self.shared.config.path.display());
        *shutdown = Some(done);
        done
    }

    /// Notes the clean shutdown if it was one, and gives up the locks. Says whether it is noted.
    fn release(&self, orderly: bool) -> bool {
        let (store, index) = (&self.shared.store, &self.shared.index);
        let path = self.shared.config.path.display();
        let note = || {
            // The data first: a clean flag must not be on disk before what it vouches for.
            store.sync()?;
            index.table().sync()?;
            index.write_session(self.shared.config.clock.now_ms(), true)?;
            index.table().sync()
        };
        let noted = if orderly { note() } else { Err(io::Error::other("the reactor had failed")) };
        if let Err(error) = &noted {
            log::error!("{path} is not marked as closed in order: {error}");
        }
        if let Err(error) = store.give_up().and_then(|()| index.table().give_up()) {
            log::error!("{path} stays locked until this process ends: {error}");
        }
        noted.is_ok()
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.close();
    }
}
