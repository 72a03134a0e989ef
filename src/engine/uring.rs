//! The io_uring engine: one ring, one thread, no spinning.
//!
//! Life of a transfer: `submit` fills a submission entry; `reap` enters the kernel once with all entries and waits for
//! at least one completion unless told not to. A read of the waker's eventfd is always armed, so that new work ends the
//! wait. Errors and short transfers are the caller's to judge: they come back as the kernel reports them.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::registered_files::RegisteredFiles;
use super::{Action, Engine, Reaped, Transfer, Waker};
use crate::error::EngineError;
use crate::fork::GivenUpInForks;

/// As of files that std makes; the umask takes its part.
const NEW_FILE_MODE: libc::mode_t = 0o666;

const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// Target of every armed eventfd read. Nobody looks at it; static, so that no read can outlive it.
static WAKE_COUNT: AtomicU64 = AtomicU64::new(0);

/// Set-up flags, best first; each step down runs on an older kernel.
#[derive(Clone, Copy, Debug)]
struct Flavor {
    name: &'static str,
    submit_all: bool,
    coop_taskrun: bool,
    single_issuer: bool,
    defer_taskrun: bool,
}

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

/// io_uring behind the [`Engine`] trait.
pub struct UringEngine {
    // The ring keeps the files of its transfers open, and so their locks.
    _given_up_in_forks: GivenUpInForks,
    ring: IoUring,
    flavor: Flavor,
    files: RegisteredFiles,
    /// Whether the kernel has IORING_OP_FTRUNCATE (6.9).
    can_cut: bool,
    waker: Arc<Waker>,
    wake_armed: bool,
    /// Completions that were taken to make room, for the next reap.
    early: Vec<Reaped>,
}

impl UringEngine {
    /// A ring for `queue_depth` transfers. Call it on the thread that will reap: SINGLE_ISSUER binds the ring to it.
    ///
    /// # Errors
    /// `EngineError::Unavailable` when the kernel refuses every flavor of ring.
    pub fn new(queue_depth: usize, waker: Arc<Waker>) -> Result<Self, EngineError> {
        Self::on_ladder(queue_depth, waker, &LADDER)
    }

    /// The same engine, which looks the file of each transfer up.
    #[must_use]
    pub fn without_registered_files(mut self) -> Self {
        self.files.is_available = false;
        self
    }

    fn on_ladder(
        queue_depth: usize,
        waker: Arc<Waker>,
        ladder: &[Flavor],
    ) -> Result<Self, EngineError> {
        // Beside the transfers: the armed wake-up and a cancel.
        let entries = (queue_depth + 2).next_power_of_two() as u32;
        let mut refusal = io::Error::from_raw_os_error(libc::ENOSYS);
        for &flavor in ladder {
            match build_ring(entries, flavor) {
                Ok(ring) if !ring.params().is_feature_ext_arg() => {
                    refusal = io::Error::other(
                        "the kernel's io_uring has no timed wait (IORING_FEAT_EXT_ARG)",
                    );
                }
                Ok(ring) => {
                    let given_up_in_forks = GivenUpInForks::new(ring.as_raw_fd());
                    return Ok(Self {
                        _given_up_in_forks: given_up_in_forks,
                        files: RegisteredFiles::new(&ring),
                        can_cut: supports(&ring, opcode::Ftruncate::CODE),
                        ring,
                        flavor,
                        waker,
                        wake_armed: false,
                        early: Vec::new(),
                    });
                }
                // An unknown flag is EINVAL; anything else would be refused on every step.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
                Err(source) => return Err(EngineError::Unavailable { source }),
            }
        }
        Err(EngineError::Unavailable { source: refusal })
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), EngineError> {
        // SAFETY: the entry's memory outlives its completion: for transfers by the contract of `Engine::submit`, for
        // the wake-up read because its target is static.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(Some(Duration::ZERO))?;
            // An older kernel takes nothing while completions overflow: make room.
            let mut early = std::mem::take(&mut self.early);
            self.take_completions(&mut early);
            self.early = early;
        }
        Ok(())
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
        if is_needless && self.flavor.coop_taskrun {
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
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // A signal, the time limit, or completions that must be taken first: look at the completions.
                Some(libc::EINTR | libc::ETIME | libc::EBUSY) => Ok(()),
                Some(libc::EAGAIN) => {
                    // The kernel is out of memory for requests: give it a moment, the entries stay queued.
                    std::thread::sleep(Duration::from_millis(1));
                    Ok(())
                }
                _ => Err(EngineError::Failed { operation: "io_uring_enter", source: error }),
            },
        }
    }

    fn take_completions(&mut self, reaped: &mut Vec<Reaped>) {
        for completion in self.ring.completion() {
            match completion.user_data() {
                WAKE => self.wake_armed = false,
                CANCEL => {}
                token => reaped.push(Reaped { token: token as usize, result: completion.result() }),
            }
        }
    }
}

