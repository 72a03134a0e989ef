//! Which chunks go, in how many turns, and what is refused.

use super::*;

/// A chunk for which thousands have to go: some in each turn, so that loads go between.
#[test]
fn room_for_a_long_chunk_is_made_in_turns() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new(directory.path().to_str().unwrap(), CAPACITY / 4).unwrap();
    config.eviction = Eviction::Lru;
    (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
    let mut still = Still::at(directory, config, &Quotas::default());
    let count = CAPACITY / 4 / BLOCK_BYTES;
    for number in 0..count {
        still.put(number, 1);
    }
    assert_eq!(still.unfinished_turns, 0);
    let thrown = still.put(count, count / 4);
    assert!(thrown.evicted >= count / 5, "{} evicted", thrown.evicted);
    assert!(still.unfinished_turns >= 4, "{} turns", still.unfinished_turns);
    assert!(still.most_in_a_turn <= 2048, "{} in one", still.most_in_a_turn);
}

/// Another thread evicts what was found, or it must stay: the next coldest goes then, not what lies beside.
#[test]
fn what_is_hot_stays_where_a_search_has_lost_what_it_found() {
    const BLOCKS: u64 = 1024;
    for must_stay in [false, true] {
        let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
        let count = CAPACITY / BLOCK_BYTES / BLOCKS - 4;
        (0..count).for_each(|number| _ = still.put(number, BLOCKS));
        // All but two, which lie far apart.
        let cold = [count / 4, count / 2];
        (0..count)
            .filter(|number| !cold.contains(number))
            .for_each(|number| _ = still.get(number, BLOCKS));
        let index = &still.cache.index;
        let is_stored = |number: u64| {
            let key = number.to_string();
            index.contains_each(std::iter::once(Hashed::of(&key)), false, 1).stored == [true]
        };
        let mut making = RoomMaking::new(8 * BLOCKS as u32);
        let mut search = RoomSearch::new(BLOCKS as u32);
        let found = index.eviction_index.lock().for_room(&mut search, &*still.cache.store, 0);
        let Room::Found(victims) = found else { panic!("there is room") };
        (making.search, making.victims) = (search, victims.clone());
        if must_stay {
            assert_eq!(index.pin_keys(&[Hashed::of(&cold[0].to_string())], 1), [true]);
        } else {
            assert!(still.cache.evict_all(&victims));
        }
        while still.cache.go_on_making_room(&mut making).is_none() {}
        assert_eq!(cold.map(is_stored), [must_stay, false]);
        assert!((0..count).filter(|number| !cold.contains(number)).all(is_stored));
    }
}

/// Where one of those that would go must stay, nothing goes: there would be no room, and the others would be lost.
#[test]
fn nothing_goes_in_vain() {
    const BLOCKS: u64 = 1024;
    for pinned in [vec![0], vec![2], vec![0, 1], vec![0, 1, 2]] {
        let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
        let count = CAPACITY / BLOCK_BYTES / BLOCKS - 4;
        (0..count).for_each(|number| _ = still.put(number, BLOCKS));
        let index = &still.cache.index;
        let mut search = RoomSearch::new(3 * BLOCKS as u32);
        let found = index.eviction_index.lock().for_room(&mut search, &*still.cache.store, 0);
        let Room::Found(victims) = found else { panic!("there is room") };
        assert_eq!(victims.len(), 3);
        for number in &pinned {
            assert_eq!(index.pin_keys(&[Hashed::of(&number.to_string())], 1), [true]);
        }
        let mut making = RoomMaking { search, victims, ..RoomMaking::default() };
        assert_eq!(still.cache.go_on_making_room(&mut making), None);
        assert_eq!(still.stored(0..count).len() as u64, count, "with {pinned:?} pinned");
    }
}

/// What finds no room as all of it is in use may find some later.
#[test]
fn room_that_is_in_use_is_told_from_room_that_is_not_there() {
    let mut still = Still::new(Eviction::Lru, (1.0, 1.0));
    let count = CAPACITY / BLOCK_BYTES / 1024 - 4;
    (0..count).for_each(|number| _ = still.put(number, 1024));
    for number in (0..count).step_by(4) {
        let pinned = still.cache.index.pin_keys(&[Hashed::of(&number.to_string())], 1);
        assert_eq!(pinned, [true]);
    }
    let refused = still.try_to_begin(count, 8 * 1024).err();
    assert!(matches!(refused, Some(StoreError::InUse { .. })), "{refused:?}");
    let refused = still.try_to_begin(count, 2 * CAPACITY / BLOCK_BYTES).err();
    assert!(matches!(refused, Some(StoreError::Full { .. })), "{refused:?}");
}
