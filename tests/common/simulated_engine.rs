//! The engine over a [`SimulatedDisk`], and the syncs that the core does without an engine, when it opens and closes.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvring::{Action, Engine, EngineError, Reaped, Transfer, Waker};

use crate::common::random::Random;
use crate::common::wait_for;
use crate::simulated_disk::SimulatedDisk;

pub(crate) struct SimulatedEngine {
    disk: Arc<SimulatedDisk>,
    waker: Arc<Waker>,
    random: Random,
    done: Vec<Reaped>,
}

impl SimulatedEngine {
    pub(crate) fn new(disk: Arc<SimulatedDisk>, waker: Arc<Waker>, random: Random) -> Self {
        Self { disk, waker, random, done: Vec::new() }
    }

    fn transfer(&self, transfer: &Transfer) -> i32 {
        // SAFETY: the descriptor is open as long as the transfer is under way, and is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(transfer.file) });
        // SAFETY: the submitter vouches for the vectors.
        let vectors =
            unsafe { std::slice::from_raw_parts(transfer.vectors, transfer.vector_count) };
        let path = path_of(transfer.file);
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut offset = transfer.offset_bytes;
        for vector in vectors {
            // SAFETY: the submitter vouches for the memory until the transfer is reaped.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(vector.iov_base.cast::<u8>(), vector.iov_len)
            };
            if transfer.action == Action::Read {
                file.read_exact_at(memory, offset).unwrap();
            } else {
                let mut before = vec![0; memory.len()];
                file.read_exact_at(&mut before, offset).unwrap();
                file.write_all_at(memory, offset).unwrap();
                self.disk.written(name, offset as usize, &before, memory);
            }
            offset += vector.iov_len as u64;
        }
        (offset - transfer.offset_bytes) as i32
    }
}

impl Engine for SimulatedEngine {
    fn description(&self) -> String {
        "simulated disk".into()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        self.disk.wait_open();
        let result = match transfer.action {
            Action::Sync => {
                let path = path_of(transfer.file);
                self.disk.sync(path.file_name().unwrap().to_str().unwrap());
                0
            }
            Action::Read | Action::Write => {
                self.disk.event();
                self.transfer(&transfer)
            }
            other => unreachable!("layout 'extents' does no {other:?}"),
        };
        self.done.push(Reaped { token: transfer.token, result });
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        if self.done.is_empty() && timeout != Some(Duration::ZERO) {
            self.disk.set_idle(true);
            wait_for(&self.waker, timeout);
            self.disk.set_idle(false);
        }
        // Completions come in any order.
        while !self.done.is_empty() {
            let next = self.random.below(self.done.len() as u64) as usize;
            reaped.push(self.done.swap_remove(next));
        }
        Ok(())
    }

    fn cancel_all(&mut self) {}
}

fn path_of(file: RawFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap_or_default()
}

// --- syncs without an engine ---

// The core syncs through the C library, whose functions these take the place of in this program: a sync on a simulated
// disk is simulated, every other one is done.

/// fdatasync(2).
// SAFETY: the name is the C library's, and so are signature, meaning and errno.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: RawFd) -> libc::c_int {
    simulated_or(libc::SYS_fdatasync, file)
}

/// fsync(2).
// SAFETY: the name is the C library's, and so are signature, meaning and errno.
#[unsafe(no_mangle)]
extern "C" fn fsync(file: RawFd) -> libc::c_int {
    simulated_or(libc::SYS_fsync, file)
}

fn simulated_or(call: libc::c_long, file: RawFd) -> libc::c_int {
    match SimulatedDisk::of(&path_of(file)) {
        Some((disk, name)) => {
            disk.sync(&name);
            0
        }
        // SAFETY: a system call that takes a descriptor and touches no memory.
        None => unsafe { libc::syscall(call, file) as libc::c_int },
    }
}
