//! Searches look at a bounded number of chunks at a time.

use super::*;

/// Chunks for a very long one are found in parts, and all of them in the end.
#[test]
fn much_room_is_found_a_bounded_part_at_a_time() {
    const COUNT: u32 = 20_000;
    for eviction in Eviction::ALL {
        let mut eviction_index = many_used(eviction, COUNT, &Quotas::default());
        let mut left = u64::from(COUNT);
        let mut turns = 0;
        while left > 0 {
            turns += 1;
            let mut search = RoomSearch::new(COUNT);
            match eviction_index.for_room(&mut search, &Anywhere(left), 0) {
                Room::Found(victims) => {
                    assert!(victims.len() <= 2048, "{} at once", victims.len());
                    left -= victims.len() as u64;
                    victims.iter().for_each(|victim| eviction_index.leave(victim.node, 0));
                }
                Room::Unfinished | Room::Nowhere => panic!("{left} are left"),
            }
        }
        assert!(turns >= COUNT / 2048, "{turns} turns");
        let nowhere = eviction_index.for_room(&mut RoomSearch::new(1), &Anywhere(1), 0);
        assert!(matches!(nowhere, Room::Nowhere));
    }
}

/// So are those of a namespace with a quota.
#[test]
fn much_of_a_quota_is_found_a_bounded_part_at_a_time() {
    const COUNT: u32 = 20_000;
    let quotas = Quotas::new(&[("model".to_owned(), u64::from(COUNT) * BLOCK_BYTES)], 1);
    for eviction in Eviction::ALL {
        let mut eviction_index = many_used(eviction, COUNT, &quotas);
        let (pool, _) = eviction_index.pool_of(Namespace::called("model").fingerprint());
        let mut left = u64::from(COUNT);
        assert_eq!(blocks_of(&mut eviction_index, pool, 0), (left, left));
        while left > 0 {
            let victims = eviction_index.coldest_of(pool, left);
            assert!(victims.len() <= 2048, "{} at once", victims.len());
            left -= victims.len() as u64;
            victims.iter().for_each(|victim| eviction_index.leave(victim.node, 0));
        }
        assert_eq!(blocks_of(&mut eviction_index, pool, 0), (0, 0));
    }
}
