//! The header of the index file, which never changes: writing it, and telling whether a file has one of ours.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::index_file::IndexFile;
use super::owner::read_session;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::{FORMAT_VERSION, HEADER_BYTES, Header, MAGIC};
use crate::format::names::{CHUNKS_NAME, INDEX_NAME, StoreId};
use crate::store::data_files::list_data_files;

/// Makes an empty index of it.
pub(super) fn start_anew(index_file: &IndexFile, now_ms: u64) -> io::Result<()> {
    let header = Header::new(index_file.id_for_header()?, now_ms);
    let mut page = [0; HEADER_BYTES as usize];
    page[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header));
    index_file.start_anew(&mut page)
}

/// Whether the header can be relied upon: `None` if so, else why not; an empty reason for a file that was just made.
pub(super) fn check_header(
    index_file: &IndexFile,
    length: Option<u64>,
) -> Result<Option<String>, OpenError> {
    if length == Some(0) {
        return Ok(Some(String::new()));
    }
    let is_long_enough = length.is_none_or(|length| length >= HEADER_BYTES);
    let Some(header) = index_file.read_value(0).ok().filter(|_| is_long_enough) else {
        return Ok(Some(match length {
            Some(length) => format!("its header cannot be read from {length} bytes"),
            None => "its header cannot be read".into(),
        }));
    };
    Ok(match judge_header(&header, &index_file.path, index_file.store_id)? {
        None if length.is_none() => Some("its length cannot be read".into()),
        reason => reason.map(Into::into),
    })
}

/// Refuses a file that kvring has never written. Damage of one of ours leaves a part of its header, or there is data of a store
/// beside it.
pub(super) fn refuse_foreign(index_file: &IndexFile) -> Result<(), OpenError> {
    let Some(directory) = index_file.store_directory() else { return Ok(()) };
    let mut page = [0; HEADER_BYTES as usize];
    // The rest of a shorter file counts as zeros; an unreadable one may have been ours.
    let mut filled = 0;
    while filled < page.len() {
        match index_file.file.read_at(&mut page[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(_) => return Ok(()),
        }
    }
    let mut header: Header = bytemuck::pod_read_unaligned(&page[..size_of::<Header>()]);
    let has_magic = header.magic == MAGIC;
    header.magic = MAGIC;
    let expected = Header::new(header.store_id, header.created_ms);
    let is_header = bytemuck::bytes_of(&header) == bytemuck::bytes_of(&expected);
    let has_session = read_session(&index_file.file, 0).is_some();
    let is_zero = page.iter().all(|byte| *byte == 0);
    if has_magic || is_header || has_session || is_zero || has_data(directory) {
        return Ok(());
    }
    Err(OpenError::Unsuitable {
        path: directory.path().to_owned(),
        reason: format!(
            "its {INDEX_NAME} is not one that kvring has written; move that file away or choose another directory (it was \
             left as it is)"
        ),
    })
}

fn has_data(directory: &Directory) -> bool {
    let has_files = list_data_files(directory).is_ok_and(|files| !files.is_empty());
    has_files || directory.contains(CHUNKS_NAME).unwrap_or(false)
}

/// Why a header, of the index file at `path`, is not that of the store with this id, or of any; `None` if it is.
pub(super) fn judge_header(
    header: &Header,
    path: &Path,
    store_id: Option<StoreId>,
) -> Result<Option<&'static str>, OpenError> {
    if header.magic != MAGIC {
        return Ok(Some("it is not a kvring index"));
    }
    if header.version > FORMAT_VERSION {
        return Err(OpenError::NewerFormat {
            path: path.to_owned(),
            found: header.version,
            supported: FORMAT_VERSION,
        });
    }
    let expected = Header::new(header.store_id, header.created_ms);
    let is_whole = bytemuck::bytes_of(header) == bytemuck::bytes_of(&expected);
    Ok(match store_id {
        _ if !is_whole => Some("its header is damaged"),
        Some(id) if id != header.store_id => Some("it belongs to another store"),
        _ => None,
    })
}
