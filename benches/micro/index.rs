//! The paths that touch no disk, through the connector: EXISTS and DELETE.
//! `cargo bench --bench index`; `KVRING_BENCH_KEYS` sets how many keys are held (default 1,000,000).
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kvring::{AlignedBlock, CallerBuffer, Config, Connector};

const BATCH: usize = 256;

fn key(number: u64) -> String {
    format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

fn keys_held() -> u64 {
    std::env::var("KVRING_BENCH_KEYS").map_or(1_000_000, |text| text.parse().unwrap())
}

fn open(path: &std::path::Path) -> Connector {
    Connector::open(Config::new(path.to_str().unwrap(), 16 << 30).unwrap()).unwrap()
}

/// Waits until `batches` completions have come.
fn drain(connector: &Connector, mut batches: usize) {
    let mut completions = Vec::new();
    while batches > 0 {
        connector.drain(&mut completions);
        batches -= completions.len();
        assert!(completions.drain(..).all(|completion| completion.ok));
        std::thread::yield_now();
    }
}

fn set(connector: &Connector, numbers: std::ops::Range<u64>, memory: &AlignedBlock) {
    let keys: Vec<String> = numbers.map(key).collect();
    // SAFETY: `memory` outlives every batch: each is drained before this function's caller ends.
    let buffer = unsafe { CallerBuffer::new(memory.as_ptr(), memory.size_bytes()) };
    connector.submit_set(&keys, &vec![buffer; keys.len()], Box::new(())).unwrap();
}

fn fill(connector: &Connector, count: u64) {
    let memory = AlignedBlock::zeroed(4096);
    let mut outstanding = 0;
    for first in (0..count).step_by(BATCH) {
        set(connector, first..(first + BATCH as u64).min(count), &memory);
        outstanding += 1;
        if outstanding == 16 {
            drain(connector, 16);
            outstanding = 0;
        }
    }
    drain(connector, outstanding);
}

fn index(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let count = keys_held();
    let connector = open(directory.path());
    fill(&connector, count);

    let mut group = criterion.benchmark_group("index");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, offset) in [("exists_hit", 0), ("exists_miss", count)] {
        let mut state = 1_u64;
        let mut batch = move || -> Vec<String> {
            (0..BATCH)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    key(offset + (state >> 20) % count)
                })
                .collect()
        };
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                &mut batch,
                |keys| {
                    connector.submit_exists(&keys).unwrap();
                    drain(&connector, 1);
                    // Dropping the keys is not part of the question.
                    keys
                },
                BatchSize::SmallInput,
            );
        });
    }
    let memory = AlignedBlock::zeroed(4096);
    group.bench_function("delete", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..iterations {
                let first = 2 * count;
                set(&connector, first..first + BATCH as u64, &memory);
                drain(&connector, 1);
                let keys: Vec<String> = (first..first + BATCH as u64).map(key).collect();
                let start = Instant::now();
                connector.submit_delete(&keys).unwrap();
                drain(&connector, 1);
                elapsed += start.elapsed();
            }
            elapsed
        });
    });
    group.finish();
    connector.close();
}

criterion_group!(benches, index);
criterion_main!(benches);
