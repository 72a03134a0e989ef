//! Which chunks are chosen to go for room, where more than one choice makes it.

use super::*;
use crate::base::block::Extent;
use crate::config::Eviction;
use crate::evict::{ChunkRef, Quotas};
use crate::key::Namespace;

/// All is full.
struct Full;

impl FreeSpace for Full {}

/// Chunks of one block in a row; the coldest first.
fn chunks(count: u32) -> (EvictionIndex, Vec<NodeId>) {
    let mut all = EvictionIndex::new(Eviction::Lru, &Quotas::default());
    let enter = |number: u32| {
        let chunk = ChunkRef { shard: 0, entry: number };
        let namespace = (Namespace::called("model").fingerprint(), || "model".to_owned());
        all.enter(chunk, Extent { file: 0, first_block: number, blocks: 1 }, namespace, 0).0
    };
    let nodes = (0..count).map(enter).collect();
    (all, nodes)
}

/// The numbers of the chunks that go, and how many calls it took.
fn found(all: &mut EvictionIndex, search: &mut RoomSearch, now_s: u32) -> (Vec<u32>, usize) {
    for calls in 1..1000 {
        match all.for_room(search, &Full, now_s) {
            Room::Found(victims) => {
                return (victims.iter().map(|victim| victim.chunk.entry).collect(), calls);
            }
            Room::Unfinished => {}
            Room::Nowhere => return (Vec::new(), calls),
        }
    }
    panic!("it does not end");
}

/// Enough is there of what the search has passed when it was excluded.
#[test]
fn what_comes_back_during_a_search_is_looked_at() {
    let (mut all, nodes) = chunks(4000);
    nodes.iter().step_by(2).for_each(|node| all.exclude(*node, 10));
    // The first one stays, so that the scan ends where it began.
    all.exclude(nodes[0], 1000);
    let mut search = RoomSearch::new(3);
    assert!(matches!(all.for_room(&mut search, &Full, 5), Room::Unfinished));
    assert_eq!(found(&mut all, &mut search, 10).0, [1, 2, 3]);
}

#[test]
fn a_seed_that_is_excluded_meanwhile_does_not_go() {
    let (mut all, nodes) = chunks(4);
    let mut search = RoomSearch::new(1);
    let scan = Scan::from(Extent { file: 0, first_block: 2, blocks: 1 });
    search.started = Some((vec![nodes[0]].into_iter(), scan));
    all.exclude(nodes[0], 10);
    assert_eq!(found(&mut all, &mut search, 5).0, [2]);
}

/// Two that are cold and lie side by side cost less than the coldest with one beside it that is hot. They are found if one of them
/// is in the sixteenth part of all that goes first.
#[test]
fn the_cheapest_run_around_the_coldest_sixteenth_goes() {
    for (before, expected) in [(0, vec![80, 81]), (7, vec![80, 81]), (20, vec![0, 1])] {
        let (mut all, nodes) = chunks(160);
        // Cold ones, from the coldest on: the first, others with hot ones on both sides, and then the two.
        let cold: Vec<usize> = (0..=before).map(|number| 3 * number).chain([80, 81]).collect();
        let hot = |number: &usize| !cold.contains(number);
        (0..160).rev().filter(hot).for_each(|number| all.touch(nodes[number]));
        assert_eq!(found(&mut all, &mut RoomSearch::new(2), 0).0, expected, "{before} before");
    }
}

/// Once there is a run, a cheaper one is looked for among some thousands of neighbours only.
#[test]
fn the_search_for_a_cheaper_run_is_bounded() {
    let (mut all, _) = chunks(40_000);
    let (victims, calls) = found(&mut all, &mut RoomSearch::new(1000), 0);
    assert_eq!(victims.len(), 1000);
    // Some seeds a call, each with a thousand neighbours on both sides.
    assert_eq!(calls, 6);
}

#[test]
fn a_search_begins_anew_so_many_times_and_a_scan_never() {
    let mut search = RoomSearch::new(7);
    for round in 1..=MOST_ROUNDS {
        search.steps = 5;
        search.begin_anew();
        assert_eq!((search.rounds, search.steps, search.blocks), (round, 0, 7));
    }
    search.steps = 5;
    search.begin_anew();
    assert_eq!((search.rounds, search.steps), (MOST_ROUNDS, 5));
    let mut search = RoomSearch { scans: true, steps: 5, ..RoomSearch::new(7) };
    search.begin_anew();
    assert_eq!((search.rounds, search.steps), (0, 5));
}
