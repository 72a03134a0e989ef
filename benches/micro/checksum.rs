//! CRC-64/NVME of a chunk: of memory that is in the CPU's caches, as after a copy, and of memory that is not, as after a
//! transfer by DMA. `cargo bench --bench checksum`
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use crc_fast::crc64_nvme;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Several times what the largest caches hold, so that a chunk is gone from them when its turn comes again.
const COLD_BYTES: usize = 512 << 20;

fn checksum(criterion: &mut Criterion) {
    let memory: Vec<u8> = (0..COLD_BYTES).map(|position| (position * 31 % 251) as u8).collect();
    let mut group = criterion.benchmark_group("checksum");
    for size_bytes in [4 << 10, 64 << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(size_bytes as u64));
        group.bench_function(BenchmarkId::new("warm", size_bytes), |bencher| {
            bencher.iter(|| crc64_nvme(black_box(&memory[..size_bytes])));
        });
        group.bench_function(BenchmarkId::new("cold", size_bytes), |bencher| {
            let chunks = COLD_BYTES / size_bytes;
            let mut chunk = 0;
            bencher.iter(|| {
                // An odd stride goes through all chunks, of which there is a power of two, and past the prefetcher.
                chunk = (chunk + (chunks / 2 - chunks / 8) + 1) % chunks;
                crc64_nvme(black_box(&memory[chunk * size_bytes..][..size_bytes]))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, checksum);
criterion_main!(benches);
