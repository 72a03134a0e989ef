//! One error enum per layer; each message names the value, the limit and the way out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use thiserror::Error;

use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::engine::EngineError;
use crate::key::Digest;

/// A wrong option, found before anything is touched.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the message of each error says what it means")]
pub enum ConfigError {
    #[error("unknown option '{name}'; the options are: {known}")]
    Unknown { name: String, known: String },
    #[error("option '{name}' = {value} is not valid: {reason}; it takes {range}")]
    Invalid { name: &'static str, value: String, reason: String, range: String },
    #[error(
        "option '{name}' of an open store stays what it is: close it, and open it with another one; these can be changed: {known}"
    )]
    Unchangeable { name: String, known: String },
    #[error(
        "required and not given: {}; for example \"path\": \"/mnt/nvme/kvring\", \"capacity\": \"500GiB\"",
        quoted(names)
    )]
    Missing { names: Vec<&'static str> },
    #[error(
        "{} but {}; give one capacity for all paths, or one for each path",
        counted(*paths, "path", "paths"),
        counted(*capacities, "capacity", "capacities")
    )]
    Capacities { paths: usize, capacities: usize },
}

/// What to do where a file cannot be written or lengthened.
pub(crate) fn way_to_write(refusal: &io::Error) -> &'static str {
    match refusal.raw_os_error() {
        Some(libc::ENOSPC) => "free space on that file system",
        Some(libc::EDQUOT) => "raise the quota, or free space within it",
        Some(libc::EFBIG) => {
            "raise the limit on the length of files (ulimit -f, RLIMIT_FSIZE), if it is not that of the file system"
        }
        Some(libc::EPERM) => {
            "take the flags immutable and append-only off it (lsattr shows them, chattr -ia takes them off)"
        }
        Some(libc::EMFILE) => "raise the limit on open files (ulimit -n)",
        Some(libc::EROFS) => "make its file system writable (mount -o remount,rw)",
        _ => "look at the kernel's log for the device",
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

fn counted(count: usize, singular: &str, plural: &str) -> String {
    format!("{count} {}", if count == 1 { singular } else { plural })
}

/// Failures to find an extent for a chunk. `needed_bytes` are rounded up to blocks.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the message of each error says what it means")]
pub(crate) enum StoreError {
    #[error(
        "the chunk of the key with digest {digest} has {length_bytes} bytes, and the longest that fits has {limit_bytes} \
         (2 GiB, or an eighth of capacity = {capacity_bytes}, but 64 MiB where that is less); raise capacity or store shorter chunks"
    )]
    TooLong { digest: Digest, length_bytes: u64, limit_bytes: u64, capacity_bytes: u64 },
    #[error(
        "store full: no room for {needed_bytes} bytes within the capacity of {capacity_bytes} bytes; delete chunks or raise capacity"
    )]
    Full { needed_bytes: u64, capacity_bytes: u64 },
    /// The store is about to grow. Who is told so tries again afterwards.
    #[error(
        "store full: it is growing, and {needed_bytes} bytes have no room until then; try again"
    )]
    Growing { needed_bytes: u64 },
    #[error(
        "the index is full: it has {index_bytes} of the capacity of {capacity_bytes} bytes, and data files the rest; raise \
         capacity, or store longer chunks"
    )]
    IndexFull { index_bytes: u64, capacity_bytes: u64 },
    #[error(
        "store full: what would have to go for {needed_bytes} bytes is being read, leased or pinned; unpin keys, or raise capacity"
    )]
    InUse { needed_bytes: u64 },
    #[error(
        "no room for {needed_bytes} bytes in namespace '{namespace}', whose quota is {quota_bytes} bytes: what would have \
         to go is being read, leased or pinned, or not enough; raise the quota"
    )]
    Quota { needed_bytes: u64, namespace: String, quota_bytes: u64 },
    #[error(
        "store full: growing by {needed_bytes} bytes would leave the file system less than min_free (there are \
         {free_bytes} bytes above it); free space there or lower min_free"
    )]
    Floor { needed_bytes: u64, free_bytes: u64 },
    #[error(
        "cannot store: the disk does not return {pages} pages of {path}, and more than {limit} are too many to go on; stored \
         chunks can be loaded; repair or replace the drive, and open the store again"
    )]
    IndexUnreadable { path: PathBuf, pages: usize, limit: usize },
    #[error(
        "store full: the file system of {path} has no space for blocks of a data file ({source}): the file shares its blocks \
         with a copy (a reflink), has holes, or lies on something that gives out more than it has; remove the copy, or {way_out}",
        way_out = way_to_write(source)
    )]
    NoBlocks { path: PathBuf, source: Arc<io::Error> },
    #[error("store full: cannot grow {path} by {bytes} bytes: {source}; {}", way_to_write(source))]
    Grow { path: PathBuf, bytes: u64, source: Arc<io::Error> },
}

impl From<&StoreError> for FailureReason {
    fn from(error: &StoreError) -> Self {
        let code = match error {
            StoreError::TooLong { .. } => FailureCode::TooLong,
            StoreError::Quota { .. } => FailureCode::QuotaFull,
            StoreError::IndexUnreadable { .. } => FailureCode::Unavailable,
            _ => FailureCode::NoSpace,
        };
        Self::new(code, error.to_string())
    }
}

