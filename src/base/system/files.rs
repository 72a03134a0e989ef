//! What files are asked.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Alignment of memory and of offsets for direct transfers on `file`, in bytes; 0 if it has none. `None` where the system does not tell:
/// statx(2) fills the STATX_DIOALIGN fields since Linux 6.1, for block devices later.
pub(crate) fn direct_alignment(file: &File) -> Option<(u64, u64)> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string and AT_EMPTY_PATH makes the descriptor the subject; `answer` has room for
    // one struct statx.
    let status = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            answer.as_mut_ptr(),
        )
    };
    // SAFETY: zeroed before the call, so that every field is initialised whatever the kernel filled.
    let answer = unsafe { answer.assume_init() };
    let is_told = status == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0;
    is_told.then(|| (answer.stx_dio_mem_align.into(), answer.stx_dio_offset_align.into()))
}
