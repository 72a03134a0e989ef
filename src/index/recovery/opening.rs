//! Recovery at open: whole records that fit the data become the map, the rest becomes free space.

use std::collections::HashMap;
use std::sync::Arc;

use super::recovery_scan::{Heads, threads_for};
use super::report::Recovery;
use super::restoring::{drop_overlapping, release};
use crate::base::sequencer::Sequencer;
use crate::base::sync::atomic::Ordering;
use crate::config::Config;
use crate::error::OpenError;
use crate::evict::Quotas;
use crate::format::header::{Owner, Session};
use crate::format::record::GENERATIONS_END;
use crate::format::sealed;
use crate::index::file::locked_index::LockedIndex;
use crate::index::file::table::{IndexState, Table};
use crate::index::memory::map::Index;
use crate::index::memory::shard::ChunkVersion;
use crate::space_account::SpaceAccount;
use crate::store::{FileUse, Store};

/// Generations of one session: more than it can use.
const SESSION_GENERATIONS: u64 = 1 << 32;

/// An index file that this process has taken over, and whose records are not read yet.
pub(crate) struct UnreadIndex {
    table: Table,
    found: IndexState,
}

/// An index that fits its data.
pub(crate) struct RecoveredIndex<S> {
    pub(crate) index: Index<S>,
    pub(crate) recovery: Recovery,
    /// Chunks that are to be verified.
    pub(crate) unverified: Vec<ChunkVersion>,
}

impl LockedIndex {
    /// Takes the file over, and makes what is missing. A damaged one is started anew.
    pub(crate) fn take_over(
        self,
        space: &Arc<SpaceAccount>,
        now_ms: u64,
    ) -> Result<UnreadIndex, OpenError> {
        let (table, found) = Table::open(self, Arc::clone(space), now_ms)?;
        Ok(UnreadIndex { table, found })
    }
}

impl UnreadIndex {
    /// How far changes of records are written.
    pub(crate) fn sequencer(&self) -> Arc<Sequencer> {
        Arc::clone(&self.table.changes.sequencer)
    }

    /// Unix time in ms at which the chunks of each data file were used on average, by its number.
    pub(crate) fn file_uses(&self) -> HashMap<u32, FileUse> {
        self.table.file_uses()
    }

    /// Reads the records, and brings them and the data of `store` into agreement.
    pub(crate) fn recover<S: Send>(
        self,
        store: &dyn Store,
        config: &Config,
        quotas: &Quotas,
    ) -> RecoveredIndex<S> {
        let IndexState { session, reset, truncated } = self.found;
        let reset = reason_of_reset(reset, store);
        let mut recovery = Recovery { reset, truncated, ..Recovery::default() };
        let now_ms = config.clock.now_ms();
        let oldest_ms = config.ttl.map_or(0, |ttl| now_ms.saturating_sub(ttl.as_millis() as u64));
        let mut index = Index::new(self.table, 0, config.clone(), quotas);
        let slots = index.table.record_slots();
        let threads = config.tuning.open_threads.unwrap_or_else(|| threads_for(slots));
        let mut heads = Heads::new(slots);
        let (parts, newest, ghosts) =
            index.read_records(store, oldest_ms, threads, &mut heads, &mut recovery);
        let mut kept = drop_overlapping(&parts, &index.table, &mut heads, &mut recovery);
        drop(parts);
        recovery.unreadable_pages = index.table.lost_pages() as u64;

        // An unreadable session block does not tell how the store was left.
        recovery.clean_shutdown = match &session {
            Some(session) => session.clean == 1,
            None => kept.is_empty() && recovery.reset.is_none(),
        };
        recovery.is_new = session.is_none() && recovery.clean_shutdown;
        let first = first_generation(newest, session.as_ref()).unwrap_or_else(|| {
            // No store has had so many: the number was made up.
            kept.drain(..).for_each(|chunk| release(&index.table, chunk.slot(), &mut heads));
            recovery.reset = Some("its generations are used up".into());
            SESSION_GENERATIONS
        });
        index.set_first_generation(first);
        let verify_from = index.trusted_until(session.as_ref(), recovery.clean_shutdown);
        let linked = index.link_all(&heads, verify_from, threads, &mut recovery);
        if !linked.unverified.is_empty() {
            index.verify_from.store(verify_from, Ordering::Relaxed);
        }
        recovery.to_verify = linked.unverified.len() as u64;
        let stored = index.restore_order(&kept, &heads);
        recovery.kept = stored.len() as u64;
        let is_last = ghosts.are_of_session(first - SESSION_GENERATIONS);
        index.restore_ghosts(ghosts, is_last && recovery.clean_shutdown, threads);
        if !linked.dropped.is_empty() {
            index.make_durable_as_found(store);
        }
        linked.dropped.into_iter().for_each(|slot| release(&index.table, slot, &mut heads));
        recovery.orphans = store.rebuild(&stored);
        index.table.set_free(|slot| heads.is_used(slot as u32));
        let unverified = linked.unverified.into_iter().map(|(_, version)| version).collect();
        RecoveredIndex { index, recovery, unverified }
    }
}

/// Why an index was started anew, if that was: one that never was has none, unless there are data files.
fn reason_of_reset(reset: Option<String>, store: &dyn Store) -> Option<String> {
    let has_files = || store.usage().data_files > 0;
    let missing = || "it was missing or empty, though there are data files".to_owned();
    match reset {
        Some(reason) if reason.is_empty() => has_files().then(missing),
        reset => reset,
    }
}

