//! What an open of a store of chunk files looks for.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::account::{Account, cost_bytes};
use crate::block::BLOCK_BYTES;
use crate::directory::Directory;
use crate::format::names::parse_file_name;

/// Open files that the process should be allowed: those of chunks in flight, the directories, and all others.
const WANTED_OPEN_FILES: u64 = 16_384;

/// Notes the chunks' files in directory `number`, and removes what has the number of another one. What is no regular file is
/// nobody's here.
pub(super) fn scan(directory: &Directory, number: usize, account: &mut Account) -> io::Result<()> {
    let is_open_to_others = directory.is_open_to_others();
    for entry in directory.entries()?.into_iter().filter(|entry| entry.is_file) {
        let name = OsStr::from_bytes(entry.name.to_bytes());
        let Some((digest, file)) = parse_file_name(number, name) else { continue };
        if is_open_to_others {
            directory.make_file_private(&entry.name);
        }
        if !account.note_found(digest, file) {
            // Only copies made by hand can be twice; which of them is the chunk nobody knows.
            directory.remove(&entry.name)?;
        }
    }
    Ok(())
}

/// Longest chunk of `most_bytes` or less whose file costs at most `free_bytes`.
pub(super) fn longest_within(free_bytes: u64, most_bytes: u64, unit_bytes: u64) -> u64 {
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
