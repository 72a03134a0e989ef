//! The first page of the sidecar: the header that never changes, and who has the store open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytemuck::Zeroable;

use super::record::{FORMAT_VERSION, HEADER_BYTES, Header, MAGIC, SESSION_OFFSET, Session};
use crate::config::BLOCK_BYTES;
use crate::error::OpenError;
use crate::lock::Owner;

/// Makes `file` an empty sidecar.
pub(super) fn start_anew(file: &File, directory: &Path, now_ms: u64) -> io::Result<()> {
    let header = Header::new(new_store_id()?, now_ms, BLOCK_BYTES as u32);
    let mut page = [0; HEADER_BYTES as usize];
    page[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header));
    file.set_len(0)?;
    file.write_all_at(&page, 0)?;
    // With its name: nothing that is synced later is worth anything without it.
    file.sync_all()?;
    File::open(directory)?.sync_all()
}

/// Whether the header can be relied upon: `None` if so, else why not; an empty reason for a file that was just made.
pub(super) fn check_header(
    file: &File,
    length: u64,
    path: &Path,
) -> Result<Option<String>, OpenError> {
    if length == 0 {
        return Ok(Some(String::new()));
    }
    let mut header = Header::zeroed();
    if length < HEADER_BYTES || file.read_exact_at(bytemuck::bytes_of_mut(&mut header), 0).is_err()
    {
        return Ok(Some(format!("its header cannot be read from {length} bytes")));
    }
    if header.magic != MAGIC {
        return Ok(Some("it is not a kvring index".into()));
    }
    if header.version > FORMAT_VERSION {
        return Err(OpenError::NewerFormat {
            path: path.to_owned(),
            found: header.version,
            supported: FORMAT_VERSION,
        });
    }
    let expected = Header::new(header.store_id, header.created_ms, BLOCK_BYTES as u32);
    if bytemuck::bytes_of(&header) != bytemuck::bytes_of(&expected) {
        return Ok(Some("its header is damaged".into()));
    }
    Ok(None)
}

/// Who has the store open as far as the file tells. One who closed it is not who holds its lock now.
pub(super) fn read_owner(file: &File) -> Option<Owner> {
    read_session(file).filter(|session| session.clean == 0).map(|session| session.owner())
}

/// The session block, if it is whole.
pub(super) fn read_session(file: &File) -> Option<Session> {
    let mut session = Session::zeroed();
    file.read_exact_at(bytemuck::bytes_of_mut(&mut session), SESSION_OFFSET).ok()?;
    session.is_intact().then_some(session)
}

fn new_store_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}