impl Engine for UringEngine {
    fn description(&self) -> String {
        let files = if self.files.is_available { "+registered_files" } else { "" };
        format!("io_uring ({}{files})", self.flavor.name)
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        if transfer.action == Action::Cut && !self.can_cut {
            let result = cut_here(transfer);
            self.early.push(Reaped { token: transfer.token, result });
            return Ok(());
        }
        let (file, flags) = match transfer.is_lasting {
            true => self.files.name(&self.ring, transfer.file),
            // The ring would know another file by that number later.
            false => (Fd(transfer.file), squeue::Flags::empty()),
        };
        // SAFETY: the contract of this function.
        let entry = unsafe { entry_of(file, transfer) }.flags(flags);
        self.push(&entry.user_data(transfer.token as u64))
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        self.arm_wake()?;
        reaped.append(&mut self.early);
        let already_there = !reaped.is_empty() || !self.ring.completion().is_empty();
        self.enter(if already_there { Some(Duration::ZERO) } else { timeout })?;
        self.take_completions(reaped);
        Ok(())
    }

    fn cancel_all(&mut self) {
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCEL);
        if let Err(error) = self.push(&cancel) {
            log::warn!("cannot cancel transfers: {error}");
        }
    }
}

/// The submission entry of a transfer on `file`, which is the transfer's.
///
/// # Safety
/// The transfer's vectors and name are valid.
unsafe fn entry_of(file: Fd, transfer: Transfer) -> squeue::Entry {
    let offset = transfer.offset_bytes;
    let (vectors, count) = (transfer.vectors, transfer.vector_count as u32);
    match (transfer.action, transfer.vector_count) {
        (Action::Sync, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        (Action::SyncNames, _) => opcode::Fsync::new(file).build(),
        (Action::Reserve, _) => opcode::Fallocate::new(file, offset).build(),
        (Action::Cut, _) => opcode::Ftruncate::new(file, offset).build(),
        (Action::Open(flags), _) => {
            let open = opcode::OpenAt::new(Fd(transfer.file), transfer.name);
            open.flags(flags).mode(NEW_FILE_MODE).build()
        }
        (Action::Read, 1) => {
            // SAFETY: the caller vouches for one valid vector.
            let vector = unsafe { *vectors };
            let length = vector.iov_len as u32;
            opcode::Read::new(file, vector.iov_base.cast(), length).offset(offset).build()
        }
        (Action::Write, 1) => {
            // SAFETY: the caller vouches for one valid vector.
            let vector = unsafe { *vectors };
            let length = vector.iov_len as u32;
            opcode::Write::new(file, vector.iov_base.cast(), length).offset(offset).build()
        }
        (Action::Read, _) => opcode::Readv::new(file, vectors, count).offset(offset).build(),
        (Action::Write, _) => opcode::Writev::new(file, vectors, count).offset(offset).build(),
    }
}

fn supports(ring: &IoUring, code: u8) -> bool {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(code)
}

/// Cuts a file without the ring. Blocks of it go, which takes a moment only where they are many: here it is one at most.
fn cut_here(transfer: Transfer) -> i32 {
    // SAFETY: no pointers; whose descriptor it is, the submitter vouches for.
    match unsafe { libc::ftruncate(transfer.file, transfer.offset_bytes as i64) } {
        0 => 0,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

fn build_ring(entries: u32, flavor: Flavor) -> io::Result<IoUring> {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file_with(content: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn carry_out(engine: &mut UringEngine, transfer: Transfer) -> i32 {
        // SAFETY: what it names lives in the caller, past the loop below, which reaps it.
        unsafe { engine.submit(transfer) }.unwrap();
        let mut reaped = Vec::new();
        while reaped.is_empty() {
            engine.reap(None, &mut reaped).unwrap();
        }
        assert_eq!((reaped.len(), reaped[0].token), (1, transfer.token));
        reaped[0].result
    }

    /// Four bytes of the file.
    fn read_through(engine: &mut UringEngine, file: &std::fs::File, is_lasting: bool) -> [u8; 4] {
        let mut memory = [0_u8; 4];
        let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 4 };
        let transfer = Transfer {
            is_lasting,
            offset_bytes: 3,
            vectors: &raw const vector,
            vector_count: 1,
            ..Transfer::without_memory(Action::Read, file.as_raw_fd(), 42)
        };
        assert_eq!(carry_out(engine, transfer), 4);
        memory
    }

    #[test]
    fn every_step_of_the_ladder_works() {
        for flavor in LADDER {
            let mut engine = UringEngine::on_ladder(8, Waker::new().unwrap(), &[flavor]).unwrap();
            assert_eq!(&read_through(&mut engine, &file_with(b"0123456789"), true), b"3456");
            assert!(engine.description().contains(flavor.name));
        }
    }

    #[test]
    fn files_are_told_apart_whether_they_are_registered_or_not() {
        let files = [b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"].map(|content| file_with(content));
        let engine = || UringEngine::new(8, Waker::new().unwrap()).unwrap();
        for mut engine in [engine(), engine().without_registered_files()] {
            for _ in 0..2 {
                let read = files.each_ref().map(|file| read_through(&mut engine, file, true));
                assert_eq!(read, [*b"3456", *b"defg", *b"DEFG"]);
            }
        }
    }

    /// Past the room for them they are looked up.
    #[test]
    fn more_files_than_can_be_registered() {
        let files: Vec<_> = (0..600).map(|_| file_with(b"0123456789")).collect();
        let mut engine = UringEngine::new(8, Waker::new().unwrap()).unwrap();
        for file in &files {
            assert_eq!(&read_through(&mut engine, file, true), b"3456");
        }
    }

    /// A descriptor's number is another file's as soon as it is closed.
    #[test]
    fn files_that_come_and_go_are_not_mixed_up() {
        let mut engine = UringEngine::new(8, Waker::new().unwrap()).unwrap();
        let (first, second) = (file_with(b"0123456789"), file_with(b"abcdefghij"));
        assert_eq!(&read_through(&mut engine, &first, false), b"3456");
        // SAFETY: no pointers; the first file is closed, and its number is the second one's until it is closed again.
        assert!(unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) } >= 0);
        assert_eq!(&read_through(&mut engine, &first, false), b"defg");
        assert!(engine.files.is_empty());
    }

    #[test]
    fn files_are_made_reserved_cut_and_opened() {
        let directory = tempfile::tempdir().unwrap();
        let opened = std::fs::File::open(directory.path()).unwrap();
        let name = c"some";
        let mut engine = UringEngine::new(8, Waker::new().unwrap()).unwrap();
        assert!(engine.can_cut, "this kernel is newer than 6.9");
        let open = |engine: &mut UringEngine, flags| {
            let action = Action::Open(flags | libc::O_CLOEXEC);
            let name = name.as_ptr();
            let transfer =
                Transfer { name, ..Transfer::without_memory(action, opened.as_raw_fd(), 7) };
            carry_out(engine, transfer)
        };
        assert_eq!(open(&mut engine, libc::O_RDONLY), -libc::ENOENT);
        let made = open(&mut engine, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL);
        assert!(made >= 0);
        assert_eq!(open(&mut engine, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL), -libc::EEXIST);
        let length = || std::fs::metadata(directory.path().join("some")).unwrap().len();
        let mut on = |action, offset_bytes, can_cut| {
            engine.can_cut = can_cut;
            let transfer = Transfer::without_memory(action, made, 8);
            assert_eq!(carry_out(&mut engine, Transfer { offset_bytes, ..transfer }), 0);
        };
        on(Action::Reserve, 8192, true);
        assert_eq!(length(), 8192);
        on(Action::Cut, 5000, true);
        assert_eq!(length(), 5000);
        on(Action::Cut, 4999, false);
        assert_eq!(length(), 4999);
        on(Action::Sync, 0, true);
        let transfer = Transfer::without_memory(Action::SyncNames, opened.as_raw_fd(), 9);
        assert_eq!(carry_out(&mut engine, transfer), 0);
        nix::unistd::close(made).unwrap();
    }

    #[test]
    fn the_waker_ends_a_wait_and_only_rings_a_sleeper() {
        let waker = Waker::new().unwrap();
        let mut engine = UringEngine::new(8, Arc::clone(&waker)).unwrap();
        waker.prepare_sleep();
        let other = std::thread::spawn({
            let waker = Arc::clone(&waker);
            move || waker.wake()
        });
        let mut reaped = Vec::new();
        // Without a limit: a lost wake-up would hang here.
        engine.reap(None, &mut reaped).unwrap();
        other.join().unwrap();
        assert!(reaped.is_empty() && !engine.wake_armed);
        waker.awake();
        waker.wake();
        engine.reap(Some(Duration::ZERO), &mut reaped).unwrap();
        assert!(engine.wake_armed, "a waker must not ring for a thread that is awake");
    }
}
