//! Blocks that are given out, taken back and retired.

use proptest::prelude::*;

use super::*;

fn extent(file: u32, first_block: u32, blocks: u32) -> Extent {
    Extent { file, first_block, blocks }
}

fn with_files(sizes: &[u32]) -> Allocator {
    let mut allocator = Allocator::default();
    (0..).zip(sizes).for_each(|(number, size)| allocator.add_file(number, *size));
    allocator
}

/// Free, given-out and unwritten blocks cover every file exactly once.
fn check(allocator: &Allocator, held: &[Extent]) {
    let mut runs: Vec<Extent> = held.to_vec();
    runs.extend(allocator.free.iter());
    runs.extend(allocator.retired.iter());
    runs.sort();
    let mut covered = vec![0_u64; allocator.files.len()];
    for run in runs {
        assert_eq!(
            covered[run.file as usize],
            u64::from(run.first_block),
            "gap or overlap at {run:?}"
        );
        covered[run.file as usize] = run.end_block();
    }
    for (file, space) in allocator.files.iter().enumerate() {
        assert_eq!(covered[file], u64::from(space.frontier));
        assert!(space.frontier <= space.blocks);
    }
    assert_eq!(
        allocator.allocated,
        held.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>()
    );
}

#[test]
fn written_extents_first_and_tightest() {
    let mut allocator = with_files(&[100]);
    let runs: Vec<_> = [10, 1, 4, 1, 20].map(|blocks| allocator.allocate(blocks).unwrap()).into();
    allocator.free(runs[0]);
    allocator.free(runs[2]);
    assert_eq!(
        allocator.allocate(3),
        Some(extent(0, 11, 3)),
        "the hole of 4, not that of 10 nor unwritten space"
    );
    assert_eq!(allocator.allocate(11), Some(extent(0, 36, 11)), "no hole is large enough");
}

#[test]
fn written_space_before_the_frontier_joins_unwritten_space() {
    let mut allocator = with_files(&[10]);
    let first = allocator.allocate(6).unwrap();
    allocator.free(first);
    assert_eq!(allocator.allocate(10), Some(extent(0, 0, 10)));
    assert_eq!(allocator.allocate(1), None);
}

#[test]
fn rebuild_keeps_what_is_held() {
    let held = [extent(0, 2, 3), extent(0, 5, 1), extent(1, 0, 4)];
    let mut allocator = with_files(&[10, 10]);
    allocator.rebuild(&held);
    check(&allocator, &held);
    assert_eq!(allocator.allocate(2), Some(extent(0, 0, 2)));
    assert_eq!(allocator.allocate(5), Some(extent(1, 4, 5)));
}

#[test]
fn it_is_not_given_out_until_there_are_too_many() {
    let mut allocator = Allocator::default();
    allocator.add_file(0, 640);
    let extents: Vec<Extent> = (0..3).map(|_| allocator.allocate(4).unwrap()).collect();
    for extent in &extents {
        allocator.free_bad(*extent);
    }
    assert_eq!(allocator.allocated, 0);
    // Ten blocks may be bad: the first extent came back.
    assert_eq!(allocator.allocate(4), Some(extents[0]));
    let next = allocator.allocate(4).unwrap();
    assert!(!extents.contains(&next), "{next:?}");
    allocator.retry_bad();
    assert!(extents.contains(&allocator.allocate(4).unwrap()), "they are back");
}

