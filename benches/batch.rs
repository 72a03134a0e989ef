//! A batch from its start over the answers of its keys to its drained completion, eventfd included, without a store.
//! `cargo bench --features bench --bench batch`
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvring::bench::Countdown;

fn batch(criterion: &mut Criterion) {
    let mut countdown = Countdown::new().unwrap();
    let mut group = criterion.benchmark_group("batch_countdown");
    for keys in [1, 32, 256] {
        group.throughput(Throughput::Elements(keys as u64));
        group.bench_function(BenchmarkId::from_parameter(keys), |bencher| {
            bencher.iter(|| assert_eq!(countdown.run(keys), keys));
        });
    }
    group.finish();
}

criterion_group!(benches, batch);
criterion_main!(benches);
