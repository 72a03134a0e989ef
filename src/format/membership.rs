//! Which stores share keys, as each of them notes it in its index file.

use bytemuck::{Pod, Zeroable};

use super::names::StoreId;
use crate::base::checksum::crc32c;

/// Most volumes of a connector: the set of those that are live is a word.
pub(crate) const MAX_VOLUMES: usize = 30;

/// No epoch reaches it.
const EPOCHS_END: u64 = 1 << 63;

/// The stores in use, within one sector, which is written whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Membership {
    /// One more than that of the set before.
    pub(crate) epoch: u64,
    count: u16,
    /// Paths that were named beside those of the members, and could not be used.
    absent: u16,
    /// CRC-32C of everything else.
    checksum: u32,
    members: [StoreId; MAX_VOLUMES],
}

const _: () = assert!(size_of::<Membership>() <= 512);

impl Membership {
    /// The set of `members`, which must not be more than there is room for, while so many paths beside theirs are absent.
    pub(crate) fn new(
        epoch: u64,
        absent: usize,
        members: impl IntoIterator<Item = StoreId>,
    ) -> Self {
        let mut membership = Self { epoch, absent: absent as u16, ..Self::zeroed() };
        for (place, member) in membership.members.iter_mut().zip(members) {
            *place = member;
            membership.count += 1;
        }
        membership.members[..membership.count as usize].sort_unstable();
        membership.checksum = membership.computed_checksum();
        membership
    }

    pub(crate) fn members(&self) -> &[StoreId] {
        &self.members[..self.count.into()]
    }

    /// How many paths it tells of beside those of `present`, which may be in the set or not.
    pub(crate) fn missing(&self, present: &[StoreId]) -> usize {
        let is_missing = |member: &&StoreId| !present.contains(member);
        self.members().iter().filter(is_missing).count() + usize::from(self.absent)
    }

    /// Whether it is whole, and what it says can be.
    pub(crate) fn is_sensible(&self) -> bool {
        self.checksum == self.computed_checksum()
            && (1..=MAX_VOLUMES).contains(&self.count.into())
            && self.epoch < EPOCHS_END
    }

    fn computed_checksum(&self) -> u32 {
        crc32c(bytemuck::bytes_of(&Self { checksum: 0, ..*self }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_not_believed() {
        let membership = Membership::new(7, 1, [[9; 16], [1; 16]]);
        assert!(membership.is_sensible());
        for (epoch, count) in [(EPOCHS_END, 2), (7, MAX_VOLUMES as u16 + 1), (7, 0)] {
            let mut made_up = Membership { epoch, count, ..membership };
            made_up.checksum = made_up.computed_checksum();
            assert!(!made_up.is_sensible(), "{epoch}, {count}");
        }
    }
}
