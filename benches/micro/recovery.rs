//! How long a store of many chunks takes to open, and what memory it takes for each key.
//!
//! `cargo bench --features bench --bench recovery -- in-order|shuffled [RECORDS] [ROUNDS]`. The index is made up: each chunk
//! has one block of a sparse data file, and these are in the order of their records, or in none as after long use. Memory is that of
//! the first open, so each of the two is for a process of its own.
#![allow(missing_docs, reason = "a bench has no users")]
#![allow(clippy::unwrap_used, reason = "a bench that unwraps fails with the place and the reason")]

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use kvring::bench::Digest;
use kvring::{Config, Connector};

const BLOCK_BYTES: u64 = 4096;
const RECORDS_AT: u64 = 4096;
const RECORD_BYTES: usize = 256;
const MIB: u64 = 1 << 20;

fn key(number: u64) -> String {
    format!("meta-llama/Llama-3.1-70B-Instruct@00000001@0@{number:064x}")
}

fn open(path: &Path, records: u64) -> Connector {
    let capacity_bytes = records * (BLOCK_BYTES + RECORD_BYTES as u64) * 9 / 8 + 64 * MIB;
    let mut config = Config::new(path.to_str().unwrap(), capacity_bytes).unwrap();
    config.ttl = None;
    Connector::open(config).unwrap()
}

/// A record as docs/explanation/format.md draws it.
fn record(number: u64, first_block: u32) -> [u8; RECORD_BYTES] {
    let key = key(number);
    let mut record = [0; RECORD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(1_700_000_000_000 + number * 7_919 % 1_000_000_007).to_le_bytes());
    put(12, &[1, 1]);
    put(14, &(key.len() as u16).to_le_bytes());
    put(16, &Digest::of(&key).to_string().as_bytes().chunks(2).map(hex).collect::<Vec<u8>>());
    put(32, &(number + 1).to_le_bytes());
    put(40, &BLOCK_BYTES.to_le_bytes());
    put(48, &1_700_000_000_000_u64.to_le_bytes());
    put(60, &first_block.to_le_bytes());
    put(64, &number.to_le_bytes());
    put(72, &1_u64.to_le_bytes());
    put(80, &u32::MAX.to_le_bytes());
    put(88, key.as_bytes());
    let checksum = crc32c::crc32c(&record[12..]);
    record[8..12].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn hex(digits: &[u8]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
}

/// Puts so many records into the index of a closed store, and a data file beside it.
fn fill(directory: &Path, records: u64, in_order: bool) {
    let data = File::create(directory.join("data-00000.kvring")).unwrap();
    data.set_len((records * BLOCK_BYTES).next_multiple_of(MIB)).unwrap();
    let mut index = File::options().write(true).open(directory.join("index.kvring")).unwrap();
    index.set_len(RECORDS_AT + (records * RECORD_BYTES as u64).next_multiple_of(MIB)).unwrap();
    index.seek(SeekFrom::Start(RECORDS_AT)).unwrap();
    let mut index = BufWriter::with_capacity(1 << 20, index);
    // A prime that divides no number of records in use here: each block comes once.
    let step = if in_order { 1 } else { 1_000_003 };
    for number in 0..records {
        index.write_all(&record(number, (number * step % records) as u32)).unwrap();
    }
    index.flush().unwrap();
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Of this process.
fn cpu_time() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)
    };
    micros(usage.user_time()) + micros(usage.system_time())
}

fn opens(records: u64, rounds: usize, in_order: bool) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    drop(open(directory.path(), records));
    fill(directory.path(), records, in_order);
    let before_bytes = resident_bytes();
    for round in 0..rounds {
        let (start, cpu_before) = (Instant::now(), cpu_time());
        let connector = open(directory.path(), records);
        let (took, cpu) = (start.elapsed(), cpu_time() - cpu_before);
        let bytes = resident_bytes().saturating_sub(before_bytes) / records;
        let memory = if round == 0 { format!(", {bytes} bytes for each") } else { String::new() };
        println!("{records} records opened in {took:.2?}, CPU {cpu:.2?}{memory}");
        assert_eq!(connector.stats().paths[0].keys, records);
    }
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let number = |at: usize| arguments.get(at).map(|text| text.parse::<u64>().unwrap());
    let (records, rounds) = (number(1).unwrap_or(10_000_000), number(2).unwrap_or(5) as usize);
    match arguments.first().map(String::as_str) {
        Some("in-order") => opens(records, rounds, true),
        Some("shuffled") => opens(records, rounds, false),
        _ => {
            eprintln!("in-order or shuffled, then the number of records and of rounds")
        }
    }
}
