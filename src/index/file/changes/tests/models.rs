//! The thread that makes the changes of records goes to sleep while others queue some; see [`crate::models`].

use std::sync::Arc;

use super::{Change, Changes};
use crate::models::{explore, spawn};

#[test]
fn announced_changes_are_made() {
    explore(|| {
        let changes = Arc::new(Changes::default());
        let maker = spawn({
            let changes = Arc::clone(&changes);
            move || {
                let mut made = 0;
                while made < 2 {
                    let mut some = Vec::new();
                    assert!(changes.take(&mut some));
                    made += some.len();
                }
            }
        });
        let other = spawn({
            let changes = Arc::clone(&changes);
            move || {
                changes.push(Change::MarkAll);
                changes.announce();
            }
        });
        changes.push(Change::MarkAll);
        changes.announce();
        other.join().unwrap();
        maker.join().unwrap();
    });
}

#[test]
fn the_end_is_seen_when_all_is_made() {
    explore(|| {
        let changes = Arc::new(Changes::default());
        let maker = spawn({
            let changes = Arc::clone(&changes);
            move || {
                let (mut made, mut some) = (0, Vec::new());
                while changes.take(&mut some) {
                    made += some.drain(..).count();
                }
                made
            }
        });
        changes.push(Change::MarkAll);
        changes.end();
        assert_eq!(maker.join().unwrap(), 1);
    });
}
