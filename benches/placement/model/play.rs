//! A day of requests before a whole store on a block device, of which the writes are recorded and none is done.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvring::testing::Clock;
use kvring::{AlignedBlock, CallerBuffer, Checksum, Config, Connector, Discard, WriteStreams};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::ftl::PAGE_BYTES;
use crate::recorder::{Recorder, Request};
use crate::trace::Trace;

const START_MS: u64 = 1_700_000_000_000;
const DAY_MS: u64 = 86_400_000;
/// Where a superblock says where the index begins, and the index how many of its bytes are in use (docs/explanation/format.md).
const INDEX_OFFSET_AT: u64 = 48;
const LENGTH_AT: u64 = 1024;

/// A trace whose chunks are of one length, in a namespace of its own.
pub(crate) struct Tenant {
    pub(crate) trace: Trace,
    pub(crate) chunk_bytes: usize,
}

/// The requests of all tenants, each spread over a day.
fn day(tenants: &[Tenant]) -> Vec<(u64, usize, usize)> {
    let mut all = Vec::new();
    for (tenant, Tenant { trace, .. }) in tenants.iter().enumerate() {
        let count = trace.requests.len() as u64;
        all.extend((0..count).map(|number| (number * DAY_MS / count, tenant, number as usize)));
    }
    all.sort_unstable();
    all
}

/// Plays a day to a store, and gives `tell` what the drive is asked for, index pages among it, after each request.
pub(crate) fn play(
    tenants: &[Tenant],
    device: &Path,
    (rule, discard): (WriteStreams, Discard),
    streams: u8,
    mut tell: impl FnMut(&[Request]),
) -> io::Result<f64> {
    let recorder = Recorder::default();
    let now_ms = Arc::new(AtomicU64::new(START_MS));
    let mut config =
        Config::new(device.to_string_lossy(), Config::WHOLE_DEVICE).map_err(io::Error::other)?;
    (config.files, config.clock) =
        (Arc::new(recorder.clone()), Clock::by_hand(Arc::clone(&now_ms)));
    (config.write_streams, config.discard, config.checksum) = (rule, discard, Checksum::Off);
    (config.io_threads, config.works_inline) = (Some(1), true);
    config.tuning.write_streams = Some(streams);
    let own = recorder.clone();
    let connector =
        Connector::open_with_engine(config, move |depth, waker| own.engine(depth, waker))
            .map_err(io::Error::other)?;
    // What formatting has discarded.
    recorder.take();
    let longest = tenants.iter().map(|tenant| tenant.chunk_bytes).max().unwrap_or(0);
    let (memory, mut index) = (AlignedBlock::zeroed(longest), IndexPages::of(device)?);
    for (at_ms, tenant, number) in day(tenants) {
        now_ms.store(START_MS + at_ms, Ordering::SeqCst);
        let Tenant { trace, chunk_bytes } = &tenants[tenant];
        // SAFETY: the memory outlives all batches, which are waited for, and nobody reads it.
        let buffer = || unsafe { CallerBuffer::new(memory.as_ptr(), *chunk_bytes) };
        let key = |chunk: &u32| format!("model@1@0@{chunk:x}@{}", trace.name);
        serve(&connector, &trace.requests[number].iter().map(key).collect::<Vec<_>>(), buffer)?;
        let mut requests = recorder.take();
        index.add_changed(&mut requests)?;
        tell(&requests);
    }
    let stats = connector.stats();
    connector.close();
    Ok(stats.allocated_bytes as f64 / stats.capacity_bytes as f64)
}

/// Loads the chunks before the first one that is missing, and stores the others.
fn serve(
    connector: &Connector,
    keys: &[String],
    buffer: impl Fn() -> CallerBuffer,
) -> io::Result<()> {
    let found = connector.prefix(keys).map_err(io::Error::other)?;
    let (loaded, stored) = keys.split_at(found);
    let buffers = |keys: &[String]| keys.iter().map(|_| buffer()).collect::<Vec<_>>();
    if !loaded.is_empty() {
        connector.submit_get(loaded, &buffers(loaded), Box::new(())).map_err(io::Error::other)?;
        wait(connector);
    }
    if !stored.is_empty() {
        connector.submit_set(stored, &buffers(stored), Box::new(())).map_err(io::Error::other)?;
        wait(connector);
    }
    Ok(())
}

fn wait(connector: &Connector) {
    let mut completions = Vec::new();
    while completions.is_empty() {
        // SAFETY: it is open as long as the connector.
        let event = unsafe { BorrowedFd::borrow_raw(connector.event_fd()) };
        let _ = poll(&mut [PollFd::new(event, PollFlags::POLLIN)], PollTimeout::NONE);
        connector.drain(&mut completions);
    }
    assert!(completions.iter().all(|one| one.ok), "{}", completions[0].error);
}

/// The index, as the page cache has it: pages that differ from what they were are written by the next flush.
struct IndexPages {
    device: File,
    offset_bytes: u64,
    before: Vec<u8>,
}

impl IndexPages {
    fn of(device: &Path) -> io::Result<Self> {
        let device = File::open(device)?;
        let offset_bytes = number_at(&device, INDEX_OFFSET_AT)?;
        let mut index = Self { device, offset_bytes, before: Vec::new() };
        index.add_changed(&mut Vec::new())?;
        Ok(index)
    }

    fn add_changed(&mut self, requests: &mut Vec<Request>) -> io::Result<()> {
        let length_bytes = number_at(&self.device, self.offset_bytes + LENGTH_AT)?;
        // It has grown by pages of zeros.
        self.before.resize(length_bytes as usize, 0);
        let mut now = [0; PAGE_BYTES as usize * 64];
        for (number, before) in self.before.chunks_mut(now.len()).enumerate() {
            let start = self.offset_bytes + (number * now.len()) as u64;
            let now = &mut now[..before.len()];
            self.device.read_exact_at(now, start)?;
            if now == before {
                continue;
            }
            let pages = before.chunks(PAGE_BYTES as usize).zip(now.chunks(PAGE_BYTES as usize));
            for (page, _) in pages.enumerate().filter(|(_, (before, now))| before != now) {
                let offset_bytes = start + page as u64 * PAGE_BYTES;
                requests.push(Request::Write { offset_bytes, length_bytes: PAGE_BYTES, stream: 0 });
            }
            before.copy_from_slice(now);
        }
        Ok(())
    }
}

fn number_at(device: &File, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    device.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_le_bytes(bytes))
}
