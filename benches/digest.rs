//! The digest of a key, which every key of every batch goes through. `cargo bench --features bench --bench digest`
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvring::MAX_KEY_BYTES;
use kvring::bench::Digest;

fn digest(criterion: &mut Criterion) {
    let lmcache = format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{:064x}", 1);
    let salted = format!("{lmcache}@a-tenant-of-this-server");
    let longest = "k".repeat(MAX_KEY_BYTES);
    let mut group = criterion.benchmark_group("digest");
    for key in ["k", &lmcache, &salted, &longest] {
        group.throughput(Throughput::Bytes(key.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(key.len()), |bencher| {
            bencher.iter(|| Digest::of(black_box(key)));
        });
    }
    group.finish();
}

criterion_group!(benches, digest);
criterion_main!(benches);
