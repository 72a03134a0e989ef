//! An engine and file operations that move no chunk, and record which bytes of the device were to be written or discarded.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvring::EngineError;
use kvring::testing::{Action, Engine, FileOperations, PosixEngine, Reaped, Transfer, Waker};

/// What the drive was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Write { offset_bytes: u64, length_bytes: u64, stream: u8 },
    Trim { offset_bytes: u64, length_bytes: u64 },
}

/// The requests since they were taken last, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Request>>>);

impl Recorder {
    pub(crate) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests())
    }

    pub(crate) fn engine(
        &self,
        depth: usize,
        waker: Arc<Waker>,
    ) -> Result<impl Engine + use<>, EngineError> {
        let (real, recorder) = (PosixEngine::new(depth, waker)?, self.clone());
        Ok(RecordingEngine { real, recorder, done: Vec::new() })
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileOperations for Recorder {
    fn sync_data(&self, _: &File) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: &File, bytes: Range<u64>) -> io::Result<()> {
        let (offset_bytes, length_bytes) = (bytes.start, bytes.end - bytes.start);
        self.requests().push(Request::Trim { offset_bytes, length_bytes });
        Ok(())
    }
}

/// Reads nothing and writes nothing, and says it did.
struct RecordingEngine {
    /// It waits for the waker.
    real: PosixEngine,
    recorder: Recorder,
    done: Vec<Reaped>,
}

impl Engine for RecordingEngine {
    fn description(&self) -> String {
        "recorder".into()
    }

    fn takes_write_streams(&self) -> bool {
        true
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        // SAFETY: the caller vouches for the vectors; there are none but of reads and writes.
        let vectors =
            (0..transfer.vector_count).map(|number| unsafe { *transfer.vectors.add(number) });
        let length_bytes: u64 = vectors.map(|vector| vector.iov_len as u64).sum();
        if transfer.action == Action::Write {
            let (offset_bytes, stream) = (transfer.offset_bytes, transfer.write_stream);
            self.recorder.requests().push(Request::Write { offset_bytes, length_bytes, stream });
        }
        self.done.push(Reaped { token: transfer.token, result: length_bytes as i32 });
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let timeout = if self.done.is_empty() { timeout } else { Some(Duration::ZERO) };
        reaped.append(&mut self.done);
        self.real.reap(timeout, reaped)
    }

    fn cancel_all(&mut self) {}
}
