//! `verify` must see what is wrong: chunks are exchanged, put back to an older generation and damaged between storing
//! and loading.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kvring::OptionValue;

use super::*;
use crate::content::Content;
use crate::keyspace::KeySpace;
use crate::memory::BatchMemory;

const CHUNK_BYTES: usize = 8192;
const KEYS: u64 = 32;

fn plan(rw: &str) -> Plan {
    let size = (KEYS * CHUNK_BYTES as u64).to_string();
    let options = [("rw", rw), ("bs", "8KiB"), ("size", &size), ("batch", "4"), ("verify", "on")];
    let given =
        |(name, value): (&str, &str)| (name.to_owned(), OptionValue::Text(value.to_owned()));
    Plan::from_options(options.map(given)).unwrap()
}

/// Fills a store, lets `meddle` at it, and measures: the report, with `meddle` given key space and content as well.
fn run_with(rw: &str, meddle: impl FnOnce(&Session<'_>, &Path)) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(rw);
    // Without checksums: what the store would find itself shall come through.
    let options =
        [("path", directory.path().to_str().unwrap()), ("capacity", "64MiB"), ("checksum", "off")]
            .map(|(name, value)| (name.to_owned(), OptionValue::Text(value.to_owned())));
    let connector = open_store(Config::from_options(options).unwrap(), &plan).unwrap();
    let (stop, progress) = (AtomicBool::new(false), ProgressMeter::new());
    let mut session = Session::new(plan, connector, &stop, &progress);
    let fill = session.fill().unwrap();
    meddle(&session, directory.path());
    let measured = session.measure().unwrap();
    let check = session.check().unwrap();
    session.finish(fill, measured, check)
}

/// Stores under `key` what the generator would store as `generation` of `content_key`.
fn store(session: &Session<'_>, key: u64, content_key: u64, generation: u32) {
    let plan = &session.plan;
    let keys = KeySpace::new(0, KEYS, plan.sizes.clone(), plan.seed);
    let mut memory = BatchMemory::new(1, CHUNK_BYTES, 4096, 0);
    let content = Content::new(plan.seed, true);
    content.fill(memory.chunk(0, CHUNK_BYTES).unwrap(), keys.identity(content_key), generation);
    // The same length counts as unchanged without checksums: the old chunk must go first.
    submit_and_wait(session, |connector| connector.submit_delete(&[keys.name(key)]));
    submit_and_wait(session, |connector| {
        let (buffers, keep_alive) = memory.lend(&[CHUNK_BYTES]);
        connector.submit_set(&[keys.name(key)], &buffers, keep_alive)
    });
}

fn submit_and_wait(
    session: &Session<'_>,
    submit: impl FnOnce(&Connector) -> Result<u64, kvring::SubmitError>,
) {
    let future_id = submit(&session.connector).unwrap();
    session.router.claim(0, future_id);
    let arrived = session.router.wait(0, &session.connector, session.stop).unwrap();
    assert!(arrived.iter().all(|arrived| arrived.completion.ok));
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for rw in ["read", "randread"] {
        let report = run_with(rw, |_, _| {});
        assert!(!report.has_errors(), "{:?}", report.messages);
    }
    // The same chunk once more is right as well: this is what the other tests do, without being wrong.
    let report = run_with("read", |session, _| store(session, 5, 5, 1));
    assert!(!report.has_errors(), "{:?}", report.messages);
}

#[test]
fn exchanged_chunks_are_seen() {
    let report = run_with("randread", |session, _| {
        store(session, 5, 6, 1);
        store(session, 6, 5, 1);
    });
    assert_eq!(report.wrong_chunks, 2);
    assert!(report.has_errors() && report.messages.len() == 1, "{:?}", report.messages);
}

#[test]
fn a_chunk_of_another_generation_is_seen() {
    for generation in [0, 2] {
        let report = run_with("read", |session, _| store(session, 7, 7, generation));
        assert_eq!(report.wrong_chunks, 1);
    }
}

#[test]
fn damage_on_disk_is_seen() {
    let report = run_with("read", |_, directory| {
        let files: Vec<_> = fs::read_dir(directory).unwrap().map(Result::unwrap).collect();
        let content = Content::new(plan("read").seed, true);
        let mut chunk = vec![0; CHUNK_BYTES];
        content.fill(&mut chunk, 3, 1);
        let mut damaged = 0;
        for file in files {
            let bytes = fs::read(file.path()).unwrap();
            let places =
                bytes.chunks_exact(4096).enumerate().filter(|(_, block)| **block == chunk[4096..]);
            for (number, _) in places {
                let writable = fs::OpenOptions::new().write(true).open(file.path()).unwrap();
                let place = number as u64 * 4096 + 1000;
                writable.write_all_at(&[!chunk[4096 + 1000]], place).unwrap();
                writable.sync_all().unwrap();
                damaged += 1;
            }
        }
        assert_eq!(damaged, 1, "the chunk is on disk once");
    });
    assert_eq!(report.wrong_chunks, 1);
}

#[test]
fn a_lost_chunk_is_a_miss() {
    let report = run_with("read", |session, _| {
        let keys = KeySpace::new(0, KEYS, session.plan.sizes.clone(), session.plan.seed);
        submit_and_wait(session, |connector| connector.submit_delete(&[keys.name(9)]));
    });
    let class = &report.measured.unwrap().classes[0];
    assert_eq!((class.hits, class.misses), (KEYS - 1, 1));
    assert_eq!(report.wrong_chunks, 0);
}
