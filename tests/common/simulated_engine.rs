//! The engine over a [`SimulatedDisk`], and the syncs that the core does without an engine, when it opens and closes.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use kvring::EngineError;
use kvring::testing::{Action, Engine, FileOperations, Reaped, SystemFiles, Transfer, Waker};

use crate::common::random::Random;
use crate::simulated_disk::SimulatedDisk;

pub(crate) struct SimulatedEngine {
    disk: Arc<SimulatedDisk>,
    /// Which of the reactors it is of.
    number: usize,
    random: Random,
    /// Syncs that are still to be done.
    syncs: Vec<Transfer>,
    done: Vec<Reaped>,
}

impl SimulatedEngine {
    pub(crate) fn new(disk: Arc<SimulatedDisk>, waker: Arc<Waker>, random: Random) -> Self {
        let number = disk.turns.add_reactor(waker);
        Self { disk, number, random, syncs: Vec::new(), done: Vec::new() }
    }

    /// Does some of the syncs, and takes some of what is done, in any order.
    fn progress(&mut self, reaped: &mut Vec<Reaped>) {
        let syncs = std::mem::take(&mut self.syncs);
        for transfer in syncs {
            if self.random.one_of(2) {
                self.syncs.push(transfer);
                continue;
            }
            let path = path_of(transfer.file);
            let name = path.file_name().unwrap().to_str().unwrap();
            let has_failed = self.disk.try_sync(name, transfer.file);
            let result = if has_failed { -libc::EIO } else { 0 };
            self.done.push(Reaped { token: transfer.token, result });
        }
        while !self.done.is_empty() && !self.random.one_of(3) {
            let next = self.random.below(self.done.len() as u64) as usize;
            reaped.push(self.done.swap_remove(next));
        }
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
        self.disk.turns.take(self.number);
        match transfer.action {
            Action::Sync => self.syncs.push(transfer),
            Action::Read | Action::Write => {
                self.disk.event();
                let result = self.transfer(&transfer);
                self.done.push(Reaped { token: transfer.token, result });
            }
            other => unreachable!("layout 'extents' does no {other:?}"),
        }
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        if self.done.is_empty() && self.syncs.is_empty() && timeout != Some(Duration::ZERO) {
            self.disk.turns.sleep(self.number, timeout);
        } else {
            self.disk.turns.pass(self.number);
        }
        self.progress(reaped);
        Ok(())
    }

    fn cancel_all(&mut self) {}
}

impl Drop for SimulatedEngine {
    fn drop(&mut self) {
        self.disk.turns.leave(self.number);
    }
}

fn path_of(file: RawFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap_or_default()
}

/// The files of a store on a simulated disk, which does its syncs.
#[derive(Debug)]
pub(crate) struct SimulatedFiles(pub(crate) Arc<SimulatedDisk>);

impl SimulatedFiles {
    fn sync(&self, file: &File) -> io::Result<()> {
        match self.0.sync(&self.0.name_of(&path_of(file.as_raw_fd()))) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

impl FileOperations for SimulatedFiles {
    /// By length alone: such a disk is never full, and memory for its empty parts takes most of the time of a simulation.
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: c_int) -> io::Result<()> {
        let grows = flags & libc::FALLOC_FL_KEEP_SIZE == 0 && file.metadata()?.len() < bytes.end;
        if grows { file.set_len(bytes.end) } else { Ok(()) }
    }

    fn mark_changed(&self, file: &File, offset: u64, mapped: &[AtomicU8]) -> io::Result<()> {
        let (name, begin) = (self.0.name_of(&path_of(file.as_raw_fd())), offset as usize);
        self.0.write_anew(&name, begin, begin + mapped.len());
        SystemFiles.mark_changed(file, offset, mapped)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.sync(file)
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.sync(file)
    }
}
