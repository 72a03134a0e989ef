//! Work that several threads share.

use std::panic::resume_unwind;

use crate::base::sync::spawn_scoped;

/// The name of threads that open a path.
pub(crate) const OPENING: &str = "kvring-open";

/// Calls `work` on `count` threads at once, this one among them, and returns what they return. They are fewer where the system
/// refuses threads, so each has to take a part of the work until nothing is left.
pub(crate) fn on_threads<T: Send>(name: &str, count: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let spawn = |_| spawn_scoped(scope, name, &work);
        let others: Vec<_> = (1..count).map_while(spawn).collect();
        let mut all = vec![work()];
        for other in others {
            all.push(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    })
}

/// All values of sorted parts, in order.
pub(crate) fn merged<T: Ord + Copy>(mut parts: Vec<&[T]>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || {
        let firsts = parts.iter().enumerate().filter_map(|(at, part)| Some((*part.first()?, at)));
        let (first, at) = firsts.min()?;
        parts[at] = &parts[at][1..];
        Some(first)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn threads_share_the_work_and_a_panic_is_passed_on() {
        let next = AtomicUsize::new(0);
        let take = || std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let mut all =
            on_threads("four", 4, || take().take_while(|one| *one < 1000).collect::<Vec<_>>())
                .concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        let panics =
            || on_threads("two", 2, || assert!(next.fetch_add(1, Ordering::Relaxed) < 1005));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    }

    proptest! {
        #[test]
        fn values_come_in_order(mut parts in prop::collection::vec(prop::collection::vec(0_u32..50, 0..40), 0..6)) {
            parts.iter_mut().for_each(|part| part.sort_unstable());
            let mut expected = parts.concat();
            expected.sort_unstable();
            let seen: Vec<u32> = merged(parts.iter().map(Vec::as_slice).collect()).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
