//! What io_uring_register(2) does with buffers. A ring has a table of them; each entry is memory whose pages the kernel has looked up and pinned once,
//! instead of for each transfer.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Entries of a table.
pub(super) const MAX_PIECES: usize = 512;

/// Longest memory that one entry can have.
pub(super) const MAX_PIECE_BYTES: usize = 1 << 30;

const REGISTER_BUFFERS2: u32 = 15;
const REGISTER_BUFFERS_UPDATE: u32 = 16;
const REGISTER_CLONE_BUFFERS: u32 = 30;
const SPARSE: u32 = 1;
const REPLACE: u32 = 2;

/// struct io_uring_rsrc_register.
#[repr(C)]
struct Table {
    entries: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// struct io_uring_rsrc_update2.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
    tags: u64,
    entries: u32,
    reserved2: u32,
}

/// struct io_uring_clone_buffers.
#[repr(C)]
struct Clone {
    source: u32,
    flags: u32,
    source_offset: u32,
    offset: u32,
    entries: u32,
    reserved: [u32; 3],
}

/// A ring that moves nothing: it only has a table, which any thread may change. Its queues are not mapped.
pub(super) fn ring_without_queues() -> io::Result<OwnedFd> {
    // struct io_uring_params has 120 bytes.
    let mut parameters = [0_u32; 30];
    // SAFETY: the kernel reads and writes the parameters, which are as long as it expects.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(ring as RawFd) })
}

/// Gives `ring` a table whose entries are empty (5.19).
pub(super) fn make_table(ring: RawFd) -> io::Result<()> {
    let table = Table { entries: MAX_PIECES as u32, flags: SPARSE, reserved: 0, data: 0, tags: 0 };
    // SAFETY: the structure that this operation reads, of the length that it is told.
    unsafe { register(ring, REGISTER_BUFFERS2, &table, size_of::<Table>()) }
}

/// Pins `length` bytes from `start` on as entry `number`.
pub(super) fn set(ring: RawFd, number: usize, start: usize, length: usize) -> io::Result<()> {
    update(ring, number, libc::iovec { iov_base: start as *mut _, iov_len: length })
}

/// Empties entry `number`. The kernel unpins the memory when no transfer uses it any more.
pub(super) fn clear(ring: RawFd, number: usize) -> io::Result<()> {
    update(ring, number, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 })
}

fn update(ring: RawFd, number: usize, memory: libc::iovec) -> io::Result<()> {
    let update = Update {
        offset: number as u32,
        reserved: 0,
        data: (&raw const memory) as u64,
        tags: 0,
        entries: 1,
        reserved2: 0,
    };
    // SAFETY: the structure that this operation reads; it names one vector, which lives here. The kernel does not touch the memory
    // that the vector names: it looks it up, and refuses what is not mapped.
    unsafe { register(ring, REGISTER_BUFFERS_UPDATE, &update, size_of::<Update>()) }
}

/// Makes the whole table of `ring` that of `source`: pinned once, charged once (6.13). Never a range: Linux 6.13 to 6.17 then drops the
/// entries behind it.
pub(super) fn clone(ring: RawFd, source: RawFd) -> io::Result<()> {
    let source = source as u32;
    let clone =
        Clone { source, flags: REPLACE, source_offset: 0, offset: 0, entries: 0, reserved: [0; 3] };
    // SAFETY: the structure that this operation reads; the count is 1 of these.
    unsafe { register(ring, REGISTER_CLONE_BUFFERS, &clone, 1) }
}

/// # Safety
/// `argument` and `count` are what `operation` expects.
unsafe fn register<T>(ring: RawFd, operation: u32, argument: &T, count: usize) -> io::Result<()> {
    let argument: *const T = argument;
    // SAFETY: the contract of this function.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring, operation, argument, count) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
