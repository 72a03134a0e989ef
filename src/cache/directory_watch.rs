//! Whether the files of a store are still where the next open looks for them. Through its open descriptors a store works on when
//! its directory is renamed or its files are removed, and all that it stores from then on would be lost at its end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, Ordering};

/// How often the maintenance thread looks.
pub(super) const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// So many looks in a row have to miss them: a directory may be exchanged for another one and back.
const MISSES: u32 = 2;

/// What has changed with the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilesChange {
    /// They are missed for this reason, and other paths can take their keys.
    Missed(String),
    /// They are where they belong again.
    Back,
}

#[derive(Default)]
pub(crate) struct DirectoryWatch {
    is_missed: AtomicBool,
    state: Mutex<DirectoryWatchState>,
}

#[derive(Default)]
struct DirectoryWatchState {
    misses: u32,
    reason: Option<Arc<str>>,
}

impl DirectoryWatch {
    /// Why the next open would not find what is stored now, if so. Then nothing is stored any more.
    pub(crate) fn reason(&self) -> Option<Arc<str>> {
        match self.is_missed.load(Ordering::Relaxed) {
            true => self.state.lock().reason.clone(),
            false => None,
        }
    }

    /// The files of the store at `path` are `missed` for this reason, if so. Returns a change that others are to know.
    pub(super) fn note(
        &self,
        missed: Option<String>,
        path: &Path,
        has_others: bool,
    ) -> Option<FilesChange> {
        let mut state = self.state.lock();
        let Some(reason) = missed else {
            state.misses = 0;
            self.is_missed.store(false, Ordering::Relaxed);
            return state.reason.take().map(|_| FilesChange::Back);
        };
        state.misses += 1;
        if state.misses < MISSES || state.reason.is_some() {
            return None;
        }
        state.reason = Some(reason.as_str().into());
        self.is_missed.store(true, Ordering::Relaxed);
        if has_others {
            return Some(FilesChange::Missed(reason));
        }
        log::error!(
            "{}: {reason}; nothing is stored until it is put back, or the store is opened again; what is stored is still loaded",
            path.display()
        );
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_missed_after_two_looks_in_a_row_and_once() {
        let directory_watch = DirectoryWatch::default();
        let look = |missed: Option<&str>, has_others| {
            let told =
                directory_watch.note(missed.map(str::to_owned), Path::new("/store"), has_others);
            (told, directory_watch.reason().map(|reason| reason.to_string()))
        };
        let (gone, nothing) = (Some("gone".to_owned()), (None, None));
        let missed = Some(FilesChange::Missed("gone".to_owned()));
        assert_eq!(
            (look(Some("gone"), true), look(None, true)),
            (nothing.clone(), nothing.clone())
        );
        assert_eq!(look(Some("gone"), true), nothing);
        assert_eq!(look(Some("gone"), true), (missed, gone.clone()));
        assert_eq!(look(Some("gone"), true), (None, gone.clone()), "it is known already");
        assert_eq!(look(None, true), (Some(FilesChange::Back), None));
        assert_eq!(look(None, true), nothing);
        // Without other paths there is nobody to be told.
        assert_eq!(look(Some("gone"), false), nothing);
        assert_eq!(look(Some("gone"), false), (None, gone));
    }
}
