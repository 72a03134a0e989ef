//! What a store logs, from whichever thread.

use std::path::Path;
use std::sync::{Mutex, Once};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Keeps what is logged from here on, of all stores of this process.
pub(crate) fn keep() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&Log).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
}

/// The lines that name this directory and have this text.
pub(crate) fn lines(directory: &Path, text: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    let name = directory.to_str().unwrap();
    lines.iter().filter(|line| line.contains(name) && line.contains(text)).cloned().collect()
}

/// How many failures at this store the log tells of as a number of `what`, and in how many lines.
#[allow(dead_code, reason = "not every suite counts")]
pub(crate) fn counted(directory: &Path, what: &str) -> (u64, usize) {
    let lines = lines(directory, &format!(" more {what} in "));
    let number = |line: &String| -> u64 {
        let (before, _) = line.split_once(" more ").unwrap();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    (lines.iter().map(number).sum(), lines.len())
}
