//! The scheduler alone: queueing, granting and finishing batches of pieces, of one class and mixed.

#![allow(missing_docs, reason = "the macros of criterion make public items")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvring::bench::{Class, Limits, Scheduler};

const LIMITS: Limits = Limits {
    queue_depth: 128,
    max_io_bytes: 1 << 20,
    max_in_flight_bytes: 32 << 20,
    set_in_flight_bytes: 32 << 20,
    set_in_flight_between_loads_bytes: 8 << 20,
    set_in_flight_while_loading_bytes: 0,
    set_max_wait: Duration::from_secs(1),
};
const OPERATIONS: usize = 256;

/// Queues all operations, then takes what is granted and finishes it, until nothing is left.
fn run(scheduler: &mut Scheduler, now: Instant, class_of: impl Fn(usize) -> Class, bytes: u64) {
    for id in 0..OPERATIONS {
        let class = class_of(id);
        let bytes = if class == Class::Delete { 0 } else { bytes };
        scheduler.push(class, id, bytes, now);
    }
    let mut in_flight = Vec::with_capacity(2 * LIMITS.queue_depth);
    while !scheduler.is_empty() || !in_flight.is_empty() {
        while let Some(grant) = scheduler.next_grant(now, false) {
            in_flight.push(black_box(grant));
        }
        for grant in in_flight.drain(..) {
            scheduler.finish(grant);
        }
    }
}

fn schedule(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule");
    group.throughput(Throughput::Elements(OPERATIONS as u64));
    let now = Instant::now();
    let mixed = |id: usize| [Class::Get, Class::Set, Class::Delete][id % 3];
    let mut scheduler = Scheduler::new(LIMITS);
    group.bench_function("get_4KiB", |bencher| {
        bencher.iter(|| run(&mut scheduler, now, |_| Class::Get, 4096));
    });
    group.bench_function("set_1MiB", |bencher| {
        bencher.iter(|| run(&mut scheduler, now, |_| Class::Set, 1 << 20));
    });
    group.bench_function("mixed_64KiB", |bencher| {
        bencher.iter(|| run(&mut scheduler, now, mixed, 64 << 10));
    });
    group.finish();
}

criterion_group!(benches, schedule);
criterion_main!(benches);
