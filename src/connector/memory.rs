//! Registered memory.

use super::{Connector, SubmitError};
use crate::base::buffer::CallerBuffer;
use crate::engine::MemoryHandle;

impl Connector {
    /// Registers memory with the rings, so that the kernel does not look up and pin its pages for each transfer: a host's arena of chunks, say. A
    /// transfer that is wholly inside uses that. What the system refuses is said once in the log, and goes without.
    ///
    /// It pins the memory, which takes a while for long memory of small pages, and waits for the reactors to take note, for 1 s at most.
    ///
    /// The memory stays mapped as it is until the handle is closed or dropped, or the connector is closed, as [`CallerBuffer::new`] says.
    ///
    /// # Errors
    /// `SubmitError::Memory` for no bytes, and for memory that is registered already.
    pub fn register_memory(&self, memory: CallerBuffer) -> Result<MemoryHandle, SubmitError> {
        // Nothing here looks at the memory, and the kernel refuses what is not mapped.
        let _gate = self.enter::<&str>(&[])?;
        Ok(self.memory.register(memory.address(), memory.length_bytes())?)
    }
}
