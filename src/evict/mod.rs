//! Who goes when room is needed: an order over the chunks held, kept by a policy.
//!
//! Pure data structures: no I/O, no clock, no locks. A policy knows chunks by the number that [`Nodes`] gave them.

mod eviction_index;
mod extent_map;
mod fifo;
mod lfu;
mod lists;
mod lru;
mod mru;
mod namespaces;
mod pool;
#[cfg(feature = "bench")]
pub(crate) mod probe;
mod quotas;
mod room_search;
mod s3fifo;

pub(crate) use eviction_index::{ChunkRef, EvictionIndex, NamespaceOf, UNTIL_RELEASED_S, Victim};
pub(crate) use lists::{ChunkNode, NodeId, Nodes};
pub(crate) use namespaces::NamespaceId;
pub use namespaces::NamespaceUsage;
pub(crate) use pool::PoolId;
pub(crate) use quotas::Quotas;
pub(crate) use room_search::{Room, RoomSearch};

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

    /// A policy of this kind, without chunks.
    pub(crate) fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(lru::Lru::default()),
            Self::Lfu => Box::new(lfu::Lfu::new()),
            Self::Fifo => Box::new(fifo::Fifo::default()),
            Self::Mru => Box::new(mru::Mru::default()),
            Self::S3Fifo => Box::new(s3fifo::S3Fifo::new(s3fifo::SMALL_SHARE)),
        }
    }
}

/// An order of eviction over chunks.
pub(crate) trait Policy: Send {
    /// A chunk is held from now on. `returns`: it was evicted not long ago.
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, returns: bool);

    /// A chunk that an earlier owner had stored, with the uses it had (`nodes[id].uses`). Called before anything else, the
    /// one that was not used for the longest time first.
    fn restore(&mut self, nodes: &mut Nodes, id: NodeId);

    /// A chunk was used.
    fn touch(&mut self, nodes: &mut Nodes, id: NodeId);

    /// A chunk is not held any more.
    fn remove(&mut self, nodes: &mut Nodes, id: NodeId);

    /// Appends up to `count` chunks to `found`, in the order in which they would go. May put into order what it passes
    /// (second chances), but removes nothing: who is chosen is removed by [`Policy::remove`]. Finds fewer, or none, where it
    /// has passed too many: the next call goes on from there.
    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>);

    /// How far a chunk is from going: 0 goes first, 255 last. An estimate, from what is at hand.
    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8;
}

#[cfg(test)]
mod tests;
