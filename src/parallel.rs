//! Work that several threads share.

use std::panic::resume_unwind;
use std::thread::Builder;

use crate::sync::Mutex;

/// Calls `work` on `count` threads at once, this one among them, and returns what they return. They are fewer where the system
/// refuses threads, so each has to take a part of the work until nothing is left.
pub(crate) fn on_threads<T: Send>(count: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let spawn = |_| Builder::new().name("kvring-open".into()).spawn_scoped(scope, &work).ok();
        let others: Vec<_> = (1..count).map_while(spawn).collect();
        let mut all = vec![work()];
        for other in others {
            all.push(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    })
}

/// Calls `visit` with all values in order; sorts them on `threads` threads.
pub(crate) fn in_order<T: Ord + Copy + Send>(
    values: &mut [T],
    threads: usize,
    visit: impl FnMut(T),
) {
    let length = values.len().div_ceil(threads).max(1);
    {
        let parts = Mutex::new(values.chunks_mut(length));
        on_threads(threads, || {
            while let Some(part) = { parts.lock().next() } {
                part.sort_unstable();
            }
        });
    }
    merged(values.chunks(length).collect()).for_each(visit);
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
            on_threads(4, || take().take_while(|one| *one < 1000).collect::<Vec<_>>()).concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        let panics = || on_threads(2, || assert!(next.fetch_add(1, Ordering::Relaxed) < 1005));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    }

    proptest! {
        #[test]
        fn values_come_in_order(mut values in prop::collection::vec(0_u32..50, 0..200), threads in 1_usize..6) {
            let mut expected = values.clone();
            expected.sort_unstable();
            let mut seen = Vec::new();
            in_order(&mut values, threads, |value| seen.push(value));
            prop_assert_eq!(seen, expected);
        }
    }
}
