//! Why a batch is refused.

use thiserror::Error;

use crate::key::MAX_KEY_BYTES;

/// A batch that is refused as a whole, before anything of it is queued.
#[derive(Debug, Error)]
pub enum SubmitError {
    /// `close()` has been called.
    #[error("the connector is closed; open a new one")]
    Closed,
    /// The connector was inherited through fork().
    #[error(
        "the connector belongs to process {owner}, not to its fork {this}; open a connector of its own with another path"
    )]
    Forked {
        /// Process that opened the connector.
        owner: u32,
        /// Process that calls.
        this: u32,
    },
    /// Keys and buffers do not pair up.
    #[error("{keys} keys but {buffers} buffers; each key needs exactly one buffer")]
    CountMismatch {
        /// Number of keys.
        keys: usize,
        /// Number of buffers.
        buffers: usize,
    },
    /// A key is too long.
    #[error("key {position} has {length_bytes} bytes; keys have at most {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Its position in the batch.
        position: usize,
        /// Its length in UTF-8.
        length_bytes: usize,
    },
    /// A chunk is empty.
    #[error("buffer {position} has 0 bytes; a chunk has 1 byte or more")]
    EmptyChunk {
        /// Its position in the batch.
        position: usize,
    },
}
