//! What block devices are asked by ioctl(2). The numbers are those of linux/fs.h.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::request_code_none;

#[allow(unreachable_pub, reason = "the macro makes it pub")]
mod raw {
    nix::ioctl_write_ptr_bad!(blkdiscard, nix::request_code_none!(0x12, 119), [u64; 2]);
}

/// One whose answer is an int, which is not negative.
#[derive(Clone, Copy)]
pub(crate) struct Question(libc::Ioctl);

/// BLKROGET
pub(crate) const IS_READ_ONLY: Question = Question(request_code_none!(0x12, 94));
/// BLKSSZGET
pub(crate) const LOGICAL_BLOCK_BYTES: Question = Question(request_code_none!(0x12, 104));
/// BLKIOOPT; 0 if it does not say.
pub(crate) const OPTIMAL_IO_BYTES: Question = Question(request_code_none!(0x12, 121));
/// BLKPBSZGET
pub(crate) const PHYSICAL_BLOCK_BYTES: Question = Question(request_code_none!(0x12, 123));

pub(crate) fn ask(device: &File, question: Question) -> io::Result<u64> {
    let mut answer: libc::c_uint = 0;
    // SAFETY: each of these requests writes one int, and there is room for it.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), question.0, &raw mut answer) })?;
    Ok(answer.into())
}

/// Tells it that nothing in the range is needed any more: what it returns for it from here on is not defined.
pub(crate) fn discard(device: &File, start_bytes: u64, length_bytes: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two 64-bit numbers. It changes bytes on the device only, none that memory is mapped to: the
    // callers' ranges hold no part of the index.
    unsafe { raw::blkdiscard(device.as_raw_fd(), &[start_bytes, length_bytes]) }?;
    Ok(())
}
