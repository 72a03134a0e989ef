//! Group commit: in `persistent` durability, SETs become durable together.
//!
//! A SET whose data is written waits for the next group. A group syncs the data files that its members wrote to, then
//! writes their records, then syncs the index, and only then are its members answered: two barriers for all of them
//! together. What waits meanwhile forms the next group.
//!
//! Where a key is replaced, its older record is cleared after the barrier of the younger one, so that power loss leaves
//! one of the two, and the index is synced once more before the answer: else a later DELETE could reach the disk without
//! that clearing, and the older chunk would be back.
//!
//! A failed sync fails its group and is not tried again: the kernel may have dropped what it could not write, and a second
//! sync would report success for it. So would the sync of the next group, and those of other reactors and threads
//! ([`failed_syncs`](super::failed_syncs)): a SET whose write had begun before the failure was seen is written once more, or
//! fails with it if its record is on its way already.

use std::collections::HashSet;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::ReactorGroup;
use super::io_error_policy::Direction;
use super::io_error_policy::{Failure, Request, is_cancellation};
use super::operation::{Active, Operation, Stage};
use super::state::{GroupCommit, Phase, Reactor};
use crate::engine::{Action, EngineError, Transfer};
use crate::store::Location;

/// Token of every sync; pieces have small ones.
pub(super) const SYNC_TOKEN: usize = usize::MAX >> 1;

fn sync_of(action: Action, file: RawFd) -> Transfer {
    Transfer::without_memory(action, file, SYNC_TOKEN)
}

impl Active {
    /// The syncs of what it has written to.
    fn data_syncs(&self, group: &ReactorGroup) -> Vec<Transfer> {
        if let Some(file) = &self.chunk_file {
            // Its name too: without it a sync of the file is worth nothing after power loss.
            return vec![
                sync_of(Action::Sync, file.descriptor()),
                sync_of(Action::SyncDirectory, file.directory.file.as_raw_fd()),
            ];
        }
        match self.operation.extent().map(|extent| group.cache.store.locate(extent)) {
            Some(Location::Shared { file, .. }) => vec![sync_of(Action::Sync, file)],
            Some(Location::Own { .. }) | None => Vec::new(),
        }
    }

    fn record(&mut self) {
        let checksum = self.checksum;
        let Operation::Set(set) = &mut self.operation else { return };
        set.stage = match mem::replace(&mut set.stage, Stage::Claimed) {
            Stage::Writing(write) => Stage::Recorded(write.record(&set.claim.request, checksum)),
            stage => stage,
        };
    }

    /// Clears the record of what a SET replaces, while its entry still serves. Says whether there was one.
    fn supersede(&mut self) -> bool {
        let Operation::Set(set) = &mut self.operation else { return false };
        set.stage = match mem::replace(&mut set.stage, Stage::Claimed) {
            Stage::Recorded(write) => match write.supersede() {
                Ok(write) => Stage::Superseding(write),
                Err(write) => Stage::Recorded(write),
            },
            stage => stage,
        };
        matches!(set.stage, Stage::Superseding(_))
    }
}

impl Reactor {
    /// Whether records, or syncs of other reactors, that the group waits for are done.
    pub(super) fn group_can_go_on(&self) -> bool {
        let have_ended = |awaited| self.group.have_ended(self.number, awaited);
        self.commit
            .awaited_records
            .is_some_and(|ticket| self.group.cache.index.changes.is_done(ticket))
            || self.commit.awaited.is_some_and(have_ended)
    }

    /// Starts a group if SETs wait for one and none is in flight; goes on with one that waited for other reactors.
    pub(super) fn start_group(&mut self) -> Result<(), EngineError> {
        if self.commit.awaited.is_some() {
            self.finish_phase()?;
        }
        self.sync_index()?;
        if self.commit.phase != Phase::Idle {
            return Ok(());
        }
        let waiting = mem::take(&mut self.commit.waiting);
        let (members, touched) = self.split_by_failed_syncs(waiting);
        self.write_members_again(touched);
        if members.is_empty() {
            return self.free_withdrawn();
        }
        // Each once, in the order of their first SETs: the numbers of descriptors would make it another one in every run, and
        // a simulated crash could not be replayed.
        let mut seen = HashSet::new();
        let syncs: Vec<Transfer> = members
            .iter()
            .flat_map(|id| self.active[*id].data_syncs(&self.group))
            .filter(|sync| seen.insert(sync.file))
            .collect();
        (self.commit.members, self.commit.phase) = (members, Phase::Data);
        self.submit_syncs(&syncs)
    }

