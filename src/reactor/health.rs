//! Whether the device below a store still works, judged by the errors of its transfers.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// Errors of the device in a row, with nothing moved that way in between, and the time they go on for, from which on it
/// counts as failed. Some bad sectors do not reach it: what fails a second time fails its operation only.
const MOST_ERRORS_IN_A_ROW: u32 = 16;
const SHORTEST_ROW: Duration = Duration::from_millis(500);

/// Failed operations in a row that the log tells of one by one.
const MOST_TOLD_IN_A_ROW: u32 = 16;

/// Tells of a store, by its number, that has failed.
pub(crate) type Alarm = Sender<usize>;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
    Sync,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Sync => "syncs",
        }
    }
}

/// Errors in a row.
#[derive(Default)]
struct Row {
    errors: AtomicU32,
    /// Lines that the log has of them.
    told: AtomicU32,
    since: Mutex<Option<Instant>>,
}

impl Row {
    fn end(&self) {
        if self.errors.load(Ordering::Relaxed) != 0 {
            let mut since = self.since.lock();
            self.errors.store(0, Ordering::Relaxed);
            self.told.store(0, Ordering::Relaxed);
            *since = None;
        }
    }

    /// How many there are with this one, and for how long.
    fn add(&self, now: Instant) -> (u32, Duration) {
        let mut since = self.since.lock();
        let errors = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
        (errors, now.saturating_duration_since(*since.get_or_insert(now)))
    }
}

/// What is known of one store's device.
#[derive(Default)]
pub(crate) struct Health {
    /// Of each way: a device that has become read-only still reads, and one that cannot flush still takes writes.
    rows: [Row; 3],
    has_failed: AtomicBool,
    reason: Mutex<Option<String>>,
    alarm: Mutex<Option<(usize, Alarm)>>,
}

impl Health {
    /// Who is to be told when it fails, and as which number.
    pub(crate) fn set_alarm(&self, number: usize, alarm: Option<Alarm>) {
        *self.alarm.lock() = alarm.map(|alarm| (number, alarm));
    }

    /// Something was read, written, or made durable.
    pub(super) fn note_success(&self, way: Way) {
        self.rows[way as usize].end();
    }

    /// A transfer failed with `errno` now; making a file is a write.
    pub(super) fn note_error(&self, way: Way, errno: i32, now: Instant) {
        if !is_of_device(errno) {
            return;
        }
        let is_gone = matches!(errno, libc::ENODEV | libc::ENXIO);
        let (errors, lasted) = self.rows[way as usize].add(now);
        if is_gone || (errors >= MOST_ERRORS_IN_A_ROW && lasted >= SHORTEST_ROW) {
            self.fail(|| match is_gone {
                true => format!("it is gone: {}", io::Error::from_raw_os_error(errno)),
                false => format!(
                    "{errors} {} in a row failed, the last one with: {}",
                    way.name(),
                    io::Error::from_raw_os_error(errno)
                ),
            });
        }
    }

    /// Whether so many errors came in a row that it is the device, and not some bad sectors.
    pub(super) fn fails_in_a_row(&self, way: Way) -> bool {
        self.has_failed()
            || self.rows[way as usize].errors.load(Ordering::Relaxed) >= MOST_ERRORS_IN_A_ROW
    }

    /// Whether one more failed operation of the store at `path` is worth a line in the log: the first ones of a row are.
    pub(super) fn may_tell(&self, way: Way, path: &Path) -> bool {
        if self.has_failed() {
            return false;
        }
        let told = self.rows[way as usize].told.fetch_add(1, Ordering::Relaxed);
        if told == MOST_TOLD_IN_A_ROW {
            let (path, way) = (path.display(), way.name());
            log::warn!(
                "{path}: further {way} in a row that fail are counted, and not told one by one"
            );
        }
        told < MOST_TOLD_IN_A_ROW
    }

