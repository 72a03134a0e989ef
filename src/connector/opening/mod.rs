//! How several paths become one store at open, in one direction: each is looked at and locked, all are compared, and only
//! then any is changed. An open that is refused has changed nothing at any path.

mod comparison;
mod location;
mod required_mounts;

use std::path::PathBuf;
use std::sync::Arc;

pub(super) use comparison::{PathState, compare};
use comparison::{agree, check_paths, missing_paths};
pub(super) use location::LockedStore;
pub use location::format_device;
use required_mounts::{check_mounted, check_required};

use super::volume::close_started;
use super::volume::{Unavailable, Volumes};
use super::volume::{Volume, VolumeContext};
use crate::base::parallel::{OPENING, on_threads};
use crate::base::sync::Mutex;
use crate::base::sync::mpsc::{Receiver, channel};
use crate::batch::completion_queue::CompletionQueues;
use crate::config::Config;
use crate::engine::WatchedFiles;
use crate::error::OpenError;
use crate::reactor::{Alarm, MakeEngine, is_gone};
use crate::store::device::is_device;

/// The volumes of a store, all of which run.
pub(super) struct OpenedStore {
    /// With the length of whole devices.
    pub(super) config: Config,
    pub(super) volumes: Arc<Volumes>,
    /// What tells of volumes that fail.
    pub(super) alarm: (Alarm, Receiver<usize>),
}

/// Paths that failed, by number.
type FailedPaths = Vec<(usize, OpenError)>;

/// Why an attempt to open the paths that are not left out has failed.
enum AttemptError {
    Refused(OpenError),
    /// These could not be changed, or started.
    OfPaths(FailedPaths),
}

impl From<OpenError> for AttemptError {
    fn from(error: OpenError) -> Self {
        Self::Refused(error)
    }
}

/// Opens and starts every path of `config`, and brings them into agreement. A path whose device fails is left out if there are
/// others. A path whose device is missing is left out if the others know of more paths than there are.
pub(super) fn open_all(
    config: &Config,
    completions: &Arc<CompletionQueues>,
    make_engine: &MakeEngine,
) -> Result<OpenedStore, OpenError> {
    check_paths(&config.paths)?;
    check_required(config)?;
    let mut left_out = Vec::new();
    loop {
        match open_others(config, &mut left_out, completions, make_engine) {
            Ok(opened) => return Ok(opened),
            Err(AttemptError::Refused(error)) => return Err(error),
            // They could be read and not written, perhaps. The others go on without them, if they agree without them.
            Err(AttemptError::OfPaths(failed)) => leave_out(config, failed, &mut left_out, 0)?,
        }
    }
}

