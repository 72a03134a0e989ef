//! The owner and the session that an index file names, as they are read without its lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytemuck::Pod;

use crate::format::header::{Header, Owner, SESSION_OFFSET, Session};

/// Who has the store open as far as the index file at `offset` tells. One who closed it is not who holds its lock now.
pub(super) fn read_owner(file: &File, offset: u64) -> Option<Owner> {
    let session = read_session(file, offset).filter(|session| session.clean == 0)?;
    let header = read_value::<Header>(file, offset);
    Some(Owner { store_id: header.ok().map(|header| header.store_id), ..session.owner() })
}

/// The session block, if it is whole.
pub(super) fn read_session(file: &File, offset: u64) -> Option<Session> {
    read_value(file, offset + SESSION_OFFSET).ok().filter(Session::is_sensible)
}

/// The structure at `offset`.
pub(super) fn read_value<T: Pod>(file: &File, offset: u64) -> io::Result<T> {
    let mut value = T::zeroed();
    file.read_exact_at(bytemuck::bytes_of_mut(&mut value), offset)?;
    Ok(value)
}
