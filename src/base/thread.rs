//! Threads of ours: ending those that may be inside a system call.

use std::time::Duration;

use crate::base::sync::is_finished;
use crate::base::sync::thread::{JoinHandle, sleep};
use crate::base::time::Patience;

/// How often it is looked at: soon at first, as nearly all end at once.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LATER_LOOKS: Duration = Duration::from_millis(10);

/// Waits as long as `patience` lasts for a thread that was told to end, and says whether it did: none can be stopped in a system call
/// that a device, or a frozen file system, does not give back. Such a one goes on with all that it holds.
pub(crate) fn has_ended(thread: JoinHandle<()>, patience: &mut Patience) -> bool {
    let mut pause = FIRST_LOOK;
    while !is_finished(&thread) {
        if patience.step().is_none() {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(LATER_LOOKS);
    }
    // Its panic was told.
    let _ = thread.join();
    true
}

/// Waits for a thread that was told to end. If it had ended in a panic, `lost` tells the log what that means.
pub(crate) fn join(thread: JoinHandle<()>, lost: &str) {
    let name = thread.thread().name().unwrap_or("a thread").to_owned();
    if thread.join().is_err() {
        log::error!("{name} had ended in a panic: {lost}");
    }
}
