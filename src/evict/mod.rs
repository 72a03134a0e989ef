//! Eviction: which chunks go when room is needed. The stored chunks are kept in an order, by the rule of the policy.
//!
//! Orders are pure data structures, without I/O, clock or locks. They know a chunk by the number that [`Nodes`] gave it.

mod bonus;
mod eviction_index;
mod leases;
mod lists;
mod namespaces;
mod neighbours;
mod order;
mod pool;
#[cfg(feature = "bench")]
#[path = "../../benches/eviction/probe.rs"]
pub(crate) mod probe;
mod quotas;
mod repooling;
mod room_search;

pub(crate) use bonus::{Bonus, GhostCounts};
pub(crate) use eviction_index::{EvictionIndex, PoolBlocks, UNTIL_RELEASED_S};
pub(crate) use leases::{Footprint, Leases};
pub(crate) use lists::{ChunkNode, ChunkRef, NodeId, Nodes};
pub(crate) use namespaces::NamespaceId;
pub use namespaces::NamespaceUsage;
pub(crate) use neighbours::Victim;
pub(crate) use pool::PoolId;
pub(crate) use quotas::{Quota, Quotas};
pub(crate) use room_search::{Room, RoomSearch};

#[cfg(test)]
mod tests;
