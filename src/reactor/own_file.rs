//! The file of an operation's chunk in layout `files`: opened before its first piece goes down, closed with the operation.
//!
//! A SET waits until the room that was made for it is there, makes its file, reserves all of its space, writes, and cuts off
//! the padding of the last block. A GET opens its file and looks at its length. Pieces that are granted before the file is
//! ready are held back.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::Shared;
use super::errnos::{Attempt, Fate, Request};
use super::piece::MAX_ATTEMPTS;
use super::steps::Failure;
use super::work::{Active, Kind, Work};
use crate::block::{BLOCK_BYTES, Extent};
use crate::directory::{check_opened, make_private, refusal_of};
use crate::engine::{Action, Engine, EngineError, Transfer};
use crate::fork::GivenUpInForks;
use crate::schedule::Grant;

/// Tokens from here on are those of steps; the rest of them is the operation's id.
pub(super) const STEP_TOKENS: usize = 1 << 62;

/// What is to be done with the file next, or is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// What goes for it has to be gone.
    AwaitRoom,
    Open,
    Reserve,
    /// Pieces go down.
    Transfer,
    Cut,
}

/// A chunk's own file.
pub(super) struct OwnFile {
    directory: RawFd,
    /// Where it is stays the same while the kernel looks at it.
    name: CString,
    pub(super) step: Step,
    open: Option<OpenFile>,
    /// Pieces that wait for the file to be ready.
    pub(super) held_back: Vec<Grant>,
    attempts: u32,
}

struct OpenFile {
    // Before the file is closed.
    _given_up_in_forks: GivenUpInForks,
    file: OwnedFd,
}

impl OwnFile {
    pub(super) fn new(directory: RawFd, name: CString) -> Self {
        Self {
            directory,
            name,
            step: Step::AwaitRoom,
            open: None,
            held_back: Vec::new(),
            attempts: 0,
        }
    }

    /// Its descriptor; one that nothing has while it is not open.
    pub(super) fn descriptor(&self) -> RawFd {
        self.open.as_ref().map_or(-1, |open| open.file.as_raw_fd())
    }

    /// Descriptor of the directory that it is in.
    pub(super) fn directory(&self) -> RawFd {
        self.directory
    }

    /// Looks at what was opened to be read, which has to be a file with this length.
    fn check(&self, length_bytes: u64, flags: i32) -> io::Result<()> {
        let open = self.open.as_ref().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the directory is open as long as the store.
        let directory = unsafe { BorrowedFd::borrow_raw(self.directory) };
        match check_opened(&open.file, directory, flags)? {
            found_bytes if found_bytes == length_bytes => Ok(()),
            found_bytes => Err(io::Error::other(format!(
                "its file has {found_bytes} bytes, not {length_bytes}"
            ))),
        }
    }

    /// Why it could not be opened: an error without an errno if what has its name is no file.
    fn refusal(&self, errno: i32) -> io::Error {
        // SAFETY: the directory is open as long as the store.
        let directory = unsafe { BorrowedFd::borrow_raw(self.directory) };
        refusal_of(directory, &*self.name, io::Error::from_raw_os_error(errno))
    }
}

impl Active {
    /// The place of its chunk.
    pub(super) fn extent(&self) -> Option<Extent> {
        match &self.kind {
            Kind::Get(_, pin) | Kind::Verify(pin) => Some(pin.extent),
            Kind::Set(_, place) => place.as_ref().map(|place| place.extent),
            Kind::Free(_) => None,
        }
    }

    /// When it may be written to, if it is to be.
    pub(super) fn free_ticket(&self) -> Option<u64> {
        match &self.kind {
            Kind::Set(_, place) => place.as_ref().map(|place| place.free_ticket),
            _ => None,
        }
    }

    fn is_written(&self) -> bool {
        matches!(self.kind, Kind::Set(..))
    }
}

impl Work {
    /// Takes the next step of each operation whose file has one before it.
    pub(super) fn start_steps(
        &mut self,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        for id in mem::take(&mut self.due_steps) {
            if outcome.is_err() {
                // It ends with everything else.
                self.due_steps.push(id);
                continue;
            }
            outcome = self.start_step(id, shared, engine);
        }
        outcome
    }

