//! Closing: the threads of all paths end, each path notes the clean shutdown and releases its files. That takes as long as devices and
//! file systems do; whoever waits no longer says what is left, and the threads go on with it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::volume::{Shutdown, Volume};
use super::volumes::{Volumes, Watch};
use crate::base::parallel::on_threads;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::thread::Builder;
use crate::base::thread::has_ended;
use crate::base::time::Patience;
use crate::reactor::{ReactorEnd, ReactorGroup};

/// How long an open that fails waits for the paths that run already to be closed.
const UNDO_TIMEOUT: Duration = Duration::from_secs(5);

/// Has a thread do what devices and file systems may hold up, and waits for it for at most `timeout`. Says whether it has ended.
pub(crate) fn on_thread(timeout: Duration, close: impl FnOnce() + Clone + Send + 'static) -> bool {
    match Builder::new().name("kvring-closing".into()).spawn(close.clone()) {
        Ok(thread) => has_ended(thread, &mut Patience::new(timeout)),
        Err(error) => {
            log::debug!("close() takes as long as the devices do: no thread: {error}");
            close();
            true
        }
    }
}

/// Closes the first `count` volumes of a connector that is not to be: with others its open fails.
pub(crate) fn close_started(volumes: &Arc<Volumes>, count: usize) {
    let volumes = Arc::clone(volumes);
    on_thread(UNDO_TIMEOUT, move || close_all(&volumes.all[..count], Duration::ZERO, None));
}

/// Closes volumes, all at the same time: each works on what is queued for at most `drain_timeout`, and then takes as long as its device
/// does, and not that of another. `watch` writes to the files of all of them.
pub(crate) fn close_all(volumes: &[Volume], drain_timeout: Duration, watch: Option<Watch>) {
    watch.iter().for_each(Watch::order_end);
    volumes.iter().for_each(|volume| volume.shared.stop(drain_timeout));
    // Before any is released: a SET of one evicts at another for its quota.
    volumes.iter().for_each(|volume| volume.shared.wait_until_settled());
    if let Some(watch) = watch {
        watch.join();
    }
    let next = AtomicUsize::new(0);
    on_threads("kvring-close", volumes.len(), || {
        while let Some(volume) = volumes.get(next.fetch_add(1, Ordering::SeqCst)) {
            volume.close();
        }
    });
}

impl Volume {
    /// Ends it, when no reactor of any volume begins anything any more.
    fn close(&self) {
        let _ = self.reactors_end.set(self.threads.lock().join_reactors());
        let is_written = self.threads.lock().end_others(&self.shared);
        let orderly = is_written && self.reactors_end.get() == Some(&ReactorEnd::Orderly);
        // Who has memory of callers has the files as well.
        let clean = !self.is_memory_held() && release(&self.shared, orderly);
        self.shared.cache.tell_counts(true);
        let done = self.shutdown_now(clean);
        log::info!("{}: {done}", self.path().display());
        let _ = self.closed.set(done);
    }

    /// How it was closed; or how it is left to its threads by a `close()` whose `timeout` is over.
    pub(crate) fn shutdown(&self, timeout: Duration) -> Shutdown {
        if let Some(done) = self.closed.get() {
            return *done;
        }
        // Whoever waits for them waits no longer than close().
        self.shared.fail_answers();
        self.shared.cache.tell_counts(true);
        let done = Shutdown { timed_out: true, ..self.shutdown_now(false) };
        log::error!(
            "{}: {done}: its device or file system did not answer within the {} s of close(); {}its threads go on with it, and the \
             store stays locked until it answers",
            self.path().display(),
            timeout.as_secs_f64(),
            if done.memory_held { "transfers are still under way; " } else { "" },
        );
        done
    }

    fn shutdown_now(&self, clean: bool) -> Shutdown {
        let cache = &self.shared.cache;
        let abandoned = cache.counters.abandoned.get();
        Shutdown {
            clean,
            partial_flush: abandoned > 0,
            abandoned,
            memory_held: self.is_memory_held(),
            timed_out: false,
            not_durable: if clean { 0 } else { cache.changes_not_durable() },
        }
    }

    /// Not once all its reactors have ended with nothing in the kernel.
    fn is_memory_held(&self) -> bool {
        self.reactors_end.get().is_none_or(|end| *end == ReactorEnd::Leaked)
    }
}

/// Notes the clean shutdown if it was one, and releases the locks. Says whether it is noted.
fn release(shared: &ReactorGroup, orderly: bool) -> bool {
    let (store, index) = (&shared.cache.store, &shared.cache.index);
    let path = shared.cache.config.path().display();
    let note = || {
        if let Some(reason) = shared.cache.missed_files() {
            return Err(io::Error::other(reason));
        }
        if shared.cache.has_flush_failed() {
            return Err(io::Error::other("a flush had failed while it was open"));
        }
        index.write_all_uses();
        // The data first: a clean flag must not be on disk before what it vouches for.
        store.sync()?;
        index.sync()?;
        index.write_session(shared.cache.config.clock.now_ms(), true)?;
        index.sync()?;
        // Only hints: the shutdown is noted without them.
        index.save_ghosts();
        Ok(())
    };
    let noted =
        if orderly { note() } else { Err(io::Error::other("not all was done that was asked for")) };
    if let Err(error) = &noted {
        log::error!("{path} is not marked as closed in order: {error}");
        if orderly && shared.cache.missed_files().is_none() {
            // A later sync that succeeds says nothing of what this one dropped.
            index.trust_none();
            if let Err(error) = index.write_session(shared.cache.config.clock.now_ms(), false) {
                log::error!("{path}: cannot note that: {error}");
            }
        }
    }
    match store.release().and_then(|()| index.release_file()) {
        Ok(()) => shared.cache.open_store.note_closed(),
        Err(error) => log::error!("{path} stays locked until this process ends: {error}"),
    }
    noted.is_ok()
}
