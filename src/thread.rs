//! Ending threads of ours that may be inside a system call.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread may take to come back from a device, where it was told to end and has nothing else to wait for.
pub(crate) const LONGEST_RETURN: Duration = Duration::from_secs(10);

/// How long one may take that makes something durable: the file system may have much of others to write first.
pub(crate) const LONGEST_SYNC: Duration = Duration::from_secs(60);

/// How often it is looked at: soon at first, as nearly all end at once.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LATER_LOOKS: Duration = Duration::from_millis(10);

/// Waits until `deadline` for a thread that was told to end, and says whether it did: none can be stopped in a system call
/// that a device, or a frozen file system, does not give back. Such a one is left behind with all that it holds. What it
/// returned, or its panic, is the thread's.
pub(crate) fn join_until<T>(
    thread: JoinHandle<T>,
    deadline: Instant,
) -> Option<std::thread::Result<T>> {
    let mut pause = FIRST_LOOK;
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            let name = thread.thread().name().unwrap_or("a thread").to_owned();
            log::error!("{name} does not come back from the device: it is left behind");
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LATER_LOOKS);
    }
    Some(thread.join())
}

/// The same for a thread that returns nothing. Says whether it has ended; if in a panic, `lost` tells the log what that means.
pub(crate) fn has_ended(thread: JoinHandle<()>, deadline: Instant, lost: &str) -> bool {
    let name = thread.thread().name().unwrap_or("a thread").to_owned();
    let ended = join_until(thread, deadline);
    if ended.as_ref().is_some_and(Result::is_err) {
        log::error!("{name} had ended in a panic: {lost}");
    }
    ended.is_some()
}
