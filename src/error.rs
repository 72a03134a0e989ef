//! One error enum per layer; each message names the value, the limit and the way out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use thiserror::Error;

use crate::engine::EngineError;
use crate::key::Digest;

/// A wrong option, found before anything is touched.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The option does not exist.
    #[error("unknown option '{name}'{hint}; the options are: {known}", hint = did_you_mean(*nearest))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The one that was probably meant.
        nearest: Option<&'static str>,
        /// All names that exist.
        known: String,
    },
    /// The option does not exist any more.
    #[error("option '{name}' is gone: {fate}; leave it out")]
    Gone {
        /// The name that was given.
        name: String,
        /// What became of it.
        fate: String,
    },
    /// The option exists; its value does not fit.
    #[error("option '{name}' = {value} is not valid: {reason}; it takes {range}")]
    Invalid {
        /// The option.
        name: &'static str,
        /// The value that was given, as text.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// What it accepts, with its unit.
        range: String,
    },
    /// Required options are missing.
    #[error(
        "required and not given: {}; for example \"path\": \"/mnt/nvme/kvring\", \"capacity\": \"500GiB\"",
        quoted(names)
    )]
    Missing {
        /// The options.
        names: Vec<&'static str>,
    },
    /// Paths and capacities do not pair up.
    #[error(
        "{paths} paths but {capacities} capacities; give one capacity for all, or one for each path"
    )]
    Capacities {
        /// Number of paths.
        paths: usize,
        /// Number of capacities.
        capacities: usize,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean '{name}'?)"))
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

/// Failures to find a place for a chunk.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// The chunk is longer than any that the store takes.
    #[error(
        "the chunk of the key with digest {digest} has {length_bytes} bytes, and the longest that fits has {limit_bytes} \
         (2 GiB, or an eighth of capacity = {capacity_bytes}); raise capacity or store shorter chunks"
    )]
    TooLong {
        /// Digest of its key.
        digest: Digest,
        /// Its length.
        length_bytes: u64,
        /// Longest chunk of this store.
        limit_bytes: u64,
        /// The configured capacity.
        capacity_bytes: u64,
    },
    /// Nothing can be placed within the capacity.
    #[error(
        "store full: no room for {needed_bytes} bytes within the capacity of {capacity_bytes} bytes; delete chunks or raise capacity"
    )]
    Full {
        /// Bytes asked for, rounded up to blocks.
        needed_bytes: u64,
        /// The configured capacity.
        capacity_bytes: u64,
    },
    /// The store is about to grow. Who is told so tries again afterwards.
    #[error(
        "store full: it is growing, and {needed_bytes} bytes have no room until then; try again"
    )]
    Growing {
        /// Bytes asked for.
        needed_bytes: u64,
    },
    /// The index has no room for a record, and cannot grow within the capacity.
    #[error(
        "the index is full: it has {index_bytes} of the capacity of {capacity_bytes} bytes, and data files the rest; raise \
         capacity, or store longer chunks"
    )]
    IndexFull {
        /// Bytes that it has.
        index_bytes: u64,
        /// The configured capacity.
        capacity_bytes: u64,
    },
    /// What has the space cannot go now.
    #[error(
        "store full: what would have to go for {needed_bytes} bytes is being written or read, leased or pinned; store more \
         slowly, unpin keys, or raise capacity"
    )]
    Guarded {
        /// Bytes asked for, rounded up to blocks.
        needed_bytes: u64,
    },
    /// The chunk's namespace has a quota that it does not fit into.
    #[error(
        "no room for {needed_bytes} bytes in namespace '{namespace}', whose quota is {quota_bytes} bytes: what would have \
         to go is being read, leased or pinned, or not enough; raise the quota"
    )]
    Quota {
        /// Bytes asked for, rounded up to blocks.
        needed_bytes: u64,
        /// The namespace.
        namespace: String,
        /// Its quota.
        quota_bytes: u64,
    },
    /// The file system would have less free space than it is to keep.
    #[error(
        "store full: growing by {needed_bytes} bytes would leave the file system less than min_free (there are \
         {free_bytes} bytes above it); free space there or lower min_free"
    )]
    Floor {
        /// Bytes by which a file was to grow.
        needed_bytes: u64,
        /// What is free above the floor.
        free_bytes: u64,
    },
    /// Data files share blocks with a copy, or have holes, and the file system lacks the space to write there.
    #[error(
        "store full: {shared_bytes} bytes of the data files share their blocks with a copy (a reflink), or have none, and the \
         file system has {free_bytes} bytes above min_free for writing them anew; remove the copy, or free space there"
    )]
    Shared {
        /// Bytes of the data files for which nothing is reserved.
        shared_bytes: u64,
        /// What is free above the floor.
        free_bytes: u64,
    },
    /// The index shares blocks with a copy, or has holes, and the file system lacks the space to write there.
    #[error(
        "store full: {path} shares its blocks with a copy (a reflink), or has none, and its file system has none left for \
         writing it anew; remove the copy, or free space there"
    )]
    IndexShared {
        /// The index.
        path: PathBuf,
    },
    /// A write into a data file found the file system full.
    #[error(
        "store full: the file system of {path} has no space for blocks of a data file ({source}): the file shares its blocks \
         with a copy (a reflink), has holes, or lies on something that gives out more than it has; remove the copy, or free \
         space there"
    )]
    NoBlocks {
        /// The store.
        path: PathBuf,
        /// What the file system said.
        source: Arc<io::Error>,
    },
    /// The file system refused to grow a file.
    #[error(
        "store full: cannot grow {path} by {bytes} bytes: {source}; free space on that file system"
    )]
    Grow {
        /// The file.
        path: PathBuf,
        /// How much it was to grow.
        bytes: u64,
        /// What the file system said.
        source: Arc<io::Error>,
    },
}

