//! Memory that processes share, put into huge pages.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

use nix::libc::{EBADF, MADV_COLLAPSE, MADV_POPULATE_WRITE, madvise};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use pyo3::prelude::*;

use crate::errors::from_io;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Take memory for a file of memory (`memfd_create`), in huge pages.
#[pyfunction]
pub(crate) fn put_into_huge_pages(
    py: Python<'_>,
    descriptor: RawFd,
    length_bytes: NonZeroUsize,
) -> PyResult<()> {
    py.detach(|| collapse(descriptor, length_bytes)).map_err(from_io)
}

/// A range of addresses, free again when it is dropped.
struct Addresses {
    start: NonNull<c_void>,
    length_bytes: NonZeroUsize,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this value alone, and nobody has an address in it any more.
        let _ = unsafe { munmap(self.start, self.length_bytes.get()) };
    }
}

fn collapse(descriptor: RawFd, length_bytes: NonZeroUsize) -> io::Result<()> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(EBADF));
    }
    // A huge page of the file has to lie at a multiple of its length.
    let all_bytes = length_bytes.saturating_add(HUGE_PAGE_BYTES);
    // SAFETY: a new range where nothing is.
    let start =
        unsafe { mmap_anonymous(None, all_bytes, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)? };
    let addresses = Addresses { start, length_bytes: all_bytes };
    let aligned = NonZeroUsize::try_from(start.addr().get().next_multiple_of(HUGE_PAGE_BYTES))
        .map_err(io::Error::other)?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: the caller has the descriptor open during the call; one that is not is refused by the kernel. The new mapping takes the
    // place of a part of `addresses`, where nothing is, and goes with it.
    let mapped = unsafe {
        let file = BorrowedFd::borrow_raw(descriptor);
        mmap(Some(aligned), length_bytes, access, flags, file, 0)?
    };
    for advice in [MADV_POPULATE_WRITE, MADV_COLLAPSE] {
        // SAFETY: the range is mapped. Neither advice changes what is in the file.
        if unsafe { madvise(mapped.as_ptr(), length_bytes.get(), advice) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    drop(addresses);
    Ok(())
}