    /// Whether an operation waits for room that has come since `start_steps` looked. To be asked once more before sleeping:
    /// who removes files rings only for a sleeper.
    pub(super) fn has_due_steps(&self, shared: &Shared) -> bool {
        self.due_steps.iter().any(|id| {
            let active = &self.active[*id];
            let waits = active.own.as_ref().is_some_and(|own| own.step == Step::AwaitRoom);
            let is_clear = || {
                active
                    .extent()
                    .is_none_or(|extent| !matches!(shared.store.space_ready(extent), Ok(false)))
            };
            !waits || is_clear()
        })
    }

    fn start_step(
        &mut self,
        id: usize,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        let active = &mut self.active[id];
        let (is_written, length_bytes) = (active.is_written(), active.kind.bytes());
        let extent = active.extent();
        let Some(own) = &mut active.own else { return Ok(()) };
        if own.step == Step::AwaitRoom {
            match extent
                .filter(|_| is_written)
                .map_or(Ok(true), |extent| shared.store.space_ready(extent))
            {
                Ok(true) => own.step = Step::Open,
                Ok(false) => {
                    self.due_steps.push(id);
                    return Ok(());
                }
                Err(error) => {
                    self.fail_step(id, Failure::NoRoom(error), shared);
                    return Ok(());
                }
            }
        }
        let direct = direct_flag(shared);
        let (action, file, offset_bytes) = match own.step {
            Step::AwaitRoom => return Ok(()),
            Step::Open => {
                let purpose = match is_written {
                    true => libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
                    // What has its name may be something that waits for others when it is opened.
                    false => libc::O_RDONLY | libc::O_NONBLOCK,
                };
                let flags = purpose | direct | libc::O_CLOEXEC | libc::O_NOFOLLOW;
                (Action::Open(flags), own.directory, 0)
            }
            Step::Reserve => (Action::Reserve, own.descriptor(), length_bytes),
            Step::Cut => (Action::Cut, own.descriptor(), length_bytes),
            Step::Transfer => {
                let mut outcome = Ok(());
                for grant in mem::take(&mut own.held_back) {
                    // A piece that could not be started is ended by who tried.
                    match outcome {
                        Ok(()) => outcome = self.start_piece(grant, shared, engine),
                        Err(_) => self.finish_held_back(grant),
                    }
                }
                return outcome;
            }
        };
        own.attempts += 1;
        let transfer = Transfer {
            offset_bytes,
            name: own.name.as_ptr(),
            ..Transfer::without_memory(action, file, STEP_TOKENS | id)
        };
        // SAFETY: a step names no memory but the name, which does not move with its owner; that stays in `active`, with the
        // file, until the step is reaped (or is leaked): an operation with a step under way is not ended. The directory is
        // open as long as `shared` lives.
        match unsafe { engine.submit(transfer) } {
            Ok(()) => {
                self.active[id].unfinished += 1;
                self.steps_in_flight += 1;
                Ok(())
            }
            Err(error) => {
                self.fail_step(id, Failure::Closed, shared);
                Err(error)
            }
        }
    }

