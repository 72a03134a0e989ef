//! Room within quotas, at one path and over several.

use super::*;

#[test]
fn a_quota_is_kept_and_given_back() {
    let name = Namespace::of("1").name();
    let quota_bytes = 100 * BLOCK_BYTES;
    let mut still = Still::with(|config| config.quotas = vec![(name.clone(), quota_bytes)]);
    still.cache.set_paths(&[Arc::clone(&still.cache)]);
    for number in 0..30 {
        let evicted = still.put(number, 10).evicted;
        assert_eq!(evicted, if number < 10 { 0 } else { 10 }, "for {number}");
    }
    assert_eq!(still.stored(0..30), (20..30).collect::<Vec<_>>());
    let refused = still.try_to_begin(30, 101).err();
    assert!(matches!(refused, Some(StoreError::Quota { .. })), "{refused:?}");
    assert_eq!(still.stored(0..30).len(), 10, "nothing goes for what is longer than all of it");
    // What is refused for another reason has no share of it.
    let mut still = Still::with(|config| config.quotas = vec![(name, 1 << 40)]);
    still.cache.set_paths(&[Arc::clone(&still.cache)]);
    let refused = still.try_to_begin(1, CAPACITY / BLOCK_BYTES + 1).err();
    assert!(matches!(refused, Some(StoreError::Full { .. })), "{refused:?}");
    let check = still.cache.index.check(|| still.cache.store.usage().allocated_bytes);
    assert_eq!((check.reserved_bytes, check.problems), (0, Vec::new()));
}

/// Room in a quota is made at the path of whose capacity the namespace takes most, if anything there can go.
#[test]
fn room_in_a_quota_is_made_at_the_path_that_it_fills_most() {
    let name = Namespace::of("1").name();
    for (is_first, is_pinned) in [(true, false), (false, false), (true, true), (false, true)] {
        let quotas = [(name.clone(), 100 * BLOCK_BYTES)];
        let shared = Quotas::new(&quotas, 1);
        let [mut small, mut large] = [CAPACITY, 2 * CAPACITY].map(|capacity_bytes| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_str().unwrap();
            let mut config = Config::new(path, capacity_bytes).unwrap();
            config.quotas = quotas.to_vec();
            Still::at(directory, config, &shared)
        });
        let mut paths = [Arc::clone(&small.cache), Arc::clone(&large.cache)];
        if !is_first {
            paths.reverse();
        }
        paths.iter().for_each(|cache| cache.set_paths(&paths));
        (0..4).for_each(|number| _ = small.put(number, 10));
        (4..10).for_each(|number| _ = large.put(number, 10));
        for number in (0..4).filter(|_| is_pinned) {
            let pinned = small.cache.index.pin_keys(&[Hashed::of(&number.to_string())], 1);
            assert_eq!(pinned, [true]);
        }
        large.put(10, 10);
        let (first, second) = if is_pinned { (0, 5) } else { (1, 4) };
        assert_eq!(small.stored(0..4), (first..4).collect::<Vec<_>>());
        assert_eq!(large.stored(4..11), (second..11).collect::<Vec<_>>());
    }
}

/// Each round makes room at one path of many: there are as many rounds as it takes.
#[test]
fn room_in_a_quota_over_many_paths_takes_many_rounds() {
    const PATHS: u64 = 24;
    let quotas = [(Namespace::of("1").name(), 32 * PATHS * BLOCK_BYTES)];
    let shared = Quotas::new(&quotas, 1);
    let mut stills: Vec<Still> = (0..PATHS)
        .map(|_| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_str().unwrap();
            let mut config = Config::new(path, CAPACITY / 8).unwrap();
            config.quotas = quotas.to_vec();
            Still::at(directory, config, &shared)
        })
        .collect();
    let paths: Vec<_> = stills.iter().map(|still| Arc::clone(&still.cache)).collect();
    paths.iter().for_each(|cache| cache.set_paths(&paths));
    for (path, still) in (0..).zip(&mut stills) {
        (32 * path..32 * (path + 1)).for_each(|number| _ = still.put(number, 1));
    }
    stills[0].put(1000, 600);
    let evicted: u64 = paths.iter().map(|cache| cache.counters.evicted.get()).sum();
    assert_eq!(evicted, 600);
}

/// A long chunk among tiny ones: loads go between the steps in which these go.
#[test]
fn room_in_a_quota_is_made_in_steps() {
    const COUNT: u64 = 4000;
    let name = Namespace::of("1").name();
    let mut still = Still::with(|config| config.quotas = vec![(name, COUNT * BLOCK_BYTES)]);
    still.cache.set_paths(&[Arc::clone(&still.cache)]);
    (0..COUNT).for_each(|number| _ = still.put(number, 1));
    assert_eq!(still.put(COUNT, COUNT).evicted, COUNT);
    let most = VICTIMS_A_STEP as u64;
    assert!(still.most_in_a_turn <= most, "{} in a turn", still.most_in_a_turn);
    assert!(still.unfinished_turns >= COUNT / most, "{} turns", still.unfinished_turns);
}
