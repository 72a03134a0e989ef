//! The map alone: lookups of held, absent and mixed keys, and what storing and deleting a key costs besides its I/O.
//! `cargo bench --features bench --bench map`.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvring::bench::IndexProbe;

const BATCH: usize = 256;

fn key(number: u64) -> String {
    format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

/// Random numbers below `bound`.
fn random(bound: u64) -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 20) % bound
    }
}

fn set(index: &IndexProbe, key: &str) {
    index.set(key).unwrap();
}

fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    group.throughput(Throughput::Elements(BATCH as u64));
    for count in [1_000, 1_000_000] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let index = IndexProbe::open(directory.path(), 8 << 30).unwrap();
        (0..count).for_each(|number| set(&index, &key(number)));
        // Numbers from `count` on are not held.
        for (name, first, bound) in
            [("hit", 0, count), ("miss", count, count), ("mixed", 0, 2 * count)]
        {
            let mut next = random(bound);
            let mut batch = || -> Vec<String> { (0..BATCH).map(|_| key(first + next())).collect() };
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter_batched(
                    &mut batch,
                    // Dropping the keys is not part of the question.
                    |keys| (index.exists(&keys), keys),
                    BatchSize::SmallInput,
                );
            });
        }
    }
    group.finish();
}

fn changes(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let index = IndexProbe::open(directory.path(), 8 << 30).unwrap();
    let count = 1_000_000;
    (0..count).for_each(|number| set(&index, &key(number)));
    let keys: Vec<String> = (count..count + BATCH as u64).map(key).collect();
    let mut group = criterion.benchmark_group("change");
    group.throughput(Throughput::Elements(BATCH as u64));
    let set = || keys.iter().for_each(|key| set(&index, key));
    let delete = || keys.iter().for_each(|key| assert!(index.delete(key)));
    let timed = |what: &dyn Fn(), undo: &dyn Fn(), iterations| {
        let mut elapsed = Duration::ZERO;
        for _ in 0..iterations {
            let start = Instant::now();
            what();
            elapsed += start.elapsed();
            undo();
        }
        elapsed
    };
    // Claim, slots, record, entry.
    group.bench_function("insert_and_publish", |bencher| {
        bencher.iter_custom(|iterations| timed(&set, &delete, iterations));
    });
    group.bench_function("claim", |bencher| {
        bencher.iter(|| keys.iter().for_each(|key| index.set_in_vain(key)));
    });
    set();
    group.bench_function("delete", |bencher| {
        bencher.iter_custom(|iterations| timed(&delete, &set, iterations));
    });
    group.bench_function("get", |bencher| {
        bencher.iter(|| keys.iter().for_each(|key| assert!(index.get(key))));
    });
    group.finish();
}

criterion_group!(benches, lookups, changes);
criterion_main!(benches);
