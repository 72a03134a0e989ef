//! What is queued for the record writer, what of it is unwritten, and who is woken for it.

#[cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]
mod models;

use bytemuck::Zeroable;

use super::*;

fn record() -> Arc<Record> {
    Arc::new(Record::zeroed())
}

#[test]
fn a_record_is_kept_until_it_is_written_itself() {
    let unwritten = Unwritten::default();
    // Some share a part.
    let slots = [0, 1, 63, 64, 65, 128, 5000, u32::MAX];
    let records = slots.map(|_| record());
    let held = |slot| unwritten.get(slot);
    for (slot, record) in slots.iter().zip(&records) {
        assert!(held(*slot).is_none());
        unwritten.insert(*slot, Arc::clone(record));
    }
    let younger = record();
    unwritten.insert(64, Arc::clone(&younger));
    unwritten.remove(64, &records[3]);
    assert!(held(64).is_some_and(|held| Arc::ptr_eq(&held, &younger)));
    unwritten.remove(64, &younger);
    for (slot, record) in slots.iter().zip(&records) {
        let is_held = held(*slot).is_some_and(|held| Arc::ptr_eq(&held, record));
        assert_eq!(is_held, *slot != 64, "{slot}");
    }
    assert!(held(192).is_none());
    // The last one of a part.
    unwritten.remove(63, &records[2]);
    assert!(held(63).is_none());
}

#[test]
fn a_lost_record_is_told_of_once() {
    let changes = Changes::default();
    assert!(!changes.has_lost(5));
    changes.note_lost(5);
    changes.note_lost(7);
    assert!(!changes.has_lost(6));
    assert!(changes.has_lost(5) && !changes.has_lost(5));
    assert!(changes.has_lost(7) && !changes.has_lost(7));
}

#[test]
fn changes_are_taken_in_order_and_some_at_a_time() {
    let changes = Changes::default();
    for number in 0..300 {
        changes.push(Change::Use(number, 0));
    }
    changes.end();
    let mut next = 0..300;
    for count in [MOST_AT_ONCE, 300 - MOST_AT_ONCE] {
        let mut taken = Vec::new();
        assert!(changes.take(&mut taken));
        assert_eq!(taken.len(), count);
        for change in taken {
            let Change::Use(number, 0) = change else { panic!("another one") };
            assert_eq!(Some(number), next.next());
        }
    }
    assert!(!changes.take(&mut Vec::new()));
    assert_eq!(changes.ticket(), 300);
}

#[test]
fn an_extent_is_free_with_the_last_change_that_freed_one() {
    let changes = Changes::default();
    changes.push(Change::Write(1, record()));
    assert_eq!(changes.freed_ticket(), 0);
    changes.push(Change::Invalidate(1));
    assert_eq!(changes.freed_ticket(), 2);
    changes.push(Change::Use(1, 1));
    changes.push(Change::MarkAll);
    assert_eq!(changes.freed_ticket(), 2);
    assert!(changes.unwritten.get(1).is_some());
}

#[test]
fn many_changes_wake_the_thread_and_few_do_once_announced() {
    let changes = Arc::new(Changes::default());
    for (count, announces) in [(MANY, false), (1, true)] {
        let taking = std::thread::spawn({
            let changes = Arc::clone(&changes);
            move || {
                let mut taken = Vec::new();
                changes.take(&mut taken) && !taken.is_empty()
            }
        });
        while !changes.is_asleep.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        (0..count).for_each(|_| changes.push(Change::MarkAll));
        if announces {
            changes.announce();
        }
        assert!(taking.join().unwrap());
        let mut rest = Vec::new();
        while !changes.queue.is_empty() {
            changes.take(&mut rest);
        }
    }
}

#[test]
fn a_pause_lasts_unless_it_is_to_end() {
    let (changes, pause) = (Changes::default(), Duration::from_millis(20));
    let begin = Instant::now();
    assert!(changes.pause(pause));
    assert!(begin.elapsed() >= pause);
    changes.end();
    assert!(!changes.pause(Duration::from_secs(3600)));
}
