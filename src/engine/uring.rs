//! The io_uring engine: one ring, one thread, no spinning.
//!
//! Life of a transfer: `submit` fills a submission entry; `reap` enters the kernel once with all entries and waits for
//! at least one completion unless told not to. A read of the waker's eventfd is always armed, so that new work ends the
//! wait. Errors and short transfers are the caller's to judge: they come back as the kernel reports them.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::refusal::Refusal;
use super::registered_memory::RegisteredMemory;
use super::registered_memory::RingMemory;
use super::{Action, Engine, Reaped, Transfer, Waker, posix};
use crate::base::system::fork::ClosedOnFork;
use crate::engine::EngineError;
use crate::format::names::FILE_MODE;

const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// Target of every armed eventfd read. Nobody looks at it; static, so that no read can outlive it.
static WAKE_COUNT: AtomicU64 = AtomicU64::new(0);

/// io_uring behind the [`Engine`] trait.
pub struct UringEngine {
    // The ring keeps the files of its transfers open, and so their locks.
    _closed_on_fork: ClosedOnFork<RawFd>,
    ring: IoUring,
    flags: RingFlags,
    memory: Option<RingMemory>,
    /// Whether the kernel has IORING_OP_FTRUNCATE (6.9).
    pub(super) can_truncate: bool,
    waker: Arc<Waker>,
    pub(super) wake_armed: bool,
    /// Completions that were taken to make room, for the next reap.
    early: Vec<Reaped>,
}

impl UringEngine {
    /// A ring for `queue_depth` transfers. Call it on the thread that will reap: SINGLE_ISSUER binds the ring to it.
    ///
    /// # Errors
    /// `EngineError::Unavailable` when the kernel refuses every ring, or gives one that does not work.
    pub fn new(queue_depth: usize, waker: Arc<Waker>) -> Result<Self, EngineError> {
        Self::with(queue_depth, waker, set_up)
    }

    /// The same engine, which uses memory that is registered in `memory`. It has all of it from the start: where the kernel cannot
    /// clone a table (before 6.12) it pins all pages once more, 72 ms a GiB, for which no transfer should wait.
    pub(crate) fn with_memory(mut self, memory: &Arc<RegisteredMemory>) -> Self {
        let mut own = RingMemory::new(memory, &self.waker);
        if own.is_outdated() {
            own.synchronise(self.ring.as_raw_fd());
        }
        self.memory = Some(own);
        self
    }

    /// A ring that `set_up` gives: the kernel's, or in tests that of an older one.
    pub(super) fn with(
        queue_depth: usize,
        waker: Arc<Waker>,
        set_up: impl Fn(u32, RingFlags) -> io::Result<IoUring>,
    ) -> Result<Self, EngineError> {
        // Beside the transfers: the armed wake-up and a cancel.
        let entries = (queue_depth + 2).next_power_of_two() as u32;
        let (ring, flags) = negotiate(entries, set_up).map_err(EngineError::Unavailable)?;
        let closed_on_fork = ClosedOnFork::new(ring.as_raw_fd());
        Ok(Self {
            _closed_on_fork: closed_on_fork,
            memory: None,
            can_truncate: supports(&ring, opcode::Ftruncate::CODE),
            ring,
            flags,
            waker,
            wake_armed: false,
            early: Vec::new(),
        })
    }

    #[cfg(test)]
    pub(super) fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), EngineError> {
        // SAFETY: the entry's memory outlives its completion: for transfers by the contract of `Engine::submit`, for
        // the wake-up read because its target is static.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.hand_over()?;
        }
        Ok(())
    }

    /// Gives the kernel what is queued, or as much of it as it takes.
    fn hand_over(&mut self) -> Result<(), EngineError> {
        self.enter(Some(Duration::ZERO))?;
        // An older kernel takes nothing while completions overflow: make room.
        let mut early = std::mem::take(&mut self.early);
        self.take_completions(&mut early);
        self.early = early;
        Ok(())
    }

    /// Takes over what was registered and unregistered since it last did.
    fn follow_memory(&mut self) -> Result<(), EngineError> {
        if !self.memory.as_ref().is_some_and(RingMemory::is_outdated) {
            return Ok(());
        }
        // What is queued names buffers by their number in the table of now.
        while !self.ring.submission().is_empty() {
            self.hand_over()?;
        }
        if let Some(memory) = &mut self.memory {
            memory.synchronise(self.ring.as_raw_fd());
        }
        Ok(())
    }

    /// Number of the registered buffer that a transfer is wholly in. One of two vectors never is: the second is bounce memory.
    ///
    /// # Safety
    /// The transfer's vectors are valid.
    unsafe fn buffer_of(&mut self, transfer: Transfer) -> Result<Option<u16>, EngineError> {
        if !matches!(transfer.action, Action::Read | Action::Write) || transfer.vector_count != 1 {
            return Ok(None);
        }
        self.follow_memory()?;
        // SAFETY: the contract of this function; there is one vector.
        let vector = unsafe { *transfer.vectors };
        Ok(self.memory.as_ref().and_then(|memory| memory.find(vector)))
    }

    fn arm_wake(&mut self) -> Result<(), EngineError> {
        if self.wake_armed {
            return Ok(());
        }
        let read = opcode::Read::new(Fd(self.waker.descriptor()), WAKE_COUNT.as_ptr().cast(), 8)
            .build()
            .user_data(WAKE);
        self.push(&read)?;
        self.wake_armed = true;
        Ok(())
    }

    fn enter(&mut self, timeout: Option<Duration>) -> Result<(), EngineError> {
        let mut submissions = self.ring.submission();
        submissions.sync();
        // The kernel has nothing to be given, and nothing to give but what is in the ring already.
        let is_needless = timeout == Some(Duration::ZERO)
            && submissions.is_empty()
            && !submissions.taskrun()
            && !submissions.cq_overflow();
        drop(submissions);
        if is_needless && self.flags == RingFlags::DeferTaskrun {
            return Ok(());
        }
        let submitter = self.ring.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(1),
            Some(Duration::ZERO) => submitter.submit(),
            Some(limit) => {
                let timespec = Timespec::from(limit);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            }
        };
        let Err(source) = entered else { return Ok(()) };
        match source.raw_os_error() {
            // A signal, the time limit, or completions that must be taken first: look at the completions.
            Some(libc::EINTR | libc::ETIME | libc::EBUSY) => Ok(()),
            Some(libc::EAGAIN) => {
                // The kernel is out of memory for requests: give it a moment, the entries stay queued.
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            _ => Err(EngineError::Failed { operation: "io_uring_enter", source }),
        }
    }

    fn take_completions(&mut self, reaped: &mut Vec<Reaped>) {
        for completion in self.ring.completion() {
            match completion.user_data() {
                WAKE => self.wake_armed = false,
                CANCEL => {}
                token => {
                    reaped.push(Reaped { token: token as usize, result: completion.result() });
                }
            }
        }
    }
}

