//! Which parts of a file have blocks of their own: FIEMAP, as linux/fiemap.h has it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Extents asked for at a time.
const AT_ONCE: usize = 256;
/// The file has none behind it.
const LAST: u32 = 0x0001;
/// Another file has the same blocks.
const SHARED: u32 = 0x2000;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MappedExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// What the kernel reads, and then writes, before the extents.
#[repr(C)]
pub(crate) struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

#[repr(C)]
struct Map {
    header: FiemapHeader,
    extents: [MappedExtent; AT_ONCE],
}

#[allow(unreachable_pub, reason = "the macro makes it pub")]
mod raw {
    nix::ioctl_readwrite!(fs_ioc_fiemap, b'f', 11, super::FiemapHeader);
}

/// Tells of the parts of the first `length` bytes of a file that share their blocks with another file, or have none (`true`
/// beside them): a write there takes new ones. At most `most_extents` of its extents are looked at, and those are taken off.
pub(crate) fn find_unreserved(
    file: BorrowedFd<'_>,
    length: u64,
    most_extents: &mut usize,
    mut found: impl FnMut(Range<u64>, bool),
) -> io::Result<()> {
    let mut start = 0;
    while start < length && *most_extents > 0 {
        let room = AT_ONCE.min(*most_extents) as u32;
        let header =
            FiemapHeader { start, length: length - start, flags: 0, mapped: 0, room, reserved: 0 };
        let mut map = Map { header, extents: [MappedExtent::default(); AT_ONCE] };
        // SAFETY: the kernel writes the header and at most `room` extents behind it, for which there is room; both are plain
        // numbers. The pointer is one to all of `map`.
        unsafe { raw::fs_ioc_fiemap(file.as_raw_fd(), (&raw mut map).cast()) }?;
        let extents = &map.extents[..AT_ONCE.min(map.header.mapped as usize)];
        for extent in extents {
            let end = extent.logical.saturating_add(extent.length).min(length);
            if extent.logical.min(length) > start {
                found(start..extent.logical.min(length), true);
            }
            if extent.flags & SHARED != 0 && extent.logical < end {
                found(extent.logical.max(start)..end, false);
            }
            start = start.max(end);
        }
        *most_extents -= extents.len();
        if extents.last().is_none_or(|last| last.flags & LAST != 0) {
            break;
        }
    }
    if start < length && *most_extents > 0 {
        found(start..length, true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_found_and_the_rest_is_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(&[1; 1 << 20], 1 << 20).unwrap();
        file.sync_all().unwrap();
        let mut holes = Vec::new();
        let mut most = 1000;
        if find_unreserved(file.as_fd(), 4 << 20, &mut most, |hole, _| holes.push(hole)).is_err() {
            return;
        }
        assert_eq!(holes, [0..1 << 20, 2 << 20..4 << 20]);
        assert!(most < 1000);
        let mut none = 0;
        find_unreserved(file.as_fd(), 4 << 20, &mut none, |_, _| panic!("too many")).unwrap();
    }
}
