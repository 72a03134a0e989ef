//! What the simulator of `make eviction` and `benches/micro/recovery.rs` need of the inside. Only with the feature `bench`; not part of the API.

pub use crate::evict::probe::{EvictionProbe, Held, coin};
pub use crate::key::Digest;