#[test]
fn a_file_becomes_shorter_once_all_behind_its_limit_is_free() {
    let mut allocator = with_files(&[40, 20]);
    let held: Vec<Extent> = (0..10).map(|_| allocator.allocate(5).unwrap()).collect();
    allocator.free(held[1]);
    allocator.free(held[9]);
    // In the middle of an extent, and in front of all.
    allocator.set_limit(0, 22);
    allocator.set_limit(1, 0);
    assert_eq!((allocator.total(), allocator.allocated), (22, 40));
    assert_eq!(allocator.limited(), [(0, 22, false), (1, 0, false)]);
    assert_eq!(allocator.allocate(5), Some(held[1]));
    assert_eq!(allocator.allocate(1), None, "the rest is retired");
    held[4..9].iter().for_each(|extent| allocator.free(*extent));
    assert_eq!(allocator.limited(), [(0, 22, true), (1, 0, true)]);
    assert_eq!(allocator.allocate(3), None);
    assert_eq!(allocator.allocate(2), Some(extent(0, 20, 2)));
    allocator.cut_at_limit(0);
    allocator.set_limit(1, 20);
    assert_eq!((allocator.lengths(), allocator.limited()), (vec![(0, 22), (1, 20)], vec![]));
    assert_eq!(allocator.allocate(20), Some(extent(1, 0, 20)));
    allocator.free(extent(1, 0, 20));
    allocator.set_limit(1, 0);
    allocator.cut_at_limit(1);
    assert_eq!(allocator.lengths(), [(0, 22)]);
    allocator.add_file(1, 7);
    assert_eq!(allocator.allocate(7), Some(extent(1, 0, 7)));
}

proptest! {
    /// What is taken is exactly what is free there, and nothing is lost when it is back.
    #[test]
    fn free_extents_can_be_taken_and_put_back(frees in prop::collection::vec(any::<bool>(), 12), first in 0_u32..60, blocks in 1_u32..40) {
        let mut allocator = with_files(&[60, 60]);
        let all: Vec<Extent> = (0..12).map(|_| allocator.allocate(5).unwrap()).collect();
        let (gone, held): (Vec<_>, Vec<_>) = all.into_iter().zip(frees).partition(|(_, gone)| *gone);
        let held: Vec<Extent> = held.into_iter().map(|(extent, _)| extent).collect();
        gone.iter().for_each(|(extent, _)| allocator.free(*extent));
        let range = extent(0, first, blocks);
        let taken = allocator.take_free_within(range);
        let within = |block: u32| u64::from(block) < range.end_block() && block >= first;
        let free = gone.iter().flat_map(|(extent, _)| extent.first_block..extent.end_block() as u32);
        let expected: Vec<u32> = free.filter(|block| within(*block)).collect();
        let blocks: Vec<u32> = taken.iter().flat_map(|extent| extent.first_block..extent.end_block() as u32).collect();
        prop_assert_eq!(blocks, expected);
        let mut outside = held.clone();
        outside.extend(&taken);
        allocator.allocated += taken.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
        check(&allocator, &outside);
        taken.into_iter().for_each(|extent| allocator.free(extent));
        check(&allocator, &held);
    }

    #[test]
    fn blocks_are_never_lost_or_given_out_twice(steps in prop::collection::vec((0_u32..44, any::<prop::sample::Index>(), any::<bool>()), 1..300)) {
        let mut allocator = with_files(&[64, 100, 16]);
        let mut held: Vec<Extent> = Vec::new();
        for (blocks, which, rebuild) in steps {
            if blocks >= 40 {
                let file = blocks % 3;
                let most = allocator.blocks_of(file) as usize;
                allocator.set_limit(file, which.index(most + 1) as u32);
            } else if blocks >= 20 && !held.is_empty() {
                allocator.free(held.swap_remove(which.index(held.len())));
            } else if let Some(given) = allocator.allocate(blocks % 20 + 1) {
                prop_assert_eq!(given.blocks, blocks % 20 + 1);
                let limit = allocator.files[given.file as usize].limit;
                prop_assert!(given.end_block() <= u64::from(limit));
                held.push(given);
            }
            if rebuild && blocks == 0 && allocator.limited().is_empty() {
                held.sort();
                allocator.rebuild(&held);
            }
            check(&allocator, &held);
        }
        for given in held.drain(..) {
            allocator.free(given);
        }
        check(&allocator, &[]);
        prop_assert!(allocator.limited().iter().all(|(_, _, is_free)| *is_free));
        (0..3).for_each(|file| allocator.set_limit(file, u32::MAX));
        prop_assert_eq!(allocator.allocate(100), Some(extent(1, 0, 100)));
    }
}
