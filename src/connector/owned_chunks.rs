//! Batches that own the memory of their chunks, and the wait for their completions: for programs without unsafe code and event loop.

use std::io;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Connector, SubmitError};
use crate::base::buffer::OwnedChunks;
use crate::batch::completion_queue::Completion;

impl Connector {
    /// [`Connector::submit_set`] of chunks that the batch owns until its completion, which gives them back:
    /// [`Completion::into_chunks`].
    ///
    /// # Errors
    /// As [`Connector::submit_set`].
    pub fn submit_set_owned<K: AsRef<str>>(
        &self,
        keys: &[K],
        chunks: Vec<Vec<u8>>,
    ) -> Result<u64, SubmitError> {
        let mut chunks = OwnedChunks(chunks);
        let buffers = chunks.buffers();
        self.submit_set(keys, &buffers, Box::new(chunks))
    }

    /// [`Connector::submit_get`] into memory that the batch owns until its completion, which gives it back:
    /// [`Completion::into_chunks`]. Each Vec has the length of the chunk of its key, which [`Connector::lengths`] returns.
    ///
    /// # Errors
    /// As [`Connector::submit_get`].
    pub fn submit_get_owned<K: AsRef<str>>(
        &self,
        keys: &[K],
        memory: Vec<Vec<u8>>,
    ) -> Result<u64, SubmitError> {
        let mut chunks = OwnedChunks(memory);
        let buffers = chunks.buffers();
        self.submit_get(keys, &buffers, Box::new(chunks))
    }

    /// Waits until completions can be drained, for at most `timeout` or until a signal. Returns
    /// whether there are any. A close by another thread does not end it.
    ///
    /// # Errors
    /// The kernel has no memory for the wait.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.event(), PollFlags::POLLIN)], timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(nix::Error::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Completion {
    /// The chunks of a batch of [`Connector::submit_set_owned`] or [`Connector::submit_get_owned`], in the order submitted. None of
    /// other batches, and where a drive that does not answer still has the memory.
    pub fn into_chunks(self) -> Option<Vec<Vec<u8>>> {
        let chunks = self.keep_alive?.downcast::<OwnedChunks>().ok()?;
        Some(chunks.0)
    }
}
