//! Eviction: which chunks go when room is needed. A policy keeps the stored chunks in an order.
//!
//! Policies are pure data structures, without I/O, clock or locks. They know a chunk by the number that [`Nodes`] gave it.

mod eviction_index;
mod leases;
mod lfu;
mod lists;
mod namespaces;
mod neighbours;
mod ordered;
mod policy;
mod pool;
#[cfg(feature = "bench")]
#[path = "../../benches/eviction/probe.rs"]
pub(crate) mod probe;
mod quotas;
mod room_search;
mod s3fifo;

pub(crate) use eviction_index::{EvictionIndex, UNTIL_RELEASED_S};
pub(crate) use leases::{Footprint, Leases};
pub(crate) use lists::{ChunkNode, ChunkRef, NodeId, Nodes};
pub(crate) use namespaces::NamespaceId;
pub use namespaces::NamespaceUsage;
pub(crate) use neighbours::Victim;
pub(crate) use policy::Policy;
pub(crate) use pool::PoolId;
pub(crate) use quotas::{Quota, Quotas};
pub(crate) use room_search::{Room, RoomSearch};

use crate::config::Eviction;
use ordered::Ordered;

impl Eviction {
    pub(crate) fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Lru | Self::Fifo | Self::Mru => Box::new(Ordered::new(self)),
            Self::Lfu => Box::new(lfu::Lfu::new()),
            Self::S3Fifo => Box::new(s3fifo::S3Fifo::new(s3fifo::SMALL_SHARE)),
        }
    }
}

#[cfg(test)]
mod tests;
