//! Submits beside a close; see [`crate::models`].
#![cfg(any(kvring_model = "loom", kvring_model = "shuttle"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Gate;
use crate::models::{explore, spawn};

#[test]
fn nobody_is_inside_when_it_is_closed() {
    explore(|| {
        // The flag is no part of what is searched: it says what is so.
        let (gate, is_released) = (Arc::new(Gate::new()), Arc::new(AtomicBool::new(false)));
        let submits = [0, 1].map(|_| {
            let (gate, is_released) = (Arc::clone(&gate), Arc::clone(&is_released));
            spawn(move || {
                if let Some(_inside) = gate.enter() {
                    assert!(!is_released.load(Ordering::Relaxed), "it uses what is released");
                }
            })
        });
        gate.close();
        gate.wait_until_empty();
        is_released.store(true, Ordering::Relaxed);
        assert!(gate.enter().is_none());
        submits.into_iter().for_each(|submit| submit.join().unwrap());
    });
}
