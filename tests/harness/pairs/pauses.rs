//! Threads of this process stop for a moment at any instruction, as they do where processors are short: whoever holds a lock then holds
//! it for long, and what lies between two steps of a thread can be seen.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libc::{SA_RESTART, SIGUSR2, c_int};

use crate::common::random::Random;

const BETWEEN_PAUSES: Duration = Duration::from_micros(200);
const PAUSE_NS: i64 = 1_000_000;

extern "C" fn pause(_signal: c_int) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
    // SAFETY: both calls may be made in a handler of a signal. The place of errno is this thread's, and errno is as it was afterwards.
    unsafe {
        let errno = *libc::__errno_location();
        libc::nanosleep(&raw const time, std::ptr::null_mut());
        *libc::__errno_location() = errno;
    }
}

fn handle_signals() {
    // SAFETY: all zeros are an action without flags and mask; the handler does nothing that a signal may interrupt.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = pause as *const () as usize;
        action.sa_flags = SA_RESTART;
        libc::sigaction(SIGUSR2, &raw const action, std::ptr::null_mut());
    }
}

/// Has threads pause, one after the other, until it is over.
pub(crate) fn pause_threads(mut random: Random, is_over: &AtomicBool) {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(handle_signals);
    let own = nix::unistd::gettid().as_raw();
    while !is_over.load(Ordering::SeqCst) {
        let listed = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
        let threads: Vec<i32> = listed.filter_map(number).filter(|thread| *thread != own).collect();
        // Listed for some pauses: a thread that has ended since is not found.
        for _ in 0..20 {
            let thread = random.choose(&threads);
            // SAFETY: the signal is handled in this process, whose threads these are.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGUSR2) };
            thread::sleep(BETWEEN_PAUSES);
        }
    }
}
