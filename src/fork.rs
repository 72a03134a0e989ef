//! What a fork of the owner must not keep: descriptors that carry the store's locks, or that hold files which do.
//!
//! A lock by flock(2) belongs to the open file, which a fork shares: it would outlive its owner in every fork that
//! does. So the child puts /dev/null in the place of each such descriptor, before it runs anything else.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors that can be listed; more than any number of stores in one process needs. Beyond it a fork keeps the rest.
const MAX_LISTED: usize = 8192;

const NONE: RawFd = -1;

static LISTED: [AtomicI32; MAX_LISTED] = [const { AtomicI32::new(NONE) }; MAX_LISTED];
/// What stands in for them in a fork; opened before it is needed, as a fork may only do what a signal handler may.
static STAND_IN: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// While it lives, forks give the descriptor up. Drop it before the descriptor is closed.
#[derive(Debug)]
pub(crate) struct GivenUpInForks {
    descriptor: RawFd,
    position: Option<usize>,
}

impl GivenUpInForks {
    /// Lists an open descriptor.
    pub(crate) fn new(descriptor: RawFd) -> Self {
        STAND_IN.get_or_init(install);
        let free = |listed: &AtomicI32| {
            // Chunks' own files come and go: most of the list is only read.
            listed.load(Ordering::Relaxed) == NONE
                && listed
                    .compare_exchange(NONE, descriptor, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
        };
        Self { descriptor, position: LISTED.iter().position(free) }
    }
}

impl Drop for GivenUpInForks {
    fn drop(&mut self) {
        if let Some(position) = self.position {
            // In a fork the place may be another's by now.
            let _ = LISTED[position].compare_exchange(
                self.descriptor,
                NONE,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
        }
    }
}

/// Closes the file behind a descriptor of ours that has to stay valid until its owner closes it. Says whether it did.
pub(crate) fn close_file_behind(descriptor: RawFd) -> bool {
    let Some(stand_in) = STAND_IN.get_or_init(install) else { return false };
    // SAFETY: no pointers; both are open descriptors of this process, and the place keeps a valid one.
    let placed = unsafe { libc::dup3(stand_in.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
    placed == descriptor
}

fn install() -> Option<OwnedFd> {
    let stand_in = std::fs::File::open("/dev/null").ok()?;
    // SAFETY: `give_up` does in the child only what is safe there: atomic loads and dup3(2).
    let status = unsafe { libc::pthread_atfork(None, None, Some(give_up)) };
    (status == 0).then(|| stand_in.into())
}

extern "C" fn give_up() {
    let Some(Some(stand_in)) = STAND_IN.get() else { return };
    for listed in &LISTED {
        // Once: what a fork of this fork finds under that number may be anything.
        let descriptor = listed.swap(NONE, Ordering::SeqCst);
        if descriptor != NONE {
            // SAFETY: both are open descriptors of this process; the place keeps a valid one, so that whoever owns
            // it here can still close it.
            unsafe { libc::dup3(stand_in.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
        }
    }
}
