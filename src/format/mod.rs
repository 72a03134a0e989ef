//! What is on disk: structures, names and sizes. Nothing here does I/O.

pub(crate) mod header;
pub(crate) mod membership;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod superblock;
