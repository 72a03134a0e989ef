//! What an open of a store of chunk files looks for.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::account::{Account, cost_bytes, directory_bytes};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::directory::Directory;
use crate::format::names::{
    CHUNKS_NAME, DIRECTORIES, directory_name, directory_of, parse_file_name,
};
use crate::key::Digest;
use crate::space_account::SpaceAccount;
use crate::store::sizes::{index_share_bytes, longest_chunk_bytes};

/// Open files that the process should be allowed: those of chunks in flight, the directories, and all others.
const WANTED_OPEN_FILES: u64 = 16_384;

/// Notes the chunks' files in directory `number`, and has `remove` remove what has the number of another one; what of that stays is
/// in `space`. What is no regular file is nobody's here.
pub(super) fn scan(
    directory: &Directory,
    number: usize,
    account: &mut Account,
    space: &SpaceAccount,
    remove: impl Fn(&CStr) -> Result<(), u64>,
) -> io::Result<()> {
    let is_open_to_others = directory.is_open_to_others();
    for entry in directory.entries()? {
        let name = OsStr::from_bytes(entry.name.to_bytes());
        let Some((digest, file)) = parse_file_name(number, name) else { continue };
        if !entry.is_file {
            // No file can be made of this name.
            account.note_taken(file);
            continue;
        }
        if is_open_to_others {
            directory.make_file_private(&entry.name);
        }
        if !account.note_found(digest, file) {
            // Only copies made by hand can be twice; which of them is the chunk nobody knows.
            remove(&entry.name).unwrap_or_else(|bytes| space.add(bytes));
        }
    }
    Ok(())
}

/// Longest chunk that fits into `left_bytes` of the space beside the share of the index.
pub(super) fn longest_beside(left_bytes: u64, space: &SpaceAccount, unit_bytes: u64) -> u64 {
    let spare_bytes = index_share_bytes(space.capacity_bytes());
    let free_bytes = left_bytes.saturating_sub(spare_bytes + directory_bytes(1));
    longest_within(free_bytes, longest_chunk_bytes(space.capacity_bytes()), unit_bytes)
}

/// Longest chunk of `most_bytes` or less whose file costs at most `free_bytes`.
fn longest_within(free_bytes: u64, most_bytes: u64, unit_bytes: u64) -> u64 {
    let mut blocks = (free_bytes.min(most_bytes) / BLOCK_BYTES) as u32;
    while blocks > 0 && cost_bytes(blocks, unit_bytes) > free_bytes {
        blocks -= 1;
    }
    u64::from(blocks) * BLOCK_BYTES
}

/// Lets the process have as many open files as chunks may need at a time, if it may.
pub(super) fn raise_open_files() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = WANTED_OPEN_FILES.min(hard);
    if soft < wanted
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    {
        log::warn!("cannot raise the limit of open files from {soft} to {wanted}: {error}");
    }
}

/// How many of the chunks, of which those that go first come first, an open evicts until the rest is within the capacity.
/// `space` has the index. Nothing is changed.
///
/// # Errors
/// The file system does not tell how it gives out space.
pub(crate) fn evicted_by_open(
    directory: &Directory,
    space: &SpaceAccount,
    coldest_first: &[(Digest, Extent)],
) -> io::Result<usize> {
    let unit_bytes = directory.file_system()?.fragment_size().max(BLOCK_BYTES);
    let cost = |extent: &Extent| cost_bytes(extent.blocks, unit_bytes);
    let mut files = [0; DIRECTORIES];
    coldest_first.iter().for_each(|(digest, _)| files[directory_of(*digest)] += 1);
    let chunks = directory.path().join(CHUNKS_NAME);
    let own_bytes = |path: &Path| path.metadata().map_or(0, |found| found.blocks() * 512);
    let directories = files.iter().enumerate().map(|(number, files)| {
        own_bytes(&chunks.join(directory_name(number))).max(directory_bytes(*files))
    });
    let needed_bytes = own_bytes(&chunks).max(BLOCK_BYTES)
        + directories.sum::<u64>()
        + coldest_first.iter().map(|(_, extent)| cost(extent)).sum::<u64>();
    let mut over_bytes = needed_bytes.saturating_sub(space.left_bytes());
    let goes = |(_, extent): &&(Digest, Extent)| {
        let is_over = over_bytes > 0;
        over_bytes = over_bytes.saturating_sub(cost(extent));
        is_over
    };
    Ok(coldest_first.iter().take_while(goes).count())
}
