//! Records of the index file that hold no chunk, but ghosts: keys that eviction remembers. close() writes them into free slots, which
//! the next open frees. docs/explanation/format.md draws them byte by byte.

use bytemuck::{Pod, Zeroable};

use super::record::{GENERATIONS_END, RECORD_BYTES, Record, STATE_GHOSTS};

/// Ghosts of one record.
pub(crate) const GHOSTS: usize = 17;

/// Ghosts of one namespace, and the bonus of its pool.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GhostRecord {
    unused: u64,
    /// As that of a chunk's record.
    checksum: u32,
    state: u8,
    /// Ghosts that it has.
    pub(crate) count: u8,
    padding: u16,
    /// Which close wrote it: the first generation of that session.
    pub(crate) session: u64,
    /// Fingerprint of the namespace.
    pub(crate) namespace: u64,
    /// Its number among those of this close.
    pub(crate) sequence: u32,
    pub(crate) bonus: f32,
    pub(crate) ghosts: [StoredGhost; GHOSTS],
    reserved: [u32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StoredGhost {
    pub(crate) fingerprint: u32,
    /// MiB that were evicted since it was remembered.
    pub(crate) age_mib: u32,
    pub(crate) shard: u16,
    pub(crate) uses: u8,
    /// SETs that were not admitted, and in the highest bit whether its chunk was evicted.
    pub(crate) refused_sets: u8,
}

pub(crate) const WAS_EVICTED: u8 = 1 << 7;

const _: () = assert!(size_of::<GhostRecord>() == RECORD_BYTES);

impl GhostRecord {
    /// One without ghosts.
    pub(crate) fn new(session: u64, namespace: u64, bonus: f32) -> Self {
        Self { state: STATE_GHOSTS, session, namespace, bonus, ..Self::zeroed() }
    }

    pub(crate) fn push(&mut self, ghost: StoredGhost) {
        self.ghosts[usize::from(self.count)] = ghost;
        self.count += 1;
    }

    pub(crate) fn is_full(&self) -> bool {
        usize::from(self.count) == GHOSTS
    }

    /// As it is written, with its checksum.
    pub(crate) fn sealed(&self) -> Record {
        let mut record: Record = bytemuck::cast(*self);
        record.checksum = record.computed_checksum();
        record
    }

    /// Of a record that is intact.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let ghosts: Self = bytemuck::cast(*record);
        let is_it = record.state == STATE_GHOSTS
            && usize::from(ghosts.count) <= GHOSTS
            && ghosts.session < GENERATIONS_END;
        is_it.then_some(ghosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_was_written_and_nothing_that_cannot_be() {
        let mut record = GhostRecord::new(1 << 32, 77, 0.5);
        let ghost =
            StoredGhost { fingerprint: 1, age_mib: 2, shard: 3, uses: 4, refused_sets: 133 };
        while !record.is_full() {
            record.push(ghost);
        }
        let sealed = record.sealed();
        assert!(sealed.is_intact() && !sealed.is_torn() && !sealed.is_sensible());
        let read = GhostRecord::of(&sealed).unwrap();
        assert_eq!((read.session, read.namespace, read.bonus), (1 << 32, 77, 0.5));
        assert_eq!(read.ghosts, [ghost; GHOSTS]);
        for wrong in [
            GhostRecord { count: GHOSTS as u8 + 1, ..record },
            GhostRecord { session: GENERATIONS_END, ..record },
            GhostRecord { state: 1, ..record },
        ] {
            assert!(GhostRecord::of(&wrong.sealed()).is_none());
        }
    }
}
