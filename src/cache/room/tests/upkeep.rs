//! What the maintenance thread does: room ahead of need, expiry, uses, and looking for its files.

use std::time::Duration;

use super::*;

/// With 3000 chunks, each of which was used since.
fn stored_and_used() -> Still {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    for number in 0..3000 {
        still.put(number, 1);
        still.get(number, 1);
    }
    still
}

/// Answers of SETs and DELETEs wait behind the uses that are queued: a few, however many there are.
#[test]
fn uses_are_written_a_few_at_a_time() {
    let still = stored_and_used();
    let index = &still.cache.index;
    // Nobody makes these.
    index.defer_changes();
    let before = index.changes.ticket();
    still.cache.write_uses();
    let queued = index.changes.ticket() - before;
    assert!((1..=64).contains(&queued), "{queued} uses");
}

#[test]
fn what_is_above_the_high_watermark_goes_down_to_the_low_one() {
    let mut still = Still::new(Eviction::Lru, (0.5, 0.75));
    let filled = |still: &Still| {
        let fill = still.cache.store.fill();
        let share = fill.allocated_bytes as f64 / fill.total_bytes as f64;
        if fill.can_grow { 0.0 } else { share }
    };
    for number in 0.. {
        still.put(number, 1024);
        assert_eq!(still.cache.maintenance.is_under_way(), filled(&still) > 0.75);
        if still.cache.maintenance.is_under_way() {
            break;
        }
    }
    let mut evicted = Vec::new();
    still.cache.evict_ahead(|blocks, bytes| evicted.push((blocks, bytes)));
    let one = 1024.0 * BLOCK_BYTES as f64 / still.cache.store.fill().total_bytes as f64;
    assert!((0.5 - one..=0.5).contains(&filled(&still)), "{}", filled(&still));
    assert!(evicted.len() > 10 && evicted.iter().all(|one| *one == (1024, 1024 * BLOCK_BYTES)));
    assert!(!still.cache.maintenance.is_under_way());
    // It is wanted once.
    still.cache.evict_ahead(|_, _| panic!("nobody asked for that"));
}

/// Room is made for about the longest of late: one long chunk counts less and less.
#[test]
fn what_is_typical_follows_the_longest_chunks() {
    let mut still = Still::new(Eviction::Lru, (0.9, 0.95));
    let typical = |still: &mut Still, number, blocks| {
        still.put(number, blocks);
        still.cache.typical_blocks.load(Ordering::Relaxed)
    };
    assert_eq!([300, 1024].map(|blocks| typical(&mut still, blocks, blocks)), [300, 1024]);
    assert_eq!([1, 2, 3].map(|number| typical(&mut still, number, 1)), [1008, 993, 978]);
}

/// In slices, where it rests between them, until it is to end; without rests all at once.
#[test]
fn what_has_expired_goes_in_slices_or_at_once() {
    let now_ms = Arc::new(AtomicU64::new(1000));
    let mut still = Still::with(|config| {
        config.ttl = Some(Duration::from_secs(1));
        config.clock = Clock::by_hand(Arc::clone(&now_ms));
    });
    (0..3000).for_each(|number| _ = still.put(number, 1));
    assert_eq!(still.cache.expire(false), 0);
    now_ms.store(2000, Ordering::SeqCst);
    still.cache.maintenance.end();
    let first = still.cache.expire(true);
    assert!(first < 3000, "{first} in the first slice");
    assert_eq!(still.cache.expire(false), 3000 - first);
    let counters = &still.cache.counters;
    assert_eq!((counters.expired.get(), counters.expired_bytes.get()), (3000, 3000 * BLOCK_BYTES));
    assert!(still.stored(0..3000).is_empty());
}

/// Where nothing else is wanted, all uses are in their records when it returns, however long another thread takes to write them.
#[test]
fn all_uses_are_written() {
    let still = stored_and_used();
    assert_eq!(still.cache.index.uses_behind(), 3000);
    let cache = &still.cache;
    cache.index.defer_changes();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                std::thread::yield_now();
                cache.index.write_queued();
            }
        });
        // It gives up after 100 ms, which the other thread may have to wait for a processor.
        let are_written = loop {
            let begun = Instant::now();
            cache.write_uses();
            let are_written = cache.index.uses_behind() == 0;
            if are_written || begun.elapsed() < Duration::from_millis(100) {
                break are_written;
            }
        };
        is_over.store(true, Ordering::SeqCst);
        // It may wait for more.
        cache.index.end_changes();
        assert!(are_written);
    });
}

#[test]
fn the_thread_makes_room_when_it_is_short() {
    let mut still = Still::new(Eviction::Lru, (0.5, 0.75));
    for number in 0.. {
        still.put(number, 1024);
        if still.cache.maintenance.is_under_way() {
            break;
        }
    }
    let thread = still.cache.start_maintenance(|_| panic!("its files are there")).unwrap();
    while still.cache.maintenance.is_under_way() {
        std::thread::yield_now();
    }
    thread.end();
    assert!(still.cache.counters.evicted.get() > 10);
}

/// Other paths take the keys of one whose files are not where they belong. Alone, it says so in the log.
#[test]
fn lost_files_are_told_where_others_can_take_their_keys() {
    logged::keep();
    for (paths, told) in [(1, 0), (2, 1)] {
        let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
        still.put(1, 1);
        still.cache.set_paths(&vec![Arc::clone(&still.cache); paths]);
        std::fs::remove_dir_all(still.cache.config.path()).unwrap();
        let count = std::cell::Cell::new(0);
        (0..3).for_each(|_| still.cache.look_for_files(&|_| count.set(count.get() + 1)));
        assert_eq!(count.get(), told);
        assert!(still.cache.directory_watch.reason().is_some());
        let lines = logged::lines(still.cache.config.path(), "nothing is stored until").len();
        assert_eq!(lines, 1 - told);
    }
}

/// Nothing was freed, and nobody wants anything else.
#[test]
fn discarding_ends_when_nothing_is_left() {
    let still = Still::new(Eviction::Lru, (1.0, 1.0));
    still.cache.discard_freed();
    assert!(!still.cache.maintenance.are_to_end());
}
