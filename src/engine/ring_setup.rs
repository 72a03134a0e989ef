//! Setting up the best ring that the kernel has, and finding out whether it works.

use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use super::refusal::Refusal;

/// How long a ring may take to answer when it is tried out.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Set-up flags of a ring, and the kernel it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingFlags {
    /// 5.11.
    Plain,
    /// 6.1.
    DeferTaskrun,
}

impl RingFlags {
    const BEST_FIRST: [Self; 2] = [Self::DeferTaskrun, Self::Plain];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DeferTaskrun => "single_issuer+defer_taskrun+coop_taskrun",
            Self::Plain => "plain",
        }
    }
}

/// The best ring that `set_up` (the kernel's, in tests a worse one) gives.
///
/// # Errors
/// Why there is none that works.
pub(super) fn negotiate(
    entries: u32,
    set_up: impl Fn(u32, RingFlags) -> io::Result<IoUring>,
) -> Result<(IoUring, RingFlags), Refusal> {
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in RingFlags::BEST_FIRST {
        match set_up(entries, flags) {
            Ok(mut ring) => {
                try_out(&mut ring)?;
                return Ok((ring, flags));
            }
            Err(error) => refusal = error,
        }
        // An unknown flag is EINVAL; anything else would be refused with fewer flags too.
        if refusal.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(Refusal::of_call("io_uring_setup", &refusal))
}

pub(super) fn set_up(entries: u32, flags: RingFlags) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp();
    if flags == RingFlags::DeferTaskrun {
        builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    builder.build(entries)
}

/// A ring is only a beginning: a filter may deny to enter it, and an old kernel may lack what is asked of it. One with the timed wait
/// (5.11) has all operations that the engine needs.
fn try_out(ring: &mut IoUring) -> Result<(), Refusal> {
    if !ring.params().is_feature_ext_arg() {
        return Err(Refusal::too_old());
    }
    // SAFETY: it names no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    debug_assert!(pushed.is_ok(), "an empty ring is full");
    let timespec = Timespec::from(TRIAL_TIMEOUT);
    while ring.completion().next().is_none() {
        match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec)) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => {
                return Err(Refusal::of_call("io_uring_enter", &error));
            }
            _ => {}
        }
    }
    Ok(())
}