/// Failures to open a store.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A wrong option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The I/O engine cannot start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Another live connector has the store open.
    #[error(
        "{path} is in use by {holder}; close it there or choose another path (one store has one owner)"
    )]
    InUse {
        /// The store.
        path: PathBuf,
        /// Process id and host of the owner, as far as they can be read.
        holder: String,
    },
    /// Something that is no kvring has the block device.
    #[error("{path} is in use by {user}; release it there, or choose another device")]
    Claimed {
        /// The device.
        path: PathBuf,
        /// What it is.
        user: String,
    },
    /// The block device holds something that kvring has not written.
    #[error(
        "{path} holds {found}; kvring writes to no device that it has not formatted: choose another one, or, if what is \
         there may go, erase it with `kvring format {path}` (nothing was written)"
    )]
    NotFormatted {
        /// The device.
        path: PathBuf,
        /// What is there, as far as it is known.
        found: String,
    },
    /// The path is below /dev, and there is nothing. Of several paths, one that the others know of is left out instead.
    #[error("{path} cannot hold a store: there is no such device; look for the right name with lsblk", path = path.display())]
    NoDevice {
        /// What is not there.
        path: PathBuf,
    },
    /// The block device is read-only. Of several paths it is left out.
    #[error(
        "{path} cannot hold a store: it is read-only; make it writable (blockdev --setrw, or the switch of the medium) or \
         choose another", path = path.display()
    )]
    ReadOnlyDevice {
        /// The device.
        path: PathBuf,
    },
    /// The path names something that no store can be on.
    #[error("{path} cannot hold a store: {reason}")]
    Unsuitable {
        /// What it names.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The store was written by a newer kvring.
    #[error(
        "{path} has format version {found}, this kvring reads up to {supported}; upgrade kvring or choose another path \
         (it was left as it is)"
    )]
    NewerFormat {
        /// The index file, or the block device.
        path: PathBuf,
        /// Version in its header.
        found: u32,
        /// Highest version understood here.
        supported: u32,
    },
    /// Two of the paths lead to one store.
    #[error("{path} and {other} are the same store; name each once")]
    SameStore {
        /// One of them.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
    },
    /// One path lies inside another.
    #[error("{path} is inside {outer}; give each of them a directory of its own")]
    Nested {
        /// The inner one.
        path: PathBuf,
        /// The outer one.
        outer: PathBuf,
    },
    /// The store is one of several that share keys, and the others are not these.
    #[error(
        "{path} belongs to another set of paths, of which none is here; leave it out, open it with its own, or empty it \
         (the store was left as it is)"
    )]
    ForeignVolume {
        /// The store.
        path: PathBuf,
    },
    /// Two stores that never shared keys.
    #[error(
        "{path} holds chunks of a store of its own, and {other} those of {what}: they do not become one store; leave one of \
         them out, or empty one of them, which then takes its share as a new path (both were left as they are)"
    )]
    Unrelated {
        /// A store that never shared keys with others.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
        /// What that is.
        what: &'static str,
    },
    /// The store was made with another layout.
    #[error(
        "{path} holds a store of layout '{found}', not '{wanted}'; open it with layout: '{found}', or choose another path \
         (the store was left as it is)"
    )]
    OtherLayout {
        /// The store.
        path: PathBuf,
        /// Its layout.
        found: &'static str,
        /// The one that was asked for.
        wanted: &'static str,
    },
    /// The index cannot be mapped: it takes more address space than the process may have.
    #[error(
        "cannot map {path}: {source}; the index reserves {needed} of address space for all that it can become (no memory){limit}; \
         raise the limit on address space (ulimit -v, RLIMIT_AS){way_out}",
        path = path.display(),
        needed = ByteSize(*needed_bytes),
        limit = limit_bytes.map_or_else(String::new, |bytes| format!(", and this process may have {} in all", ByteSize(bytes)))
    )]
    AddressSpace {
        /// The index file, or the block device.
        path: PathBuf,
        /// What the mapping takes.
        needed_bytes: u64,
        /// What the process may have, if that is limited.
        limit_bytes: Option<u64>,
        /// What else can be done.
        way_out: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file or directory cannot be made, opened or read.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// What makes the error of `action` on `path` from what the system said.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
