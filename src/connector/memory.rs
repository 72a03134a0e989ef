//! Registered memory.

use super::{Connector, SubmitError};
use crate::engine::MemoryHandle;

impl Connector {
    /// Registers memory with the rings, so that the kernel does not look up and pin its pages for each transfer: a host's arena of chunks, say. A
    /// transfer that is wholly inside uses that. What the system refuses is said once in the log, and goes without.
    ///
    /// It pins the memory, which takes a while for long memory of small pages, and waits for the reactors to take note, for 1 s at most.
    ///
    /// # Errors
    /// `SubmitError::Memory` for no bytes, and for memory that is registered already.
    ///
    /// # Safety
    /// Until the handle is closed or dropped, or the connector is closed, the memory stays mapped as it is: transfers go to the pages that were there
    /// at registration.
    pub unsafe fn register_memory(
        &self,
        address: *mut u8,
        length_bytes: usize,
    ) -> Result<MemoryHandle, SubmitError> {
        // SAFETY: nothing here looks at the memory, and the kernel refuses what is not mapped. What the caller promises is for the
        // transfers to come: they reach the pages that are pinned now, whatever is mapped at the address by then.
        let _gate = self.enter::<&str>(&[])?;
        Ok(self.memory.register(address.addr(), length_bytes)?)
    }
}
