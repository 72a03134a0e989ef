//! The paths of the stores that share keys, as each of them notes these beside its membership, for those who read one store alone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};

use super::membership::Membership;
use super::names::StoreId;
use super::{is_sealed, sealed};

const NAMES_BYTES: usize = 1524;

/// Nothing depends on it but messages: several sectors that are not written together do no harm, as its checksum tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MemberPaths {
    /// That of the membership whose members these are.
    epoch: u64,
    /// One for each member in its order, with NUL behind it; empty for one that has no room.
    names: [u8; NAMES_BYTES],
    /// CRC-32C of everything before it.
    checksum: u32,
}

/// What an index file has from its membership to the end of its first page.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MembershipBlock {
    membership: Membership,
    reserved: [u8; 16],
    paths: MemberPaths,
}

const _: () = assert!(size_of::<MembershipBlock>() == 2048);

impl MembershipBlock {
    pub(crate) fn new(membership: Membership, paths: MemberPaths) -> Self {
        Self { membership, reserved: [0; 16], paths }
    }
}

impl MemberPaths {
    /// The absolute paths of these members of the set of that epoch, as far as there is room for them.
    pub(crate) fn new<'path>(
        epoch: u64,
        members: impl IntoIterator<Item = (StoreId, &'path Path)>,
    ) -> Self {
        let mut members: Vec<_> = members.into_iter().collect();
        members.sort_unstable();
        let mut paths = Self { epoch, ..Self::zeroed() };
        let (mut used, mut others) = (0, members.len());
        for (_, path) in members {
            others -= 1;
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let name = path.as_os_str().as_bytes();
            // Each of the others needs its NUL.
            if used + name.len() + 1 + others <= NAMES_BYTES {
                paths.names[used..][..name.len()].copy_from_slice(name);
                used += name.len();
            }
            used += 1;
        }
        sealed(paths)
    }

    /// The path of each member; `None` of one without a name here, and of all if these are not the paths of this membership.
    pub(crate) fn of(&self, membership: &Membership) -> Vec<Option<PathBuf>> {
        let count = membership.members().len();
        if !is_sealed(self) || self.epoch != membership.epoch {
            return vec![None; count];
        }
        let names = self.names.split(|byte| *byte == 0).take(count);
        names.map(|name| (!name.is_empty()).then(|| OsStr::from_bytes(name).into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_their_membership_alone() {
        let members = [([9; 16], Path::new("/mnt/b")), ([1; 16], Path::new("/mnt/a"))];
        let membership = Membership::new(7, 0, members.map(|(id, _)| id));
        let paths = MemberPaths::new(7, members);
        let known = ["/mnt/a", "/mnt/b"].map(|path| Some(PathBuf::from(path)));
        assert_eq!(paths.of(&membership), known);
        let later = Membership::new(8, 0, members.map(|(id, _)| id));
        assert_eq!(paths.of(&later), [None, None]);
        let torn = MemberPaths { names: [b'x'; NAMES_BYTES], ..paths };
        assert_eq!(torn.of(&membership), [None, None]);
        assert_eq!(MemberPaths::zeroed().of(&membership), [None, None]);
    }

    #[test]
    fn a_path_without_room_is_not_known_and_the_others_are() {
        // Each of the three has its NUL.
        let room = NAMES_BYTES - 3;
        for (length, are_known) in [
            (room - 4, [true, true, true]),
            (room - 3, [true, true, false]),
            (room, [true, false, false]),
            (room + 1, [false, true, true]),
        ] {
            let long = format!("/{}", "x".repeat(length - 1));
            let paths = [&*long, "/b", "/c"].map(Path::new);
            let members = [([1; 16], paths[0]), ([2; 16], paths[1]), ([3; 16], paths[2])];
            let membership = Membership::new(1, 0, members.map(|(id, _)| id));
            let found = MemberPaths::new(1, members).of(&membership);
            let expected = [0, 1, 2].map(|number| are_known[number].then(|| paths[number].into()));
            assert_eq!(found, expected, "{length}");
        }
    }
}
