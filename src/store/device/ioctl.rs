//! What block devices are asked by ioctl(2). The numbers are those of linux/fs.h.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[allow(unreachable_pub, reason = "the macros make them pub")]
mod raw {
    use nix::{ioctl_read, ioctl_read_bad, ioctl_write_ptr_bad, request_code_none};

    ioctl_read_bad!(blkroget, request_code_none!(0x12, 94), libc::c_int);
    ioctl_read_bad!(blksszget, request_code_none!(0x12, 104), libc::c_int);
    ioctl_read_bad!(blkioopt, request_code_none!(0x12, 121), libc::c_uint);
    ioctl_read_bad!(blkpbszget, request_code_none!(0x12, 123), libc::c_uint);
    ioctl_read!(blkgetsize64, 0x12, 114, libc::size_t);
    ioctl_write_ptr_bad!(blkdiscard, request_code_none!(0x12, 119), [u64; 2]);
}

/// Its length.
pub(in crate::store) fn size_bytes(device: &File) -> io::Result<u64> {
    let mut answer: libc::size_t = 0;
    // SAFETY: BLKGETSIZE64 writes one 64-bit number, for which there is room: kvring is built for 64-bit machines only
    // where size_t is one, and the ioctl's own number says size_t.
    unsafe { raw::blkgetsize64(device.as_raw_fd(), &raw mut answer) }?;
    Ok(answer as u64)
}

/// Smallest unit that it addresses.
pub(in crate::store) fn logical_block_bytes(device: &File) -> io::Result<u64> {
    let mut answer: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int, for which there is room.
    unsafe { raw::blksszget(device.as_raw_fd(), &raw mut answer) }?;
    Ok(answer as u64)
}

/// Smallest unit that it writes without reading first.
pub(in crate::store) fn physical_block_bytes(device: &File) -> io::Result<u64> {
    let mut answer: libc::c_uint = 0;
    // SAFETY: BLKPBSZGET writes one unsigned int, for which there is room.
    unsafe { raw::blkpbszget(device.as_raw_fd(), &raw mut answer) }?;
    Ok(u64::from(answer))
}

/// Length of transfer that it works best with; 0 if it does not say.
pub(in crate::store) fn optimal_io_bytes(device: &File) -> io::Result<u64> {
    let mut answer: libc::c_uint = 0;
    // SAFETY: BLKIOOPT writes one unsigned int, for which there is room.
    unsafe { raw::blkioopt(device.as_raw_fd(), &raw mut answer) }?;
    Ok(u64::from(answer))
}

/// Whether it takes no writes.
pub(in crate::store) fn is_read_only(device: &File) -> io::Result<bool> {
    let mut answer: libc::c_int = 0;
    // SAFETY: BLKROGET writes one int, for which there is room.
    unsafe { raw::blkroget(device.as_raw_fd(), &raw mut answer) }?;
    Ok(answer != 0)
}

/// Tells it that nothing in the range is needed any more: what it returns for it from here on is not defined.
pub(in crate::store) fn discard(
    device: &File,
    start_bytes: u64,
    length_bytes: u64,
) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two 64-bit numbers. It changes bytes on the device only, none that memory is mapped to: the
    // callers' ranges hold no part of the index.
    unsafe { raw::blkdiscard(device.as_raw_fd(), &[start_bytes, length_bytes]) }?;
    Ok(())
}
