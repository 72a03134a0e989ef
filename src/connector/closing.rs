//! Closing a store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Connector;
use super::shutdown::Shutdown;
use super::volume::close_all;
use super::volumes::Watch;

/// How long `close` works on what is queued before it drops the rest.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Connector {
    /// [`Connector::close_within`] 5 s.
    pub fn close(&self) -> Shutdown {
        self.close_within(DRAIN_TIMEOUT)
    }

    /// Takes nothing new, works on what is queued for at most `drain_timeout`, waits for what is in the kernel, notes
    /// the clean shutdown, releases the files, and drops the completions that nobody took. No caller memory is used after
    /// it. Idempotent:
    /// a second call waits for the first and says the same. In a fork of the owner it does nothing.
    ///
    /// What the kernel does not finish within 10 s more is leaked, with the memory that it holds. A thread that only keeps
    /// house, or notes the clean shutdown, is left behind if the device or a frozen file system does not give it back. The
    /// log says so, the shutdown is not clean, and the store stays locked as long as the connector lives.
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
        let watch = self.watch.lock().take();
        // It writes to the files.
        let has_watch_ended = watch.is_none_or(Watch::end);
        let closed = close_all(self.volumes.all(), drain_timeout, has_watch_ended).into_iter();
        // A path that is out of use is outdated anyway, and what was dropped there no loss of this moment.
        let counts = closed.enumerate().filter(|(number, _)| self.volumes.is_live(*number));
        let done = Shutdown::of_all(counts.map(|(_, done)| done));
        let mut untaken = Vec::new();
        self.completions.drain(&mut untaken);
        drop(untaken);
        *shutdown = Some(done);
        done
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.close();
    }
}