impl Engine for UringEngine {
    fn description(&self) -> String {
        format!("io_uring ({})", self.flags.name())
    }

    fn takes_write_streams(&self) -> bool {
        true
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        if transfer.action == Action::Truncate && !self.can_truncate {
            // Here: of what is cut off, a block at most was written.
            // SAFETY: the contract of this function.
            let result = unsafe { posix::perform(transfer) };
            self.early.push(Reaped { token: transfer.token, result });
            return Ok(());
        }
        // SAFETY: the contract of this function, here and below.
        let buffer = unsafe { self.buffer_of(transfer) }?;
        // SAFETY: as above.
        let entry = unsafe { entry_of(transfer, buffer) };
        self.push(&entry.user_data(transfer.token as u64))
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        self.follow_memory()?;
        self.arm_wake()?;
        reaped.append(&mut self.early);
        let already_there = !reaped.is_empty() || !self.ring.completion().is_empty();
        self.enter(if already_there { Some(Duration::ZERO) } else { timeout })?;
        self.take_completions(reaped);
        Ok(())
    }

    fn cancel_all(&mut self) {
        // Kernels before 5.19 answer EINVAL, and what is under way ends by itself.
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCEL);
        if let Err(error) = self.push(&cancel) {
            log::warn!("cannot cancel transfers: {error}");
        }
    }
}

/// The submission entry of a transfer, with memory in the registered `buffer`, if it is in one.
///
/// # Safety
/// The transfer's vectors and name are valid.
pub(super) unsafe fn entry_of(transfer: Transfer, buffer: Option<u16>) -> squeue::Entry {
    let file = Fd(transfer.file);
    let offset = transfer.offset_bytes;
    let (vectors, count) = (transfer.vectors, transfer.vector_count as u32);
    match (transfer.action, transfer.vector_count) {
        (Action::Sync, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        (Action::SyncDirectory, _) => opcode::Fsync::new(file).build(),
        (Action::Preallocate, _) => opcode::Fallocate::new(file, offset).build(),
        (Action::Truncate, _) => opcode::Ftruncate::new(file, offset).build(),
        (Action::Open(flags), _) => {
            let open = opcode::OpenAt::new(file, transfer.name);
            open.flags(flags).mode(FILE_MODE).build()
        }
        (Action::Read | Action::Write, 1) => {
            // SAFETY: the caller vouches for one valid vector.
            let vector = unsafe { *vectors };
            let (memory, length) = (vector.iov_base.cast::<u8>(), vector.iov_len as u32);
            let is_read = transfer.action == Action::Read;
            match buffer {
                None if is_read => opcode::Read::new(file, memory, length).offset(offset).build(),
                None => {
                    let write = opcode::Write::new(file, memory, length).offset(offset);
                    write.write_stream(transfer.write_stream).build()
                }
                Some(buffer) if is_read => {
                    opcode::ReadFixed::new(file, memory, length, buffer).offset(offset).build()
                }
                Some(buffer) => {
                    let write = opcode::WriteFixed::new(file, memory, length, buffer);
                    write.offset(offset).write_stream(transfer.write_stream).build()
                }
            }
        }
        (Action::Read, _) => opcode::Readv::new(file, vectors, count).offset(offset).build(),
        (Action::Write, _) => {
            let write = opcode::Writev::new(file, vectors, count).offset(offset);
            write.write_stream(transfer.write_stream).build()
        }
    }
}

fn supports(ring: &IoUring, code: u8) -> bool {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(code)
}

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
