//! The volumes of a connector: which key belongs to which, and how one that fails is taken out.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::volume::Volume;
use crate::base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::base::sync::mpsc::{Receiver, RecvTimeoutError};
use crate::base::sync::thread::{Builder, JoinHandle};
use crate::base::thread::join;
use crate::error::OpenError;
use crate::format::member_paths::MemberPaths;
use crate::format::membership::Membership;
use crate::key::{Digest, Hashed};
use crate::placement::{Placement, VolumeSet};
use crate::reactor::{Alarm, MakeEngine, Operation, is_of_path};

/// A path that opening has left out.
#[derive(Clone, Debug)]
pub(crate) struct Unavailable {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

impl Unavailable {
    pub(crate) fn new(path: &Path, error: &OpenError) -> Self {
        let reason = error.to_string();
        log::error!("{} is left out: {reason}; its keys are missed", path.display());
        Self { path: path.to_owned(), reason }
    }
}

/// All volumes, and those of them that are in use.
pub(crate) struct Volumes {
    /// Also those that have failed.
    pub(crate) all: Box<[Volume]>,
    pub(crate) unavailable: Vec<Unavailable>,
    placement: Placement,
    live: AtomicU32,
    epoch: AtomicU64,
}

impl Volumes {
    pub(crate) fn new(
        all: Vec<Volume>,
        unavailable: Vec<Unavailable>,
        (placement, epoch): (Placement, u64),
    ) -> Self {
        Self {
            live: AtomicU32::new(VolumeSet::first(all.len()).0),
            all: all.into(),
            unavailable,
            placement,
            epoch: AtomicU64::new(epoch),
        }
    }

