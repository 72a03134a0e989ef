//! Why a key of a batch failed: a code for programs, a message for people.

/// The kind of a failure. A key that is not stored is none: it is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureCode {
    /// `set_queue_bytes`, or the number of SETs, is used up: nothing of the batch was taken.
    QueueFull,
    /// The store, its index or the file system below has no space, and nothing may be evicted for it.
    NoSpace,
    /// The quota of the namespace is used up, and nothing of it may be evicted.
    QuotaFull,
    /// The chunk is longer than the longest that fits.
    TooLong,
    /// Another key has the digest of this one.
    Collision,
    /// The path takes no change: its drive does not answer, its index cannot be written, or its files are gone.
    Unavailable,
    /// The device, or the file system, failed the write or the sync.
    Io,
    /// The connector was closed before it was done.
    Closed,
    /// The connector ended before its outcome was known: it may be done, or not.
    Abandoned,
}

impl FailureCode {
    /// Each of them.
    pub const ALL: [Self; 9] = [
        Self::QueueFull,
        Self::NoSpace,
        Self::QuotaFull,
        Self::TooLong,
        Self::Collision,
        Self::Unavailable,
        Self::Io,
        Self::Closed,
        Self::Abandoned,
    ];

    /// Its name outside of Rust.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NoSpace => "no_space",
            Self::QuotaFull => "quota_full",
            Self::TooLong => "too_long",
            Self::Collision => "collision",
            Self::Unavailable => "unavailable",
            Self::Io => "io",
            Self::Closed => "closed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The failure of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureReason {
    pub(crate) code: FailureCode,
    pub(crate) message: String,
}

impl FailureReason {
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