    /// It has failed, whatever for. Only the first reason counts.
    pub(crate) fn fail(&self, reason: impl FnOnce() -> String) {
        if self.has_failed.swap(true, Ordering::SeqCst) {
            return;
        }
        *self.reason.lock() = Some(reason());
        if let Some((number, alarm)) = &*self.alarm.lock() {
            // Nobody listens any more while the connector is closed.
            let _ = alarm.send(*number);
        }
    }

    /// It stays in use all the same, for want of another: it may fail again.
    pub(crate) fn stay_in_use(&self) {
        self.rows.iter().for_each(Row::end);
        self.has_failed.store(false, Ordering::SeqCst);
    }

    /// Whether it has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Why, if it has.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }
}

/// Whether who opens a path and gets `errno` has lost the device below it.
pub(crate) fn is_gone(errno: i32) -> bool {
    is_of_device(errno) || errno == libc::ENOMEDIUM
}

/// Whether `errno` speaks of the device and not of the request: what the kernel makes of block layer errors
/// (`blk_errors` in its block/blk-core.c), and of a file system that has given up (read-only).
fn is_of_device(errno: i32) -> bool {
    matches!(
        errno,
        libc::EIO
            | libc::ENODEV
            | libc::ENXIO
            | libc::EROFS
            | libc::ETIMEDOUT
            | libc::ENOLINK
            | libc::EREMOTEIO
            | libc::EBADE
            | libc::ENODATA
            | libc::EILSEQ
    )
}

/// Whether `errno` may be the fault of one sector: what the kernel makes of errors of the medium (an NVMe drive's
/// unrecovered read is ENODATA), of the drive's checksums, and of errors of which it knows nothing more.
pub(super) fn may_be_one_sector(errno: i32) -> bool {
    matches!(errno, libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EREMOTEIO)
}

/// The errno of a failed transfer; an end of the file where there should be none is an error of the device too.
pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn watched() -> (Health, std::sync::mpsc::Receiver<usize>) {
        let (sender, receiver) = channel();
        let health = Health::default();
        health.set_alarm(3, Some(sender));
        (health, receiver)
    }

    #[test]
    fn errors_in_a_row_are_a_failure_and_others_are_not() {
        let (health, alarms) = watched();
        let begin = Instant::now();
        let end = begin + SHORTEST_ROW;
        for _ in 0..10 {
            health.note_error(Way::Read, libc::EIO, begin);
            (2..MOST_ERRORS_IN_A_ROW).for_each(|_| health.note_error(Way::Read, libc::EIO, end));
            health.note_success(Way::Read);
        }
        // Many at once, as where a batch meets a bad spot.
        (0..1000).for_each(|_| health.note_error(Way::Read, libc::EIO, begin));
        health.note_success(Way::Read);
        (0..100).for_each(|_| health.note_error(Way::Write, libc::ENOSPC, end));
        assert!(!health.has_failed() && alarms.try_recv().is_err());
        health.note_error(Way::Write, libc::EIO, begin);
        for _ in 1..MOST_ERRORS_IN_A_ROW {
            health.note_success(Way::Read);
            health.note_error(Way::Write, libc::EIO, end);
        }
        assert!(health.has_failed(), "that it still reads does not help");
        assert!(health.reason().unwrap().starts_with("16 writes in a row failed"));
        health.note_success(Way::Write);
        health.note_error(Way::Read, libc::ENODEV, end);
        assert_eq!(alarms.try_iter().collect::<Vec<_>>(), [3], "told once");
        health.stay_in_use();
        health.note_error(Way::Write, libc::EIO, end);
        assert!(!health.has_failed(), "it has another chance");
    }

    #[test]
    fn a_device_that_is_gone_fails_at_once() {
        let (health, alarms) = watched();
        health.note_error(Way::Read, libc::ENXIO, Instant::now());
        assert!(health.reason().unwrap().starts_with("it is gone"));
        assert_eq!(alarms.try_iter().count(), 1);
    }
}
