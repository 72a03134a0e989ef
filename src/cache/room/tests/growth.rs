//! What the thread of growth does, and who wants it.

use super::*;

/// A store whose growth is ordered, and done by a thread.
fn apart() -> Still {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    Arc::get_mut(&mut still.cache).unwrap().config.works_inline = false;
    still
}

/// Takes blocks until the store should grow.
fn fill_up(still: &Still) {
    while !still.cache.store.is_growth_due(0) {
        still.cache.store.allocate(1 << 20, Digest::of("")).unwrap();
    }
}

#[test]
fn the_first_file_and_the_first_part_of_the_index_are_made_at_once() {
    let still = apart();
    let cache = &still.cache;
    assert_eq!((cache.index.record_slots(), cache.store.fill().total_bytes), (0, 0));
    cache.prepare_growth();
    assert!(cache.index.record_slots() > 0 && cache.store.fill().total_bytes > 0);
    // What is there stays as it is.
    let before = cache.index.record_slots();
    cache.prepare_growth();
    assert_eq!(cache.index.record_slots(), before);
}

#[test]
fn growth_is_ordered_once_when_data_or_index_are_due() {
    let still = apart();
    let (cache, index) = (&still.cache, &still.cache.index);
    let is_ordered = || {
        cache.grow_ahead();
        let order = cache.growth.take();
        assert!(order.is_none_or(|bytes| bytes == 0), "{order:?}");
        order.is_some()
    };
    let are_due = || (cache.store.is_growth_due(0), index.is_growth_due());
    cache.prepare_growth();
    assert_eq!((are_due(), is_ordered()), ((false, false), false));
    fill_up(&still);
    assert_eq!((are_due(), is_ordered()), ((true, false), true));
    assert!(!is_ordered(), "it is under way");
    while cache.store.is_growth_due(0) {
        cache.store.grow(0, index.space()).unwrap();
    }
    cache.growth.note_done();
    while !index.is_growth_due() {
        std::mem::forget(index.reserve_record(1).unwrap());
    }
    assert_eq!((are_due(), is_ordered()), ((false, true), true));
}

/// Reactors whose SETs wait are woken when it has grown, and when nobody does that any more.
#[test]
fn the_thread_grows_the_store_and_wakes_who_waits() {
    let still = apart();
    let (cache, reactor) = (&still.cache, &still.cache.reactors[0]);
    cache.prepare_growth();
    let thread = cache.start_growth().unwrap();
    fill_up(&still);
    let before = cache.store.fill().total_bytes;
    reactor.prepare_sleep();
    cache.grow_ahead();
    while cache.is_growing() || reactor.sleeps() {
        std::thread::yield_now();
    }
    assert!(cache.store.fill().total_bytes > before && !cache.store.is_growth_due(0));
    reactor.prepare_sleep();
    thread.end();
    assert!(!reactor.sleeps());
    assert!(!cache.order_growth(1));
}
