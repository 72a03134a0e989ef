//! What block devices are asked by ioctl(2). The numbers are those of linux/fs.h.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::request_code_none;

#[allow(unreachable_pub, reason = "the macros make them pub")]
mod raw {
    nix::ioctl_read!(blkgetsize64, 0x12, 114, libc::size_t);
    nix::ioctl_write_ptr_bad!(blkdiscard, nix::request_code_none!(0x12, 119), [u64; 2]);
}

const BLKROGET: libc::Ioctl = request_code_none!(0x12, 94);
const BLKSSZGET: libc::Ioctl = request_code_none!(0x12, 104);
const BLKIOOPT: libc::Ioctl = request_code_none!(0x12, 121);
const BLKPBSZGET: libc::Ioctl = request_code_none!(0x12, 123);

/// The answer to one of the four requests above.
fn ask(device: &File, request: libc::Ioctl) -> io::Result<u64> {
    let mut answer: libc::c_uint = 0;
    // SAFETY: each of these requests writes one int, of which none is negative, and there is room for it.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), request, &raw mut answer) })?;
    Ok(answer.into())
}

pub(in crate::store) fn size_bytes(device: &File) -> io::Result<u64> {
    let mut answer: libc::size_t = 0;
    // SAFETY: BLKGETSIZE64 writes one 64-bit number, for which there is room: kvring is built for 64-bit machines only
    // where size_t is one, and the ioctl's own number says size_t.
    unsafe { raw::blkgetsize64(device.as_raw_fd(), &raw mut answer) }?;
    Ok(answer as u64)
}

/// Smallest unit that it addresses.
pub(in crate::store) fn logical_block_bytes(device: &File) -> io::Result<u64> {
    ask(device, BLKSSZGET)
}

/// Smallest unit that it writes without reading first.
pub(in crate::store) fn physical_block_bytes(device: &File) -> io::Result<u64> {
    ask(device, BLKPBSZGET)
}

/// Length of transfer that it works best with; 0 if it does not say.
pub(in crate::store) fn optimal_io_bytes(device: &File) -> io::Result<u64> {
    ask(device, BLKIOOPT)
}

pub(super) fn is_read_only(device: &File) -> io::Result<bool> {
    ask(device, BLKROGET).map(|answer| answer != 0)
}

/// Tells it that nothing in the range is needed any more: what it returns for it from here on is not defined.
pub(super) fn discard(device: &File, start_bytes: u64, length_bytes: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two 64-bit numbers. It changes bytes on the device only, none that memory is mapped to: the
    // callers' ranges hold no part of the index.
    unsafe { raw::blkdiscard(device.as_raw_fd(), &[start_bytes, length_bytes]) }?;
    Ok(())
}
