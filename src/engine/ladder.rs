//! Setting up the best ring that the kernel has, and finding out whether it works.

use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};

use super::refusal::Refusal;

/// How long a ring may take to answer when it is tried out.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Set-up flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flavor {
    pub(super) name: &'static str,
    pub(super) submit_all: bool,
    pub(super) coop_taskrun: bool,
    pub(super) single_issuer: bool,
    pub(super) defer_taskrun: bool,
}

/// Best first; each step down runs on an older kernel: 6.1, 6.0, 5.19, and 5.11.
const LADDER: [Flavor; 4] = [
    Flavor {
        name: "single_issuer+defer_taskrun+coop_taskrun",
        submit_all: true,
        coop_taskrun: true,
        single_issuer: true,
        defer_taskrun: true,
    },
    Flavor {
        name: "single_issuer+coop_taskrun",
        submit_all: true,
        coop_taskrun: true,
        single_issuer: true,
        defer_taskrun: false,
    },
    Flavor {
        name: "coop_taskrun",
        submit_all: true,
        coop_taskrun: true,
        single_issuer: false,
        defer_taskrun: false,
    },
    Flavor {
        name: "plain",
        submit_all: false,
        coop_taskrun: false,
        single_issuer: false,
        defer_taskrun: false,
    },
];

/// The best ring that `set_up` (the kernel's, in tests a worse one) gives.
///
/// # Errors
/// Why there is none that works.
pub(super) fn climb(
    entries: u32,
    set_up: impl Fn(u32, Flavor) -> io::Result<IoUring>,
) -> Result<(IoUring, Flavor), Refusal> {
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for flavor in LADDER {
        match set_up(entries, flavor) {
            Ok(mut ring) => {
                try_out(&mut ring)?;
                return Ok((ring, flavor));
            }
            // An unknown flag is EINVAL; anything else would be refused on every step.
            Err(error) => {
                let is_unknown = error.raw_os_error() == Some(libc::EINVAL);
                refusal = error;
                if !is_unknown {
                    break;
                }
            }
        }
    }
    Err(Refusal::of_call("io_uring_setup", &refusal))
}

/// A ring of the kernel's.
pub(super) fn set_up(entries: u32, flavor: Flavor) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp();
    if flavor.submit_all {
        builder.setup_submit_all();
    }
    if flavor.coop_taskrun {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    if flavor.single_issuer {
        builder.setup_single_issuer();
    }
    if flavor.defer_taskrun {
        builder.setup_defer_taskrun();
    }
    builder.build(entries)
}

/// What the engine asks of a ring.
const OPERATIONS: [(u8, &str); 6] = [
    (opcode::Read::CODE, "IORING_OP_READ"),
    (opcode::Write::CODE, "IORING_OP_WRITE"),
    (opcode::Readv::CODE, "IORING_OP_READV"),
    (opcode::Writev::CODE, "IORING_OP_WRITEV"),
    (opcode::Fsync::CODE, "IORING_OP_FSYNC"),
    (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
];

/// A ring is only a beginning: a filter may deny to enter it, and an old kernel may lack what is asked of it.
fn try_out(ring: &mut IoUring) -> Result<(), Refusal> {
    if !ring.params().is_feature_ext_arg() {
        return Err(Refusal::of_lack("timed wait (IORING_FEAT_EXT_ARG)"));
    }
    let mut probe = Probe::new();
    // Where probing is denied the trial has to do: every kernel with that timed wait has these operations.
    if ring.submitter().register_probe(&mut probe).is_ok()
        && let Some((_, name)) = OPERATIONS.iter().find(|(code, _)| !probe.is_supported(*code))
    {
        return Err(Refusal::of_lack(name));
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
