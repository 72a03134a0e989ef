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
mod policy;
mod pool;
#[cfg(feature = "bench")]
pub(crate) mod probe;
mod quotas;
mod room_search;
mod s3fifo;

pub(crate) use eviction_index::{EvictionIndex, UNTIL_RELEASED_S};
pub(crate) use extent_map::{ChunkRef, Victim};
pub(crate) use lists::{ChunkNode, NodeId, Nodes};
pub use namespaces::NamespaceUsage;
pub(crate) use namespaces::{NamespaceId, NamespaceOf};
pub(crate) use policy::Policy;
pub(crate) use pool::PoolId;
pub(crate) use quotas::Quotas;
pub(crate) use room_search::{Room, RoomSearch};

use crate::config::Eviction;

impl Eviction {
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

#[cfg(test)]
mod tests;
