//! What chunks contain: bytes that say which key and which generation of it they are.

use crate::random::mix;

/// Distance of the words that are written when chunks are only stamped: one in each block.
const STAMP_STEP_BYTES: usize = 4096;

/// Distance of the bytes that are spoiled: one in each of the smallest sectors.
const SPOIL_STEP_BYTES: usize = 512;

/// How the bytes of a chunk follow from its key and generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    seed: u64,
    /// Every byte follows from them, for comparing. Otherwise only the first bytes of each block do, which is enough to
    /// make a rewritten chunk another one, and costs next to nothing.
    every_byte: bool,
}

impl Content {
    pub(crate) fn new(seed: u64, every_byte: bool) -> Self {
        Self { seed: mix(seed), every_byte }
    }

    /// Makes `chunk` generation `generation` of key `key`.
    pub(crate) fn fill(&self, chunk: &mut [u8], key: u64, generation: u32) {
        let start = self.start(key, generation);
        let step = if self.every_byte { size_of::<u64>() } else { STAMP_STEP_BYTES };
        for (position, part) in chunk.chunks_mut(step).enumerate() {
            let word = word(start, position as u64).to_le_bytes();
            match part.first_chunk_mut() {
                Some(whole) => *whole = word,
                None => part.copy_from_slice(&word[..part.len()]),
            }
        }
    }

    /// Tells whether `chunk`, written with `every_byte`, is that generation of that key.
    pub(crate) fn matches(&self, chunk: &[u8], key: u64, generation: u32) -> bool {
        let start = self.start(key, generation);
        let mut words = chunk.chunks_exact(size_of::<u64>());
        // No early end: a chunk is nearly always right, and a loop without branches is vectorised.
        let mut difference = 0;
        let mut position = 0;
        for part in &mut words {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(part);
            difference |= u64::from_le_bytes(bytes) ^ word(start, position);
            position += 1;
        }
        let tail = words.remainder();
        difference == 0 && *tail == word(start, position).to_le_bytes()[..tail.len()]
    }

    fn start(&self, key: u64, generation: u32) -> u64 {
        mix(mix(self.seed ^ key) ^ u64::from(generation))
    }
}

/// Makes sure that memory does not match by what an earlier load left in it.
pub(crate) fn spoil(chunk: &mut [u8]) {
    for byte in chunk.iter_mut().step_by(SPOIL_STEP_BYTES) {
        *byte = !*byte;
    }
}

fn word(start: u64, position: u64) -> u64 {
    let value = start.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_key_and_generation_match() {
        let content = Content::new(1, true);
        for length in [3, 8, 4096, 5001] {
            let mut chunk = vec![0; length];
            content.fill(&mut chunk, 5, 2);
            assert!(content.matches(&chunk, 5, 2), "{length}");
            assert!(!content.matches(&chunk, 6, 2) && !content.matches(&chunk, 5, 1), "{length}");
            assert!(!Content::new(2, true).matches(&chunk, 5, 2), "{length}");
            for position in [0, length / 2, length - 1] {
                chunk[position] ^= 1;
                assert!(!content.matches(&chunk, 5, 2), "{length} at {position}");
                chunk[position] ^= 1;
            }
        }
    }

    #[test]
    fn a_stamped_chunk_differs_in_each_block() {
        let content = Content::new(1, false);
        let mut chunk = vec![0; 3 * 4096 + 2];
        content.fill(&mut chunk, 5, 1);
        let before = chunk.clone();
        content.fill(&mut chunk, 5, 2);
        for (old, new) in before.chunks(4096).zip(chunk.chunks(4096)) {
            assert_ne!(old, new);
        }
    }

    #[test]
    fn spoiled_memory_does_not_match() {
        let content = Content::new(1, true);
        let mut chunk = vec![0; 4096];
        content.fill(&mut chunk, 1, 1);
        spoil(&mut chunk);
        assert!(chunk.chunks(512).enumerate().all(|(sector, bytes)| {
            let mut right = vec![0; 4096];
            content.fill(&mut right, 1, 1);
            bytes != &right[sector * 512..][..512]
        }));
    }
}
