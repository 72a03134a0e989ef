//! How long chunks are.

use std::fmt;

use kvring::{BLOCK_BYTES, MAX_CHUNK_BYTES};

/// Reads a size as fio does: k, m, g, t and p alone are binary. With a B they are what they are everywhere in kvring.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn size_bytes(text: &str) -> Result<u64, String> {
    let is_prefix = |last: char| "kmgtp".contains(last.to_ascii_lowercase());
    match text.ends_with(is_prefix) {
        true => kvring::size_bytes(&format!("{text}iB")),
        false => kvring::size_bytes(text),
    }
}

/// Lengths of chunks: each key has one, which never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkSizes {
    /// Each of these for an equal share of the keys; one entry is one length for all.
    Choice(Vec<u64>),
    /// Every multiple of `least` up to `most`, for an equal share of the keys each.
    Multiples {
        /// Shortest chunk, and the step.
        least: u64,
        /// Longest chunk.
        most: u64,
    },
}

impl ChunkSizes {
    /// Reads "64KiB", a list "4KiB,64KiB" or a range "4KiB-1MiB".
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let size = size_bytes(part.trim())?;
            if (1..=MAX_CHUNK_BYTES).contains(&size) {
                Ok(size)
            } else {
                Err(format!("{size} bytes is not within 1 to {MAX_CHUNK_BYTES}"))
            }
        };
        match text.split_once('-') {
            Some((least, most)) => {
                let (least, most) = (one(least)?, one(most)?);
                if least > most {
                    return Err(format!("its lower end {least} is above its upper end {most}"));
                }
                Ok(Self::Multiples { least, most })
            }
            None => text.split(',').map(one).collect::<Result<_, _>>().map(Self::Choice),
        }
    }

    /// The longest.
    pub fn longest_bytes(&self) -> u64 {
        match self {
            Self::Choice(sizes) => sizes.iter().copied().max().unwrap_or(1),
            Self::Multiples { least, most } => most / least * least,
        }
    }

    /// Bytes of a chunk on average over many keys, rounded down.
    pub(crate) fn mean_bytes(&self) -> u64 {
        match self {
            Self::Choice(sizes) => sizes.iter().sum::<u64>() / sizes.len() as u64,
            Self::Multiples { least, .. } => least.midpoint(self.longest_bytes()),
        }
    }

    /// Bytes on disk of a chunk on average: chunks take whole blocks. Never too low.
    pub(crate) fn mean_allocated_bytes(&self) -> u64 {
        match self {
            Self::Choice(sizes) => {
                let all: u64 = sizes.iter().map(|size| size.next_multiple_of(BLOCK_BYTES)).sum();
                all.div_ceil(sizes.len() as u64)
            }
            Self::Multiples { .. } => self.mean_bytes() + BLOCK_BYTES,
        }
    }

    /// The length that falls to the key with this hash.
    pub(crate) fn of(&self, hash: u64) -> u64 {
        let share = |count: u64| ((u128::from(hash) * u128::from(count)) >> 64) as u64;
        match self {
            Self::Choice(sizes) => sizes[share(sizes.len() as u64) as usize],
            Self::Multiples { least, most } => least * (1 + share(most / least)),
        }
    }
}

impl fmt::Display for ChunkSizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Choice(sizes) => {
                let all: Vec<_> = sizes.iter().map(u64::to_string).collect();
                formatter.write_str(&all.join(","))
            }
            Self::Multiples { least, most } => write!(formatter, "{least}-{most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix;

    #[test]
    fn one_a_list_or_a_range() {
        assert_eq!(ChunkSizes::parse("64KiB"), Ok(ChunkSizes::Choice(vec![65536])));
        for same in ["64k", "64K", "64 k", "65536", "64Ki"] {
            assert_eq!(ChunkSizes::parse(same), Ok(ChunkSizes::Choice(vec![65536])), "{same}");
        }
        assert_eq!(ChunkSizes::parse("64kB"), Ok(ChunkSizes::Choice(vec![64_000])));
        assert_eq!(ChunkSizes::parse("4k-1m"), ChunkSizes::parse("4KiB-1MiB"));
        assert_eq!(ChunkSizes::parse("4KiB, 1MB"), Ok(ChunkSizes::Choice(vec![4096, 1_000_000])));
        let range = ChunkSizes::parse("4KiB-1MiB").unwrap();
        assert_eq!(range, ChunkSizes::Multiples { least: 4096, most: 1 << 20 });
        assert_eq!(range.to_string(), "4096-1048576");
        for wrong in ["", "x", "0", "3GiB", "4KiB,", "64KiB-4KiB", "4KiB-", "-1"] {
            assert!(ChunkSizes::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lengths_are_spread_over_all_that_there_are() {
        for text in ["5000", "4KiB,64KiB,100", "4KiB-40KiB", "3-10"] {
            let sizes = ChunkSizes::parse(text).unwrap();
            let drawn: Vec<u64> = (0..4000).map(|number| sizes.of(mix(number))).collect();
            assert_eq!(drawn.iter().max(), Some(&sizes.longest_bytes()), "{text}");
            let mean = drawn.iter().sum::<u64>() / 4000;
            assert!(mean.abs_diff(sizes.mean_bytes()) <= sizes.mean_bytes() / 10, "{text}");
            let allocated: u64 =
                drawn.iter().map(|size| size.next_multiple_of(BLOCK_BYTES)).sum::<u64>() / 4000;
            assert!(sizes.mean_allocated_bytes() * 11 / 10 >= allocated, "{text}");
        }
    }
}
