//! What is told of keys that come and go, and which chunks are still to be told.

use crate::base::sync::SegQueue;

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// It is stored now. One that is replaced is gone before.
    Stored,
    /// It was to be stored again with the same bytes.
    StoredAgain,
    /// It is not stored any more.
    Gone,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    /// The key.
    pub key: String,
    /// Length of its chunk.
    pub length_bytes: u64,
    /// What became of it.
    pub change: KeyChange,
}

/// Changes that nobody has taken yet.
pub(crate) type KeyEvents = SegQueue<KeyEvent>;

/// A chunk that was stored when telling began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UntoldChunk {
    pub(crate) last_used_ms: u64,
    pub(crate) shard: u32,
    pub(crate) entry: u32,
}