/// Checks as an open does that the paths may be one store and are of kinds that these options suit, as far as that is told without
/// opening them. A device that is not here may be elsewhere.
///
/// # Errors
/// `OpenError`, as of an open.
pub fn check_places(config: &Config) -> Result<(), OpenError> {
    check_paths(&config.paths)?;
    check_required(config)?;
    for number in 0..config.paths.len() {
        let config = config.of_path(number);
        match is_device(config.path()) {
            Ok(true) | Err(OpenError::NoDevice { .. }) => config.check_for_device()?,
            Ok(false) => config.check_for_directory()?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens the paths that are not `left_out`, all at the same time.
fn open_others(
    config: &Config,
    left_out: &mut Vec<Unavailable>,
    completions: &Arc<CompletionQueues>,
    make_engine: &MakeEngine,
) -> Result<OpenedStore, AttemptError> {
    let (locked, refused) = LockedPaths::look(config, left_out);
    let states = locked.states(config);
    leave_out(config, refused, left_out, missing_paths(&states))?;
    let are_outdated = compare(&states)?;
    drop(states);
    locked.change(config, &are_outdated, left_out, completions, make_engine)
}

/// The paths of an attempt: looked at and locked, and not changed yet.
struct LockedPaths {
    /// By number; none for a directory that is to be made.
    stores: Vec<(usize, Option<LockedStore>)>,
    /// Of each path of the configuration.
    files: Vec<Arc<WatchedFiles>>,
}

impl LockedPaths {
    /// Also returns which paths are refused.
    fn look(config: &Config, left_out: &[Unavailable]) -> (Self, FailedPaths) {
        let now_ms = config.clock.now_ms();
        let files: Vec<_> = config.paths.iter().map(|_| WatchedFiles::new(&config.files)).collect();
        let is_left_out = |path: &PathBuf| left_out.iter().any(|one| one.path == *path);
        let numbers = (0..config.paths.len()).filter(|number| !is_left_out(&config.paths[*number]));
        let (stores, refused) = at_once(numbers.map(|number| (number, ())), |number, ()| {
            let config = of_path(config, number, &files);
            check_mounted(&config)?;
            LockedStore::look(&config, now_ms)
        });
        (Self { stores, files }, refused)
    }

    fn states<'locked>(&'locked self, config: &'locked Config) -> Vec<PathState<'locked>> {
        let stores = self.stores.iter();
        stores
            .map(|(number, store)| PathState::new(&config.paths[*number], store.as_ref()))
            .collect()
    }

    /// What each path may take, with the length of whole devices; 0 for one that is left out.
    fn capacities_bytes(&self, config: &Config) -> Vec<u64> {
        let mut capacities_bytes = vec![0; config.paths.len()];
        for (number, store) in &self.stores {
            let wanted_bytes = config.capacities_bytes[*number];
            capacities_bytes[*number] =
                store.as_ref().map_or(wanted_bytes, |store| store.capacity_bytes(wanted_bytes));
        }
        capacities_bytes
    }

    /// Makes what is missing, recovers the chunks, brings the paths into agreement and starts them.
    fn change(
        self,
        config: &Config,
        are_outdated: &[bool],
        left_out: &[Unavailable],
        completions: &Arc<CompletionQueues>,
        make_engine: &MakeEngine,
    ) -> Result<OpenedStore, AttemptError> {
        let config = Config { capacities_bytes: self.capacities_bytes(config), ..config.clone() };
        let Self { stores, files } = self;
        let context = VolumeContext::new(&config, completions);
        let (opened, failed) = at_once(stores, |number, store| {
            Volume::open(of_path(&config, number, &files), &files[number], store, &context)
        });
        if !failed.is_empty() {
            return Err(AttemptError::OfPaths(failed));
        }
        let (numbers, mut opened): (Vec<usize>, Vec<Volume>) = opened.into_iter().unzip();
        let of_position =
            |(position, error): (usize, _)| AttemptError::OfPaths(vec![(numbers[position], error)]);
        let agreed = agree(&mut opened, are_outdated, left_out.len()).map_err(of_position)?;
        // Paths have other numbers in the next attempt: an alarm of this one is not to take out another path there.
        let (alarm, alarms) = channel();
        let mut volumes = Volumes::new(opened, left_out.to_vec(), agreed);
        let started = volumes.start(&alarm, make_engine);
        let volumes = Arc::new(volumes);
        let started = started.inspect_err(|(position, _)| close_started(&volumes, *position));
        started.map_err(of_position)?;
        Ok(OpenedStore { config, volumes, alarm: (alarm, alarms) })
    }
}

/// The configuration of one path alone.
fn of_path(config: &Config, number: usize, files: &[Arc<WatchedFiles>]) -> Config {
    let files = Arc::<WatchedFiles>::clone(&files[number]);
    Config { files, ..config.of_path(number) }
}

/// Adds the paths that have `failed` because of their devices to those that are left out, if there are others. A device or mount that
/// is not there may also be a misspelt name: as many of these are left out as the others know of and are `missing`. Returns
/// the error of one that is not left out.
fn leave_out(
    config: &Config,
    failed: FailedPaths,
    left_out: &mut Vec<Unavailable>,
    mut missing: usize,
) -> Result<(), OpenError> {
    let are_others = left_out.len() + failed.len() < config.paths.len();
    for (number, error) in failed {
        let is_left_out = match error {
            OpenError::NoDevice { .. } | OpenError::NotMounted { .. } => missing > 0,
            _ => are_others && is_device_error(&error),
        };
        if !is_left_out {
            return Err(error);
        }
        missing = missing.saturating_sub(1);
        left_out.push(Unavailable::new(&config.paths[number], &error));
    }
    Ok(())
}

/// Works on each path, on as many threads as there are paths, or as the system gives. Returns what came of it, and which failed, both
/// in the order of the paths.
fn at_once<T: Send, R: Send>(
    paths: impl IntoIterator<Item = (usize, T)>,
    work: impl Fn(usize, T) -> Result<R, OpenError> + Sync,
) -> (Vec<(usize, R)>, FailedPaths) {
    let waiting: Vec<(usize, T)> = paths.into_iter().collect();
    let count = waiting.len();
    let waiting = Mutex::new(waiting.into_iter());
    let outcomes = on_threads(OPENING, count, || {
        let mut outcomes = Vec::new();
        // The lock is not held while the work is done: the others take theirs.
        while let Some((number, one)) = { waiting.lock().next() } {
            outcomes.push((number, work(number, one)));
        }
        outcomes
    });
    let mut outcomes: Vec<(usize, Result<R, OpenError>)> = outcomes.into_iter().flatten().collect();
    outcomes.sort_by_key(|(number, _)| *number);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (number, outcome) in outcomes {
        match outcome {
            Ok(outcome) => done.push((number, outcome)),
            Err(error) => failed.push((number, error)),
        }
    }
    (done, failed)
}

/// Whether the device below a path, and not the path, is what is wrong.
fn is_device_error(error: &OpenError) -> bool {
    match error {
        OpenError::ReadOnlyDevice { .. } => true,
        OpenError::Io { source, .. } => source.raw_os_error().is_some_and(is_gone),
        _ => false,
    }
}
