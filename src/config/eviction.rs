//! The orders of eviction that can be chosen.

use super::kinds::Named;

/// Which order chunks are evicted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The one not used for the longest time.
    Lru,
    /// The one used least often, where what was used long ago counts less and less.
    Lfu,
    /// The one stored first.
    Fifo,
    /// The one used last.
    Mru,
    /// Three queues: what is not used again soon goes first, what was used goes round again. Yang et al., "FIFO queues are
    /// all you need for cache eviction", SOSP 2023.
    S3Fifo,
}

impl Eviction {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Lru, Self::Lfu, Self::Fifo, Self::Mru, Self::S3Fifo];

    /// As options and reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
            Self::Mru => "mru",
            Self::S3Fifo => "s3fifo",
        }
    }
}

impl Named for Eviction {
    const ALL: &'static [Self] = &Self::ALL;
    fn name(self) -> &'static str {
        self.name()
    }
}
