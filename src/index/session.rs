//! Reading who has a store open.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bytemuck::Zeroable;

use crate::format::header::{Header, Owner, SESSION_OFFSET, Session};

/// Who has the store open as far as the index file at `offset` tells. One who closed it is not who holds its lock now.
pub(super) fn read_owner(file: &File, offset: u64) -> Option<Owner> {
    let session = read_session(file, offset).filter(|session| session.clean == 0)?;
    let mut header = Header::zeroed();
    let read = file.read_exact_at(bytemuck::bytes_of_mut(&mut header), offset);
    Some(Owner { store_id: read.ok().map(|()| header.store_id), ..session.owner() })
}

/// The session block, if it is whole.
pub(super) fn read_session(file: &File, offset: u64) -> Option<Session> {
    let mut session = Session::zeroed();
    file.read_exact_at(bytemuck::bytes_of_mut(&mut session), offset + SESSION_OFFSET).ok()?;
    session.is_sensible().then_some(session)
}
