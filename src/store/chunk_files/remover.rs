//! The thread that removes the files of freed chunks: a DELETE is answered long before.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::Files;
use crate::base::sync::thread::{Builder, JoinHandle};
use crate::base::thread::join;

pub(super) fn start_removals(files: &Arc<Files>) -> io::Result<JoinHandle<()>> {
    let files = Arc::clone(files);
    Builder::new().name("kvring-remover".into()).spawn(move || remove(&files))
}

/// Ends the thread when everything is removed, or after `timeout` and the removal that is under way then: the next open removes
/// the rest.
pub(super) fn end_removals(thread: JoinHandle<()>, files: &Files, timeout: Duration) {
    files.state.lock().ends = Some(Instant::now() + timeout);
    files.work.notify_all();
    join(thread, "what it left is removed at open");
}

fn remove(files: &Files) {
    let mut state = files.state.lock();
    loop {
        if state.ends.is_some_and(|ends| state.account.leaving.is_empty() || Instant::now() >= ends)
        {
            return;
        }
        let next = if state.deferrals == 0 { state.account.leaving.pop_front() } else { None };
        let Some(extent) = next else {
            state = files.work.wait(state);
            continue;
        };
        let Some(digest) = state.account.digest_of(extent.file) else { continue };
        drop(state);
        // What replaces it may not be found by a start yet.
        if !(files.are_cleared)() {
            return;
        }
        let outcome = files.remove(digest, extent.file);
        state = files.state.lock();
        let were_awaited = state.account.is_awaited();
        state.account.end_removal(extent, outcome.is_ok(), &files.space);
        files.removed.notify_all();
        if were_awaited {
            files.wakers.iter().for_each(|waker| waker.wake());
        }
    }
}
