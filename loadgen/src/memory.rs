//! Memory of one batch in flight.

use std::sync::Arc;

use kvring::{
    AlignedBlock, BLOCK_BYTES, CallerBuffer, Connector, KeepAlive, MemoryHandle, SubmitError,
};

use crate::random::Random;

/// One buffer per key of a batch, at addresses that are multiples of the alignment asked for and, below a block, of
/// nothing more.
pub(crate) struct BatchMemory {
    /// Before the block, so that it goes first.
    registration: Option<MemoryHandle>,
    block: Arc<AlignedBlock>,
    stride_bytes: usize,
    shift_bytes: usize,
}

impl BatchMemory {
    /// Room for `keys` chunks of up to `longest_bytes`, with random bytes in it. `align_bytes` is a power of two up to a
    /// block.
    pub(crate) fn new(keys: usize, longest_bytes: usize, align_bytes: usize, seed: u64) -> Self {
        let block_bytes = BLOCK_BYTES as usize;
        let shift_bytes = align_bytes % block_bytes;
        let stride_bytes = (shift_bytes + longest_bytes).next_multiple_of(block_bytes);
        let mut block = AlignedBlock::zeroed(keys * stride_bytes);
        let mut random = Random::new(seed);
        for part in block.bytes_mut().chunks_exact_mut(size_of::<u64>()) {
            part.copy_from_slice(&random.next().to_le_bytes());
        }
        Self { registration: None, block: Arc::new(block), stride_bytes, shift_bytes }
    }

    /// Registers it with the store for as long as it lives.
    ///
    /// # Errors
    /// The store is closed, or failed.
    pub(crate) fn register(&mut self, connector: &Connector) -> Result<(), SubmitError> {
        let (address, length) = (self.block.as_ptr(), self.block.size_bytes());
        // SAFETY: the block stays where it is until it is freed, and the handle is dropped before: it is the earlier field.
        let memory = unsafe { CallerBuffer::new(address, length) };
        self.registration = Some(connector.register_memory(memory)?);
        Ok(())
    }

    /// Bytes that `new` takes for the same arguments.
    pub(crate) fn size_bytes(keys: u64, longest_bytes: u64, align_bytes: u64) -> u64 {
        let shift_bytes = align_bytes % BLOCK_BYTES;
        keys.saturating_mul((shift_bytes + longest_bytes).next_multiple_of(BLOCK_BYTES))
    }

    /// The first `length` bytes of the buffer at `position`; `None` while a batch holds the memory.
    pub(crate) fn chunk(&mut self, position: usize, length: usize) -> Option<&mut [u8]> {
        let start = position * self.stride_bytes + self.shift_bytes;
        // Every batch that may use the memory has a clone of the Arc, until its completion is dropped.
        Some(&mut Arc::get_mut(&mut self.block)?.bytes_mut()[start..start + length])
    }

    /// The buffers of a batch with chunks of these lengths, and what keeps them alive.
    pub(crate) fn lend(&self, lengths: &[usize]) -> (Vec<CallerBuffer>, KeepAlive) {
        let buffers = lengths.iter().enumerate().map(|(position, length)| {
            let start = position * self.stride_bytes + self.shift_bytes;
            assert!(start + length <= self.block.size_bytes(), "a chunk is longer than planned");
            // SAFETY: in bounds (asserted). The Arc that goes with the batch keeps the block alive until the completion
            // is dropped, and until then `chunk`, the only way to its bytes, finds the Arc shared and gives none out.
            unsafe { CallerBuffer::new(self.block.as_ptr().add(start), *length) }
        });
        (buffers.collect(), Box::new(Arc::clone(&self.block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_aligned_as_asked_and_no_more() {
        for align in [1, 8, 512, 2048, 4096] {
            let mut memory = BatchMemory::new(3, 10_000, align, 1);
            let size = memory.block.size_bytes() as u64;
            assert_eq!(size, BatchMemory::size_bytes(3, 10_000, align as u64));
            for position in 0..3 {
                let chunk = memory.chunk(position, 10_000).unwrap();
                assert_eq!(chunk.len(), 10_000);
                let address = chunk.as_ptr().addr();
                assert!(address.is_multiple_of(align), "{align}");
                assert!(align == 4096 || !address.is_multiple_of(2 * align), "{align}");
            }
        }
    }

    #[test]
    fn lent_memory_cannot_be_touched() {
        let mut memory = BatchMemory::new(2, 4096, 4096, 1);
        let (buffers, keep_alive) = memory.lend(&[4096, 100]);
        assert_eq!(buffers[1].length_bytes(), 100);
        assert!(memory.chunk(0, 1).is_none());
        drop(keep_alive);
        assert!(memory.chunk(0, 1).is_some());
    }
}