    /// Begins a group without members if extents are to be freed. With all of the store held by SETs that failed, none has members
    /// any more. Once for each SET that finds no room, as a device may fail every sync.
    fn free_withdrawn(&mut self) -> Result<(), EngineError> {
        if !mem::take(&mut self.commit.is_to_free) || !self.group.cache.has_withdrawn() {
            return Ok(());
        }
        self.begin_phase(Phase::Index)
    }

    /// Those for which no sync of the store has failed since their writes began, and the others.
    fn split_by_failed_syncs(&self, members: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        let has_none_failed =
            |id: &usize| self.active[*id].failed_syncs == Some(self.group.failed_syncs());
        members.into_iter().partition(has_none_failed)
    }

    fn submit_syncs(&mut self, syncs: &[Transfer]) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        let number = self.group.begin_syncs();
        self.commit.syncs = Some(number);
        for sync in syncs {
            // A stopping engine takes none of those behind the one that it refused.
            if outcome.is_ok() {
                outcome = self.device.requests.request(*sync, None);
            }
            if outcome.is_err() {
                self.commit.error = Some(libc::EIO);
                continue;
            }
            self.group.cache.counters.syncs.add(1);
            self.commit.outstanding += 1;
        }
        if self.commit.outstanding == 0 {
            self.group.end_syncs(number);
            self.finish_group();
        }
        outcome
    }

    /// Takes the result of a sync; with the last one of a phase the group goes on.
    pub(super) fn finish_sync(&mut self, result: i32) -> Result<(), EngineError> {
        self.commit.outstanding -= 1;
        let stopped = self.device.is_stopping;
        // The stopping reactor cancelled it: it was not begun, so it has dropped nothing, and other reactors go on.
        let is_cancelled = stopped && is_cancellation(-result);
        let errno = if is_cancelled { 0 } else { result.min(0).abs() };
        let is_first_error = errno != 0 && self.commit.error.is_none();
        if errno != 0 {
            self.group.health.note_failure(Request::Sync, errno, Instant::now());
            self.commit.error.get_or_insert(errno);
        } else if !is_cancelled {
            self.group.health.note_success(Direction::Sync);
        }
        if errno != 0 {
            self.group.note_failed_sync(errno, is_first_error);
        }
        if self.commit.outstanding > 0 {
            return Ok(());
        }
        if let Some(number) = self.commit.syncs.take() {
            self.group.end_syncs(number);
        }
        if stopped || self.commit.error.is_some() {
            // When stopped, `drop_queued` has ended the members.
            self.finish_group();
            return Ok(());
        }
        self.finish_phase()
    }

    /// All syncs of the group's phase have succeeded: it goes on to the next one, unless it has to wait for those of other
    /// reactors first.
    fn finish_phase(&mut self) -> Result<(), EngineError> {
        let (number, commit) = (self.number, &mut self.commit);
        let awaited = *commit.awaited.get_or_insert_with(|| self.group.await_syncs(number));
        if !self.group.have_ended(number, awaited) {
            return Ok(());
        }
        commit.awaited = None;
        let withdrawn = mem::take(&mut commit.withdrawn);
        let is_synced = commit.failed_syncs == self.group.failed_syncs();
        self.group.cache.end_withdrawn(withdrawn, is_synced);
        let all = mem::take(&mut commit.members);
        let (members, touched) = self.split_by_failed_syncs(all);
        let next = match self.commit.phase {
            Phase::Data => {
                self.write_members_again(touched);
                members.iter().for_each(|id| self.active[*id].record());
                Some(Phase::Index)
            }
            Phase::Index => {
                self.fail_touched(touched);
                // Every one of them, not only up to the first.
                let replaced = members.iter().filter(|id| self.active[**id].supersede()).count();
                (replaced > 0).then_some(Phase::Replaced)
            }
            Phase::Replaced | Phase::Idle => {
                self.fail_touched(touched);
                None
            }
        };
        self.commit.members = members;
        match next {
            Some(next) if !self.commit.members.is_empty() => self.begin_phase(next),
            _ => {
                self.finish_group();
                Ok(())
            }
        }
    }

    /// Begins a phase that syncs the index.
    fn begin_phase(&mut self, phase: Phase) -> Result<(), EngineError> {
        let commit = &mut self.commit;
        commit.phase = phase;
        commit.failed_syncs = self.group.failed_syncs();
        // Their records were cleared, in memory: before the ticket.
        commit.withdrawn = self.group.cache.take_withdrawn();
        commit.awaited_records = Some(self.group.cache.index.changes.ticket());
        self.sync_index()
    }

    /// Once the records are written that the group's sync of the index is for, begins it.
    fn sync_index(&mut self) -> Result<(), EngineError> {
        let cache = &self.group.cache;
        if !self.commit.awaited_records.is_some_and(|ticket| cache.index.changes.is_done(ticket)) {
            return Ok(());
        }
        self.commit.awaited_records = None;
        let index = cache.index.sync_descriptor(self.number);
        self.submit_syncs(&[sync_of(Action::Sync, index)])
    }

    /// The index takes no change: ends a group that waits for some.
    pub(super) fn fail_awaiting_group(&mut self, failure: impl Fn() -> Failure) {
        if self.commit.awaited_records.is_some() {
            let members = mem::take(&mut self.commit.members);
            self.fail_members(members, failure);
            self.finish_group();
        }
    }

    fn finish_group(&mut self) {
        let waiting = mem::take(&mut self.commit.waiting);
        let is_to_free = self.commit.is_to_free;
        let next = GroupCommit { waiting, is_to_free, ..GroupCommit::default() };
        let GroupCommit { members, error, withdrawn, .. } = mem::replace(&mut self.commit, next);
        self.group.cache.end_withdrawn(withdrawn, false);
        match error {
            Some(errno) => {
                self.group.cache.counters.sync_errors.add(1);
                self.fail_members(members, || Failure::Sync(errno));
            }
            None => members.into_iter().for_each(|id| self.answer(id)),
        }
    }

    /// A sync has failed since their writes began.
    fn fail_touched(&mut self, members: Vec<usize>) {
        let errno = self.group.sync_errno();
        self.fail_members(members, || Failure::Sync(errno));
    }

    fn fail_members(&mut self, members: Vec<usize>, failure: impl Fn() -> Failure) {
        if !members.is_empty() {
            let (cache, count) = (&self.group.cache, members.len());
            let path = cache.config.path();
            let chunks = || format!("{count} chunks in {}", path.display());
            let line = || format!("{}; they are not stored", failure().text(chunks));
            cache.log_limits.syncs.log(path, count as u64, line);
        }
        // Now: the next sync of the index covers that their records are cleared.
        for id in &members {
            let active = &mut self.active[*id];
            if let Operation::Set(set) = &active.operation
                && matches!(set.stage, Stage::Recorded(_))
            {
                active.release_extent();
            }
        }
        for id in members {
            self.active[id].failure = Some(failure());
            self.answer(id);
        }
    }

    /// What these have written may be lost, and they have no record yet: they are written once more.
    fn write_members_again(&mut self, members: Vec<usize>) {
        let most_retries = self.group.cache.config.tuning.persistent_max_retries;
        let may_retry = |id: &usize| self.active[*id].retries < most_retries;
        let (again, exhausted) = members.into_iter().partition::<Vec<_>, _>(may_retry);
        again.into_iter().for_each(|id| self.write_again(id, Duration::ZERO));
        self.fail_touched(exhausted);
    }
}