    /// Takes the result of a step. `stopped`: no further one may be taken.
    pub(super) fn finish_step(&mut self, id: usize, result: i32, stopped: bool, shared: &Shared) {
        self.steps_in_flight -= 1;
        let active = &mut self.active[id];
        active.unfinished -= 1;
        let (is_written, length_bytes) = (active.is_written(), active.kind.bytes());
        let extent = active.extent();
        // Also a failure: it may only be that it was cancelled, which says nothing about the chunk.
        let is_abandoned = active.failure.is_some() || stopped && result < 0;
        let Some(own) = &mut active.own else { return };
        if own.step == Step::Open && result >= 0 {
            // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
            let file = unsafe { OwnedFd::from_raw_fd(result) };
            let _given_up_in_forks = GivenUpInForks::new(result);
            if is_written {
                make_private(file.as_fd());
            }
            own.open = Some(OpenFile { _given_up_in_forks, file });
        }
        if is_abandoned {
            return self.fail_step(id, Failure::Closed, shared);
        }
        let request = match own.step {
            Step::Open if !is_written => Request::OpenChunkFile,
            _ => Request::MakeChunkFile,
        };
        let failure_of = |error: io::Error| match error.raw_os_error() {
            Some(errno) => {
                let state = shared.health.state(request.way());
                shared.health.note_failure(request, errno, Instant::now());
                Failure::of(request, errno, Attempt::First, state)
            }
            // It is not the file of the chunk.
            None => Failure::Transfer(error, Fate::Drop),
        };
        if own.step == Step::Open && result < 0 && !is_written {
            let error = own.refusal(-result);
            if error.raw_os_error().is_none() {
                return self.fail_step(id, failure_of(error), shared);
            }
        }
        let made =
            |outcome| extent.map_or(Ok(()), |extent| shared.store.creation_done(extent, outcome));
        match (own.step, -result) {
            (_, libc::EINTR | libc::EAGAIN) if own.attempts < MAX_ATTEMPTS => {
                return self.due_steps.push(id);
            }
            (Step::Open | Step::Reserve, libc::ENOSPC | libc::EDQUOT) if is_written => {
                let error = io::Error::from_raw_os_error(-result);
                let failure = match made(Err(error)) {
                    Err(error) => Failure::NoRoom(error),
                    Ok(()) => failure_of(io::Error::from_raw_os_error(-result)),
                };
                return self.fail_step(id, failure, shared);
            }
            // The file system cannot reserve: writes may find it full.
            (Step::Reserve, libc::EOPNOTSUPP) => {}
            (_, errno) if errno > 0 => {
                let failure = failure_of(io::Error::from_raw_os_error(errno));
                return self.fail_step(id, failure, shared);
            }
            _ => {}
        }
        own.attempts = 0;
        own.step = match own.step {
            Step::Open if is_written => Step::Reserve,
            Step::Open => match own.check(length_bytes, direct_flag(shared)) {
                Ok(()) => Step::Transfer,
                Err(error) => return self.fail_step(id, failure_of(error), shared),
            },
            Step::Reserve => {
                // It cannot refuse what went well.
                let _ = made(Ok(()));
                Step::Transfer
            }
            Step::Cut => return self.end(id, shared),
            step => step,
        };
        self.due_steps.push(id);
    }

    /// The file will not be ready, or not whole: the operation ends when nothing of it is under way.
    pub(super) fn fail_step(&mut self, id: usize, failure: Failure, shared: &Shared) {
        let active = &mut self.active[id];
        active.failure.get_or_insert(failure);
        let class = active.kind.class();
        let held_back = active.own.as_mut().map_or(Vec::new(), |own| mem::take(&mut own.held_back));
        if active.waiting_bytes > 0 {
            active.waiting_bytes = 0;
            self.scheduler.cancel_rest(class, id);
        }
        held_back.into_iter().for_each(|grant| self.finish_held_back(grant));
        if self.active[id].unfinished == 0 {
            self.end(id, shared);
        }
    }

    fn finish_held_back(&mut self, grant: Grant) {
        self.active[grant.id].unfinished -= 1;
        self.scheduler.finish(grant);
    }

    /// All pieces of an operation are through. Says whether the padding behind the chunk has to be cut off before it ends.
    pub(super) fn has_to_be_cut(&mut self, id: usize, shared: &Shared) -> bool {
        let active = &mut self.active[id];
        let is_padded = shared.store.geometry().direct
            && active.is_written()
            && !active.kind.bytes().is_multiple_of(BLOCK_BYTES);
        match &mut active.own {
            Some(own) if is_padded && active.failure.is_none() && own.step == Step::Transfer => {
                own.step = Step::Cut;
                self.due_steps.push(id);
                true
            }
            _ => false,
        }
    }

    /// Ends what waits for its next step, when none may be taken any more.
    pub(super) fn drop_due_steps(&mut self, shared: &Shared) {
        for id in mem::take(&mut self.due_steps) {
            self.fail_step(id, Failure::Closed, shared);
        }
    }
}

fn direct_flag(shared: &Shared) -> i32 {
    if shared.store.geometry().direct { libc::O_DIRECT } else { 0 }
}