impl<S> Index<S> {
    /// Before the older chunk of a key goes: it may be durable, and the younger not yet.
    fn make_durable_as_found(&self, store: &dyn Store) {
        self.table.write_anew();
        if let Err(error) = store.sync().and_then(|()| self.table.sync()) {
            log::error!("cannot make durable what the last owner wrote: {error}");
        }
    }

    /// Sets which chunks are untrusted. Returns the generation from which on chunks are to be verified.
    fn trusted_until(&self, session: Option<&Session>, clean_shutdown: bool) -> u64 {
        let (unverified, last) =
            session.map_or((0, 0), |session| (session.verify_from, session.generation));
        // The machine went down with the store open: any record may be one that was cleared, and its extent another's.
        let went_down =
            !clean_shutdown && session.is_none_or(|session| session.boot != self.config.boot);
        let untrusted_before = match went_down {
            true => self.first_generation,
            false => {
                session.map_or(0, |session| session.untrusted_before.min(self.first_generation))
            }
        };
        self.untrusted_before.store(untrusted_before, Ordering::Relaxed);
        if clean_shutdown { unverified } else { unverified.min(last) }
    }

    /// A sync of everything failed: no chunk is trusted before it has been read, nor by the next owner once the session is
    /// written, and the next sync writes all of the index.
    pub(crate) fn trust_none(&self) {
        self.distrust_all();
        self.table.write_anew();
    }

    /// No chunk that was stored so far is trusted before it has been read.
    pub(crate) fn distrust_all(&self) {
        self.untrusted_before.store(self.next_generation(), Ordering::Relaxed);
    }

    /// Writes who has the store open, and whether it is closed in order.
    pub(crate) fn write_session(&self, now_ms: u64, clean: bool) -> std::io::Result<()> {
        let session = Session {
            clean: clean.into(),
            generation: self.next_generation(),
            verify_from: self.verify_from.load(Ordering::Relaxed),
            untrusted_before: self.untrusted_before.load(Ordering::Relaxed),
            boot: self.config.boot,
            ..Session::of(&Owner::current(), now_ms)
        };
        self.table.write_session(&sealed(session))
    }
}

/// Far above whatever the last owner can have given out since it wrote its session block; `None` if there are none left.
fn first_generation(newest: u64, session: Option<&Session>) -> Option<u64> {
    let last = session.map_or(0, |session| session.generation);
    let first = (newest.max(last) / SESSION_GENERATIONS + 1) * SESSION_GENERATIONS;
    (first < GENERATIONS_END).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::index::file::index_bytes::read_session;
    use crate::index::test_index;

    const BOOT: u32 = 77;

    fn opened(directory: &Path) -> Index<()> {
        test_index::opened(directory, |config| config.boot = BOOT)
    }

    #[test]
    fn a_session_tells_of_its_boot() {
        let directory = tempfile::tempdir().unwrap();
        let index = opened(directory.path());
        index.write_session(5, false).unwrap();
        let file = &index.table.index_file;
        let session = read_session(&file.file, file.offset).unwrap();
        assert_eq!((session.boot, session.clean, session.opened_ms), (BOOT, 0, 5));
        assert_eq!(session.process_id, std::process::id());
    }

    #[test]
    fn nothing_is_trusted_once_the_machine_went_down_with_the_store_open() {
        let directory = tempfile::tempdir().unwrap();
        let index = opened(directory.path());
        let first = index.first_generation;
        let session = |boot, untrusted_before| Session {
            boot,
            untrusted_before,
            verify_from: 50,
            generation: 40,
            ..Session::of(&Owner::current(), 0)
        };
        for (session, clean, untrusted_before, verify_from) in [
            (Some(session(BOOT, 30)), true, 30, 50),
            (Some(session(BOOT, 30)), false, 30, 40),
            (Some(session(BOOT + 1, 30)), true, 30, 50),
            (Some(session(BOOT + 1, 30)), false, first, 40),
            (Some(session(BOOT, u64::MAX)), true, first, 50),
            (None, true, 0, 0),
            (None, false, first, 0),
        ] {
            assert_eq!(index.trusted_until(session.as_ref(), clean), verify_from);
            assert_eq!(index.untrusted_before.load(Ordering::Relaxed), untrusted_before);
        }
    }

    #[test]
    fn a_session_begins_above_all_that_the_last_one_may_have_used() {
        const EACH: u64 = SESSION_GENERATIONS;
        let session = |generation| Session { generation, ..Session::of(&Owner::current(), 0) };
        assert_eq!(first_generation(0, None), Some(EACH));
        assert_eq!(first_generation(EACH - 1, None), Some(EACH));
        assert_eq!(first_generation(EACH, None), Some(2 * EACH));
        assert_eq!(first_generation(5, Some(&session(3 * EACH + 1))), Some(4 * EACH));
        assert_eq!(first_generation(7 * EACH, Some(&session(3 * EACH))), Some(8 * EACH));
        assert_eq!(
            first_generation(GENERATIONS_END - EACH - 1, None),
            Some(GENERATIONS_END - EACH)
        );
        assert_eq!(first_generation(GENERATIONS_END - EACH, None), None);
    }
}
