//! An engine that does real I/O and lies about it, by script.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvring::EngineError;
use kvring::testing::{Action, Engine, Reaped, Transfer, Waker};

use super::{Client, MIB, config, once, real_engine};

/// What befalls one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It moves only this many bytes.
    Short(usize),
    /// It moves nothing and reports this errno.
    Errno(i32),
    /// It is started, and then the engine panics in its next reap.
    Panic,
    /// The engine refuses it, and will take nothing any more.
    Refused,
}

/// Decides the fault of each transfer: its number, its action, its length.
pub(crate) type Script = Box<dyn FnMut(u64, Action, usize) -> Fault + Send>;

/// Looks at what is about to be reported.
pub(crate) type Reaping = Box<dyn FnMut(&[Reaped]) + Send>;

pub(crate) struct FaultEngine {
    real: Box<dyn Engine>,
    script: Script,
    number: u64,
    panics: bool,
    cancelled: Arc<AtomicBool>,
    /// Tokens of files that are being opened: what is open must be closed, and cannot be cancelled any more.
    opening: HashSet<usize>,
    /// Failed without reaching the kernel; reported with the next reap.
    failed: Vec<Reaped>,
    /// Vectors of shortened transfers, at addresses that stay.
    #[allow(clippy::vec_box, reason = "the kernel holds their addresses")]
    shortened: Vec<Box<[libc::iovec; 2]>>,
    /// While set, nothing that is done is reported.
    stuck: Arc<AtomicBool>,
    /// A cancel ends that.
    is_cancellable: bool,
    reaping: Reaping,
}

impl FaultEngine {
    pub(crate) fn new(
        queue_depth: usize,
        waker: Arc<Waker>,
        script: Script,
        stuck: Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let real = real_engine(queue_depth, waker)?;
        Ok(Self {
            real,
            script,
            number: 0,
            panics: false,
            cancelled: Arc::default(),
            opening: HashSet::new(),
            failed: Vec::new(),
            shortened: Vec::new(),
            stuck,
            is_cancellable: false,
            reaping: Box::new(|_| ()),
        })
    }

    /// The same engine, which has `reaping` look at what it is about to report.
    pub(crate) fn watched(self, reaping: Reaping) -> Self {
        Self { reaping, ..self }
    }

    /// The same engine, which gives up what it has when that is cancelled, though it is stuck.
    pub(crate) fn cancellable(self) -> Self {
        Self { is_cancellable: true, ..self }
    }

    /// The same engine, which tells when it was asked to give up what is under way.
    pub(crate) fn telling_of_cancel(self, cancelled: Arc<AtomicBool>) -> Self {
        Self { cancelled, ..self }
    }
}

impl Engine for FaultEngine {
    fn description(&self) -> String {
        format!("faulty {}", self.real.description())
    }

    unsafe fn submit(&mut self, mut transfer: Transfer) -> Result<(), EngineError> {
        let vectors = match transfer.action {
            // SAFETY: the caller vouches for the vectors.
            Action::Read | Action::Write => unsafe {
                std::slice::from_raw_parts(transfer.vectors, transfer.vector_count)
            },
            _ => &[],
        };
        let length = vectors.iter().map(|vector| vector.iov_len).sum();
        self.number += 1;
        match (self.script)(self.number, transfer.action, length) {
            Fault::None => {}
            Fault::Panic => self.panics = true,
            Fault::Refused => {
                let source = std::io::Error::from_raw_os_error(libc::EBADF);
                return Err(EngineError::Failed { operation: "submitting", source });
            }
            Fault::Errno(errno) => {
                self.failed.push(Reaped { token: transfer.token, result: -errno });
                return Ok(());
            }
            Fault::Short(bytes) => {
                let mut rest = bytes;
                let mut own =
                    Box::new([libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2]);
                for (own, vector) in own.iter_mut().zip(vectors) {
                    own.iov_base = vector.iov_base;
                    own.iov_len = vector.iov_len.min(rest);
                    rest -= own.iov_len;
                }
                transfer.vector_count = own.iter().filter(|vector| vector.iov_len > 0).count();
                transfer.vectors = own.as_ptr();
                self.shortened.push(own);
            }
        }
        if matches!(transfer.action, Action::Open(_)) {
            self.opening.insert(transfer.token);
        }
        // SAFETY: as the caller vouches; shortened vectors live as long as this engine.
        unsafe { self.real.submit(transfer) }
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        if std::mem::take(&mut self.panics) {
            panic!("as the script says");
        }
        if self.stuck.load(Ordering::SeqCst) {
            let limit = Duration::from_millis(5);
            return self
                .real
                .reap(Some(timeout.map_or(limit, |timeout| timeout.min(limit))), &mut self.failed);
        }
        let timeout = if self.failed.is_empty() { timeout } else { Some(Duration::ZERO) };
        reaped.append(&mut self.failed);
        let outcome = self.real.reap(timeout, reaped);
        if self.cancelled.load(Ordering::SeqCst) {
            for reaped in reaped.iter_mut().filter(|one| !self.opening.contains(&one.token)) {
                reaped.result = -libc::ECANCELED;
            }
        }
        for one in &*reaped {
            self.opening.remove(&one.token);
        }
        (self.reaping)(reaped);
        outcome
    }

    /// The disk lets itself be cancelled, as reads through kernel worker threads do.
    fn cancel_all(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
        if self.is_cancellable {
            self.stuck.store(false, Ordering::SeqCst);
        }
        self.real.cancel_all();
    }
}

/// The engine of a store with one reactor, which does what the script says.
pub(crate) fn scripted(
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> impl FnMut(usize, Arc<Waker>) -> Result<FaultEngine, EngineError> {
    scripted_and_stuck(Arc::default(), script)
}

/// The engine of a store with one reactor. Nothing that is done is reported while `stuck` is set.
pub(crate) fn scripted_and_stuck(
    stuck: Arc<AtomicBool>,
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> impl FnMut(usize, Arc<Waker>) -> Result<FaultEngine, EngineError> {
    once(|queue_depth, waker| FaultEngine::new(queue_depth, waker, Box::new(script), stuck))
}

/// Engines of paths with a reactor each. That of path `number` does what the script says.
pub(crate) fn scripted_on(
    number: usize,
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> impl FnMut(usize, Arc<Waker>) -> Result<FaultEngine, EngineError> {
    let (mut made, mut script) = (0, Some(Box::new(script)));
    move |queue_depth, waker| {
        let script: Script = match made == number {
            true => script.take().expect("one reactor"),
            false => Box::new(|_, _, _| Fault::None),
        };
        made += 1;
        FaultEngine::new(queue_depth, waker, script, Arc::default())
    }
}

/// A script that fails everything with this while the switch is on.
pub(crate) fn failing(
    fault: Fault,
    is_on: &Arc<AtomicBool>,
) -> impl FnMut(u64, Action, usize) -> Fault + Send + use<> {
    let is_on = Arc::clone(is_on);
    move |_, _, _| if is_on.load(Ordering::SeqCst) { fault } else { Fault::None }
}

/// A store of 256 MiB whose device does what the script says.
pub(crate) fn faulty(
    directory: &Path,
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> Client {
    faulty_and_stuck(directory, Arc::default(), script)
}

/// The same, and nothing that is done is reported while `stuck` is set.
pub(crate) fn faulty_and_stuck(
    directory: &Path,
    stuck: Arc<AtomicBool>,
    script: impl FnMut(u64, Action, usize) -> Fault + Send + 'static,
) -> Client {
    Client::over(config(directory, 256 * MIB), scripted_and_stuck(stuck, script))
}
