//! Tests of the account of chunk files.

use proptest::prelude::*;

use super::*;

const CAPACITY: u64 = 1 << 20;

proptest! {
    /// What is on disk (made and not removed) never exceeds the capacity, whoever waits for whom, whatever cannot be removed,
    /// and nothing is lost.
    #[test]
    fn promises_are_kept(steps in prop::collection::vec((1_u32..30, 0_u8..4, any::<prop::sample::Index>()), 1..400)) {
        let space = SpaceAccount::new(CAPACITY);
        let mut account = Account::new(4096);
        let (mut unmade, mut made): (Vec<Extent>, Vec<Extent>) = Default::default();
        let cost = |extent: &Extent| cost_bytes(extent.blocks, 4096);
        let (mut on_disk, mut stuck_bytes, mut stuck_files) = (0, 0, 0);
        let mut end_one = |account: &mut Account, on_disk: &mut u64, existed: &mut Vec<u32>| {
            if let Some(extent) = account.leaving.pop_front() {
                let position = existed.iter().position(|number| *number == extent.file);
                let is_stuck = position.is_some() && extent.blocks % 7 == 0;
                match position {
                    Some(_) if is_stuck => {
                        stuck_bytes += cost(&extent);
                        stuck_files += 1;
                    }
                    Some(position) => {
                        existed.swap_remove(position);
                        *on_disk -= cost(&extent);
                    }
                    None => {}
                }
                account.end_removal(extent, !is_stuck, &space);
            }
        };
        let mut existing = Vec::new();
        for (blocks, step, which) in steps {
            match step {
                0 => {
                    let digest = Digest([u64::from(blocks), 0]);
                    let needed = account.needed_bytes(blocks, digest);
                    let now = needed.min(space.left_bytes());
                    if needed - now <= account.unpromised_bytes() && space.reserve(now, 0) {
                        unmade.push(account.give_out(blocks, digest, needed - now));
                    }
                }
                1 => {
                    unmade.retain(|extent| {
                        let clear = account.space_ready(extent.file) == Some(true);
                        if clear {
                            account.creation_done(extent.file);
                            on_disk += cost(extent);
                            existing.push(extent.file);
                            made.push(*extent);
                        }
                        !clear
                    });
                }
                2 if !unmade.is_empty() && blocks % 3 == 0 => {
                    let extent = unmade.swap_remove(which.index(unmade.len()));
                    // The file system is asked once the space is there.
                    if account.space_ready(extent.file) == Some(true) {
                        account.creation_done(extent.file);
                        account.note_refused(extent.file);
                    }
                    account.begin_removal(extent);
                }
                2 if !made.is_empty() => account.begin_removal(made.swap_remove(which.index(made.len()))),
                2 if !unmade.is_empty() => account.begin_removal(unmade.swap_remove(which.index(unmade.len()))),
                _ => end_one(&mut account, &mut on_disk, &mut existing),
            }
            let directories = |account: &Account| -> u64 {
                account.directories.iter().map(|directory| directory.reserved_bytes).sum()
            };
            // That of a directory is taken where its growth was promised and has not come.
            let files_bytes = space.used_bytes() - directories(&account);
            prop_assert!(on_disk <= CAPACITY && files_bytes <= CAPACITY);
            // Who waits is served by what goes, or is told.
            let waits = |extent: &&Extent| account.space_ready(extent.file) == Some(false);
            prop_assert!(account.is_leaving() || !unmade.iter().any(|extent| waits(&extent)));
        }
        for extent in made.drain(..).chain(unmade.drain(..)) {
            account.begin_removal(extent);
        }
        while !account.leaving.is_empty() {
            end_one(&mut account, &mut on_disk, &mut existing);
        }
        let directories: u64 = account.directories.iter().map(|directory| directory.reserved_bytes).sum();
        let used_bytes = directories + stuck_bytes;
        prop_assert_eq!((space.used_bytes(), account.live_bytes, account.files.len()), (used_bytes, 0, stuck_files));
        prop_assert!(account.unmade_bytes == 0 && account.allocated_blocks == 0);
        prop_assert!(stuck_files > 0 || !account.is_awaited());
        prop_assert!(account.refused.is_empty() && account.refused_bytes == 0);
    }
}

/// Who waits for its space is told, and what goes next is theirs who wait.
#[test]
fn a_file_that_cannot_be_removed_keeps_its_space() {
    let space = SpaceAccount::new(CAPACITY);
    let mut account = Account::new(4096);
    let digest = Digest([0; 2]);
    account.note_directory(0, 0, &space);
    let blocks = 100;
    let needed = account.needed_bytes(blocks, digest);
    space.add(CAPACITY - space.used_bytes());
    let [old, next] = [0; 2].map(|promised| account.give_out(blocks, digest, promised));
    account.begin_removal(old);
    let new = account.give_out(blocks, digest, needed);
    assert_eq!((account.space_ready(new.file), space.used_bytes()), (Some(false), CAPACITY));
    account.end_removal(old, false, &space);
    assert_eq!((account.space_ready(new.file), space.used_bytes()), (None, CAPACITY));
    account.begin_removal(next);
    assert_eq!((account.space_ready(new.file), account.unpromised_bytes()), (Some(false), 0));
    account.end_removal(next, true, &space);
    assert_eq!((account.space_ready(new.file), space.used_bytes()), (Some(true), CAPACITY));
    account.begin_removal(new);
    account.end_removal(new, true, &space);
    assert_eq!(space.used_bytes(), CAPACITY - needed);
}

/// A file that waited for one that cannot be removed is given up: its space was never there, and nobody before it gets that.
#[test]
fn what_has_not_come_is_not_given_on() {
    let space = SpaceAccount::new(CAPACITY);
    let mut account = Account::new(4096);
    let cost = cost_bytes(1, 4096);
    let file = |account: &mut Account, blocks, promised_bytes| {
        account.give_out(blocks, Digest([0, 0]), promised_bytes)
    };
    let stuck = file(&mut account, 8, 0);
    assert!(space.reserve(cost_bytes(8, 4096), 0));
    account.creation_done(stuck.file);
    account.begin_removal(stuck);
    let waiting = file(&mut account, 1, cost);
    let given_up = file(&mut account, 1, cost);
    let behind = file(&mut account, 1, cost);
    account.begin_removal(given_up);
    account.leaving.clear();
    account.end_removal(stuck, false, &space);
    account.end_removal(given_up, true, &space);
    assert_eq!([waiting, behind].map(|one| account.space_ready(one.file)), [None, None]);
    assert_eq!(space.used_bytes(), cost_bytes(8, 4096));
}

#[test]
fn numbers_in_use_are_skipped_when_they_start_over() {
    let mut account = Account::new(4096);
    let digest = Digest([0; 2]);
    assert!(account.note_found(digest, u32::MAX) && account.note_found(digest, 1));
    assert!(!account.note_found(digest, 1));
    assert_eq!(account.next_number, 2);
    account.next_number = u32::MAX;
    let numbers = [0; 3].map(|_| account.give_out(1, digest, 0).file);
    assert_eq!(numbers, [0, 2, 3]);
}