/// Failures to open a store, each with the action that clears it: `make reference` makes a table of docs/reference/errors.md of
/// them.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the message of each error names its fields")]
pub enum OpenError {
    /// An option is unknown, missing, invalid, or unfit for the path. Action: see the message.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// io_uring is refused (`engine: io_uring`), or no thread or memory is left. Action: see the message.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Another live connector has the store open. Action: close it in that process.
    #[error(
        "{path} is in use by {holder}; close it there or choose another path (one store has one owner)"
    )]
    InUse { path: PathBuf, holder: String },
    /// The block device is mounted, or used as swap, RAID or by a program. Action: release it.
    #[error("{path} is in use by {user}; release it there, or choose another device")]
    Claimed { path: PathBuf, user: String },
    /// The block device holds foreign data, or two damaged superblocks. Action: use another device, or `kvring format`.
    #[error(
        "{path} holds {found}; kvring writes to no device that it has not formatted: use another device; to \
         erase this one: `kvring format {path}` (nothing was written)"
    )]
    NotFormatted { path: PathBuf, found: String },
    /// No device has this name. Action: check with `lsblk`.
    #[error(
        "{path} cannot hold a store: there is no such device; look for the right name with lsblk"
    )]
    NoDevice { path: PathBuf },
    /// Nothing is mounted at `require_mount`. Action: mount the drive.
    #[error(
        "{path} is not opened: nothing is mounted at {mount} (require_mount){disk}; mount its drive there, or leave require_mount out to store there all the same (nothing was made)",
        disk = disk.as_ref().map_or_else(String::new, |disk| format!(", so it would lie on {disk}"))
    )]
    NotMounted { path: PathBuf, mount: PathBuf, disk: Option<String> },
    /// The block device is read-only. Action: `blockdev --setrw`.
    #[error(
        "{path} cannot hold a store: it is read-only; make it writable (blockdev --setrw, or the switch of the medium) or \
         choose another"
    )]
    ReadOnlyDevice { path: PathBuf },
    /// No store can be there: a file, FIFO, socket or character device; a block device below 32 MiB, host-managed zoned, or with logical blocks over 4096 bytes; a foreign `index.kvring`; a wrong `index_path`. Action: use another path or `index_path`.
    #[error("{path} cannot hold a store: {reason}")]
    Unsuitable { path: PathBuf, reason: String },
    /// A newer kvring wrote the store. Action: upgrade kvring, or use another path.
    #[error(
        "{path} has format version {found}, this kvring reads up to {supported}; upgrade kvring or choose another path \
         (it was left as it is)"
    )]
    NewerFormat { path: PathBuf, found: u32, supported: u32 },
    /// Two paths are one store. Action: name each store once.
    #[error("{path} and {other} are the same store; name each once")]
    SameStore { path: PathBuf, other: PathBuf },
    /// A path lies inside another one. Action: use separate directories.
    #[error("{path} is inside {outer}; give each of them a directory of its own")]
    Nested { path: PathBuf, outer: PathBuf },
    /// A path belongs to another set of paths. Action: open its own set, leave it out, or empty it.
    #[error(
        "{path} belongs to another set of paths, of which none is here; leave it out, open it with its own, or empty it \
         (the store was left as it is)"
    )]
    ForeignVolume { path: PathBuf },
    /// The paths hold stores that never shared keys. Action: leave one out, or empty it.
    #[error(
        "{path} holds chunks of a store of its own, and {other} those of {what}: they do not become one store; leave one of \
         them out, or empty one of them, which then takes its share as a new path (both were left as they are)"
    )]
    Unrelated { path: PathBuf, other: PathBuf, what: &'static str },
    /// The store has the other layout. Action: set `layout`, or use another path.
    #[error(
        "{path} holds a store of layout '{found}', not '{wanted}'; open it with layout: '{found}', or choose another path \
         (the store was left as it is)"
    )]
    OtherLayout { path: PathBuf, found: &'static str, wanted: &'static str },
    /// The limit on address space is below that of the index: an eighth of the capacity, 16 MiB to 1 TiB, or a longer index. Action: raise `ulimit -v`; in a directory lower `capacity`.
    #[error(
        "cannot map {path}: {source}; the index reserves {needed} of address space for all that it can become (no memory){limit}; \
         raise the limit on address space (ulimit -v, RLIMIT_AS){way_out}",
        needed = ByteSize(*needed_bytes),
        limit = limit_bytes.map_or_else(String::new, |bytes| format!(", and this process may have {} in all", ByteSize(bytes)))
    )]
    AddressSpace {
        path: PathBuf,
        needed_bytes: u64,
        limit_bytes: Option<u64>,
        way_out: &'static str,
        source: io::Error,
    },
    /// A system call fails; or a file of the store is a link, has a second hard link, is a special file, or belongs to another user. Action: repair the named object.
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Io { source, .. } => source,
            error => Self::other(error),
        }
    }
}

impl OpenError {
    pub(crate) fn unsuitable(path: &Path, reason: impl Into<String>) -> Self {
        Self::Unsuitable { path: path.to_owned(), reason: reason.into() }
    }

    /// What makes the error of `action` on `path` from what the system said.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_grow_names_the_way_out_of_its_errno() {
        for (errno, way) in [
            (libc::ENOSPC, "; free space on that file system"),
            (libc::EDQUOT, "; raise the quota, or free space within it"),
            (libc::EPERM, "lsattr"),
            (libc::EFBIG, "ulimit -f"),
            (libc::EMFILE, "ulimit -n"),
            (libc::EIO, "the kernel's log"),
        ] {
            let source = Arc::new(io::Error::from_raw_os_error(errno));
            let error = StoreError::Grow { path: "/store/data.0".into(), bytes: 4096, source };
            let said = error.to_string();
            assert!(said.contains("/store/data.0") && said.contains(way), "{said}");
            assert_eq!(said.contains("free space on"), errno == libc::ENOSPC, "{said}");
        }
    }
}
