//! Why a batch is refused.

use thiserror::Error;

use crate::key::MAX_KEY_BYTES;

/// A batch, or another call, that is refused as a whole, before anything of it is queued. Each call that returns it may return
/// `Closed` and `Forked`; one with keys `KeyTooLong`; and one with buffers the others.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the message of each error says what it means")]
pub enum SubmitError {
    #[error("the connector is closed; open a new one")]
    Closed,
    #[error(
        "the connector belongs to process {owner}, not to its fork {this}; open a connector of its own with another path"
    )]
    Forked { owner: u32, this: u32 },
    #[error("{keys} keys but {buffers} buffers; each key needs exactly one buffer")]
    CountMismatch { keys: usize, buffers: usize },
    /// `position` is that in the batch, here and below.
    #[error("key {position} has {length_bytes} bytes; keys have at most {MAX_KEY_BYTES}")]
    KeyTooLong { position: usize, length_bytes: usize },
    #[error("buffer {position} has 0 bytes; a chunk has 1 byte or more")]
    EmptyChunk { position: usize },
}