    /// Starts every volume. Returns the error of one with its number; those before it run.
    pub(crate) fn start(
        &mut self,
        alarm: &Alarm,
        make_engine: &MakeEngine,
    ) -> Result<(), (usize, OpenError)> {
        let caches: Vec<_> =
            self.all.iter().map(|volume| Arc::clone(&volume.shared.cache)).collect();
        caches.iter().for_each(|cache| cache.set_paths(&caches));
        for number in 0..self.all.len() {
            self.all[number].shared.health.set_alarm(number, Some(alarm.clone()));
            if let Err(error) = self.all[number].start(make_engine) {
                return Err((number, error));
            }
        }
        Ok(())
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &Volume> {
        self.live_set().iter().map(|number| &self.all[number])
    }

    pub(crate) fn is_live(&self, number: usize) -> bool {
        self.live_set().contains(number)
    }

    /// Those in use now.
    pub(crate) fn live_set(&self) -> VolumeSet {
        VolumeSet(self.live.load(Ordering::SeqCst))
    }

    /// Takes a volume that has failed out of use: from then on its keys belong to the others. These note it first, so that it
    /// is known as outdated when it comes back; one that cannot has failed as well.
    ///
    /// # Errors
    /// One of them could not note it, through no fault of its own. Then nothing has changed, and it is to be tried again.
    fn take_out(&self, number: usize) -> Result<(), String> {
        let live = self.live_set();
        if !live.contains(number) {
            return Ok(());
        }
        let mut rest = live.without(number);
        while !rest.is_empty() {
            let noted = self.note(rest)?;
            if noted == rest {
                break;
            }
            rest = noted;
        }
        if rest.is_empty() {
            let health = &self.all[number].shared.health;
            log::error!(
                "{} has failed: {}; there is no other path that works, so it stays in use",
                self.all[number].path().display(),
                health.reason().unwrap_or_default()
            );
            health.stay_in_use();
            return Ok(());
        }
        let failed = live.iter().filter(|number| !rest.contains(*number));
        // Before its keys are others': what is stored anew is told after it.
        failed.for_each(|number| self.all[number].index().note_all_gone());
        self.live.store(rest.0, Ordering::SeqCst);
        let failed = live.iter().filter(|number| !rest.contains(*number));
        for volume in failed.map(|number| &self.all[number]) {
            // Somebody may have begun to watch meanwhile.
            volume.index().note_all_gone();
            volume.index().eviction_index.lock().leave_quotas();
            log::error!(
                "{} has failed and is out of use: {}; its keys are missed, and the other paths take new ones; repair or \
                 replace it and open the store again",
                volume.path().display(),
                volume.shared.health.reason().unwrap_or_default()
            );
            // Nothing that is queued there is worth waiting for a device that may take minutes to refuse it.
            volume.shared.stop(Duration::ZERO);
        }
        Ok(())
    }

    /// Notes in the volumes in `set` that these are in use. Returns those that have not failed in it.
    fn note(&self, set: VolumeSet) -> Result<VolumeSet, String> {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        let unavailable = self.unavailable.len() + self.all.len() - set.iter().count();
        let members = || set.iter().map(|number| &self.all[number]);
        let note = Membership::new(epoch, unavailable, members().map(|volume| volume.id));
        let paths = MemberPaths::new(epoch, members().map(|volume| (volume.id, volume.path())));
        let mut noted = set;
        for number in set.iter() {
            let volume = &self.all[number];
            match volume.index().write_membership(&note, &paths) {
                Ok(()) => {}
                Err(error) if error.raw_os_error().is_none_or(is_of_path) => {
                    let reason = || format!("its index cannot be written: {error}");
                    volume.shared.health.fail_for_now(reason);
                    noted = noted.without(number);
                }
                Err(error) => {
                    return Err(format!(
                        "{}: cannot note that another path has failed: {error}; that one stays in use until this works, and is \
                         tried again",
                        volume.path().display()
                    ));
                }
            }
        }
        Ok(noted)
    }

    /// Which volume a key belongs to while those in `live` are in use.
    pub(crate) fn number_of(&self, digest: Digest, live: VolumeSet) -> usize {
        let holds = |number: &usize| {
            let volume = &self.all[*number];
            volume.shared.cache.config.keeps_misplaced && volume.index().is_stored(digest)
        };
        let owner = || self.placement.volume_of(digest, live);
        live.iter().find(holds).unwrap_or_else(owner)
    }

    /// The volume of all keys, if there is only one.
    pub(crate) fn only(&self) -> Option<&Volume> {
        match &*self.all {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Asks each volume about its keys of a batch and brings the answers into the order of the batch.
    pub(crate) fn ask_each<'key, T: Clone + Default>(
        &self,
        keys: impl ExactSizeIterator<Item = Hashed<'key>>,
        mut ask: impl FnMut(&Volume, &[Hashed<'_>]) -> Vec<T>,
    ) -> Vec<T> {
        let live = self.live_set();
        let (count, mut parts) = (keys.len(), vec![(Vec::new(), Vec::new()); self.all.len()]);
        for (position, key) in keys.enumerate() {
            let (positions, keys) = &mut parts[self.number_of(key.digest, live)];
            positions.push(position);
            keys.push(key);
        }
        let mut answers = vec![T::default(); count];
        for (volume, (positions, keys)) in self.all.iter().zip(parts) {
            if !keys.is_empty() {
                let own = ask(volume, &keys);
                positions.into_iter().zip(own).for_each(|(position, own)| answers[position] = own);
            }
        }
        answers
    }

    /// Operations of a batch of `expected` keys, for each volume.
    pub(crate) fn operations(&self, expected: usize) -> Vec<Vec<Operation>> {
        let expected = if self.only().is_some() { expected } else { 0 };
        self.all.iter().map(|_| Vec::with_capacity(expected)).collect()
    }

    /// Hands the operations of a batch to the volumes, the last ones first.
    pub(crate) fn push_reversed(&self, operations: Vec<Vec<Operation>>) {
        for (volume, mut operations) in self.all.iter().zip(operations) {
            operations.reverse();
            volume.shared.push(operations);
        }
    }
}

/// Ends the thread below; no volume has this number.
const END: usize = usize::MAX;

/// Pause before a failure that could not be noted is to be noted again.
const NOTE_PAUSE: Duration = Duration::from_millis(500);

/// The thread that takes failed volumes out of use.
pub(crate) struct Watch {
    alarm: Alarm,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn start(
        volumes: &Arc<Volumes>,
        (alarm, alarms): (Alarm, Receiver<usize>),
    ) -> std::io::Result<Self> {
        let volumes = Arc::clone(volumes);
        let thread = Builder::new().name("kvring-volumes".into()).spawn(move || {
            // Those that are not noted yet.
            let mut failed = Vec::new();
            loop {
                let alarm = match failed.is_empty() {
                    true => alarms.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    false => alarms.recv_timeout(NOTE_PAUSE),
                };
                match alarm {
                    Ok(END) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(number) => {
                        if let Err(message) = volumes.take_out(number) {
                            log::error!("{message}");
                            failed.push(number);
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        failed.retain(|number| volumes.take_out(*number).is_err());
                    }
                }
            }
        })?;
        Ok(Self { alarm, thread })
    }

    /// It takes nothing out of use any more, but for what it is at.
    pub(crate) fn order_end(&self) {
        let _ = self.alarm.send(END);
    }

    /// Waits for its end: a device may take any time for a note.
    pub(crate) fn join(self) {
        join(self.thread, "no path that failed was left out");
    }
}
