//! What a fork of the owner must not keep: descriptors that carry the store's locks, or that hold files which do.
//!
//! A lock by flock(2) belongs to the open file, which a fork shares: it would outlive its owner in every fork that
//! does. So the child puts /dev/null in the place of each such descriptor, before it runs anything else.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors that can be listed; more than any number of stores in one process needs. Beyond it a fork keeps the rest.
const MAX_LISTED: usize = 8192;

const NONE: RawFd = -1;

static LISTED: [AtomicI32; MAX_LISTED] = [const { AtomicI32::new(NONE) }; MAX_LISTED];
/// What stands in for them in a fork: a descriptor that stays open, opened before it is needed, as a fork may only do what a
/// signal handler may. No lock goes with it: a thread that had it would be missing in a fork.
static STAND_IN: AtomicI32 = AtomicI32::new(NONE);

/// An open file whose descriptor forks close.
#[derive(Debug)]
pub(crate) struct ClosedOnFork<F: AsRawFd = File> {
    file: F,
    position: Option<usize>,
}

impl<F: AsRawFd> ClosedOnFork<F> {
    /// Lists its descriptor.
    pub(crate) fn new(file: F) -> Self {
        stand_in();
        let descriptor = file.as_raw_fd();
        let free = |listed: &AtomicI32| {
            // Chunks' own files come and go: most of the list is only read.
            listed.load(Ordering::Relaxed) == NONE
                && listed
                    .compare_exchange(NONE, descriptor, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
        };
        Self { position: LISTED.iter().position(free), file }
    }

    /// Closes the file. The descriptor stays valid as long as this lives.
    pub(crate) fn close_behind(&self) {
        if let Some(stand_in) = stand_in() {
            // SAFETY: no pointers; both are open descriptors of this process, and the place keeps a valid one.
            unsafe { libc::dup3(stand_in, self.file.as_raw_fd(), libc::O_CLOEXEC) };
        }
    }
}

impl ClosedOnFork {
    /// Gives up the lock on the file, and closes it.
    pub(crate) fn release(&self) -> io::Result<()> {
        // Explicitly: it would stay with a descriptor that somebody else has of it.
        let unlocked = self.file.unlock();
        self.close_behind();
        unlocked
    }
}

impl<F: AsRawFd + AsFd> AsFd for ClosedOnFork<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<F: AsRawFd> Deref for ClosedOnFork<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.file
    }
}

/// Before the file is closed, as its descriptor may be another's afterwards.
impl<F: AsRawFd> Drop for ClosedOnFork<F> {
    fn drop(&mut self) {
        if let Some(position) = self.position {
            let (listed, descriptor) = (&LISTED[position], self.file.as_raw_fd());
            // In a fork the position may be another's by now.
            let _ = listed.compare_exchange(descriptor, NONE, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

/// The stand-in; none if it cannot be had.
fn stand_in() -> Option<RawFd> {
    let opened = STAND_IN.load(Ordering::SeqCst);
    if opened != NONE {
        return Some(opened);
    }
    let own = std::fs::File::open("/dev/null").ok()?;
    // SAFETY: `close_in_child` does in the child only what is safe there: atomic loads and dup3(2). Twice does no harm.
    if unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) } != 0 {
        return None;
    }
    match STAND_IN.compare_exchange(NONE, own.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst) {
        // It stays open.
        Ok(_) => Some(own.into_raw_fd()),
        Err(others) => Some(others),
    }
}

extern "C" fn close_in_child() {
    let stand_in = STAND_IN.load(Ordering::SeqCst);
    if stand_in == NONE {
        return;
    }
    for listed in &LISTED {
        // Once: what a fork of this fork finds under that number may be anything.
        let descriptor = listed.swap(NONE, Ordering::SeqCst);
        if descriptor != NONE {
            // SAFETY: both are open descriptors of this process; the place keeps a valid one, so that whoever owns
            // it here can still close it.
            unsafe { libc::dup3(stand_in, descriptor, libc::O_CLOEXEC) };
        }
    }
}
