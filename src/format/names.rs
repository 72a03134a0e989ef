//! How the files of a store are called, and who may read them.
//!
//! `index.kvring` and `data-NNNNN.kvring` are in the directory of the store; the file of a chunk in layout `files` is
//! `chunks/xx/DIGEST-NUMBER`, where `xx` is the first byte of the digest.

use std::ffi::{CString, OsStr};
use std::path::{Path, PathBuf};

use crate::key::Digest;

pub(crate) type StoreId = [u8; 16];

pub(crate) const FILE_MODE: libc::mode_t = 0o600;
pub(crate) const INDEX_NAME: &str = "index.kvring";

/// More than any capacity makes; a file with a higher number is nobody's.
const MAX_DATA_FILES: u32 = 1 << 20;

/// A file that exists for a moment while a store is opened.
pub(crate) const PROBE_NAME: &str = "geometry-probe.kvring";

/// The socket on which the owner of a store answers others: connector_py makes it.
pub(crate) const OWNER_SOCKET_NAME: &str = "owner-socket.kvring";

/// Blocks of a part of a device; most devices have one. Its blocks are counted in 32 bits: these are 8 TiB.
pub(crate) const PART_BLOCKS: u64 = 1 << 31;

pub(crate) const CHUNKS_NAME: &str = "chunks";

/// Directories in it, one for each first byte of a digest.
pub(crate) const DIRECTORIES: usize = 256;

const DIGEST_DIGITS: usize = 32;

/// Number of the directory of the chunks with this digest.
pub(crate) fn directory_of(digest: Digest) -> usize {
    usize::from(digest.bytes()[0])
}

pub(crate) fn directory_name(number: usize) -> String {
    format!("{number:02x}")
}

pub(crate) fn file_name(digest: Digest, number: u32) -> String {
    format!("{digest}-{number}")
}

/// Path of a chunk file inside the store's directory.
pub(crate) fn chunk_path(digest: Digest, number: u32) -> PathBuf {
    let directory = Path::new(CHUNKS_NAME).join(directory_name(directory_of(digest)));
    directory.join(file_name(digest, number))
}

pub(crate) fn file_c_name(digest: Digest, number: u32) -> CString {
    // Hexadecimal digits, a dash and decimal digits: no NUL.
    CString::new(file_name(digest, number)).unwrap_or_default()
}

/// Digest and number in the name of a chunk's file, if it is one of directory `directory`.
pub(crate) fn parse_file_name(directory: usize, name: &OsStr) -> Option<(Digest, u32)> {
    let name = name.to_str()?;
    let (digits, number) = name.split_once('-')?;
    if digits.len() != DIGEST_DIGITS {
        return None;
    }
    let bytes = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
    let (digest, number) = (Digest(bytemuck::cast(bytes)), number.parse().ok()?);
    // The one spelling that is given out.
    (directory_of(digest) == directory && file_name(digest, number) == name)
        .then_some((digest, number))
}

pub(crate) fn data_file_name(number: u32) -> String {
    format!("data-{number:05}.kvring")
}

/// Number of the data file called `name`, if it is one.
pub(crate) fn data_file_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("data-")?.strip_suffix(".kvring")?.parse().ok()?;
    (number < MAX_DATA_FILES && data_file_name(number) == name).then_some(number)
}

/// The id of a store as it is written in the name of its index.
pub(crate) fn id_text(store_id: StoreId) -> String {
    store_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn device_index_name(store_id: [u8; 16]) -> String {
    format!("index-{}.kvring", id_text(store_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let digest = Digest::of("abc");
        let name = file_name(digest, 17);
        assert_eq!(name, "cf4ab791c62b8d2b2109c90275287816-17");
        assert_eq!(parse_file_name(0xcf, OsStr::new(&name)), Some((digest, 17)));
        for other in [
            "cf4ab791c62b8d2b2109c90275287816-017",
            "cf4ab791c62b8d2b2109c90275287816-",
            "cf4ab791c62b8d2b2109c90275287816-4294967296",
            "CF4ab791c62b8d2b2109c90275287816-17",
            "cf4ab791c62b8d2b2109c9027528781-17",
            "cf4ab791c62b8d2b2109c90275287816-17.copy",
            "+f4ab791c62b8d2b2109c90275287816-17",
            "notes.txt",
        ] {
            assert_eq!(parse_file_name(0xcf, OsStr::new(other)), None, "{other}");
        }
        assert_eq!(parse_file_name(0xce, OsStr::new(&name)), None, "another directory's");
    }

    #[test]
    fn the_index_of_a_device_is_named_after_its_store() {
        let name = device_index_name([0x0a, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
        assert_eq!(name, "index-0a0102030405060708090a0b0c0d0eff.kvring");
    }

    #[test]
    fn names_of_data_files_round_trip() {
        for number in [0, 7, 99_999, 100_000, MAX_DATA_FILES - 1] {
            assert_eq!(data_file_number(&data_file_name(number)), Some(number));
        }
        assert_eq!(data_file_number(&data_file_name(MAX_DATA_FILES)), None);
        for other in [
            "data-1.kvring",
            "data-00001",
            "index.kvring",
            "data--0001.kvring",
            "data-00001.kvring.bak",
            "data-4294967295.kvring",
        ] {
            assert_eq!(data_file_number(other), None, "{other}");
        }
    }
}
