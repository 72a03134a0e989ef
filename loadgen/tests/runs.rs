//! Small runs on a real directory, by the public interface.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

use std::path::Path;
use std::time::Duration;

use kvring::{Checksum, Config, OptionValue};
use kvring_loadgen::{BenchError, ClassReport, Plan, Report, Run};

const ENOUGH: Duration = Duration::from_secs(60);

fn texts(options: &[(&str, &str)]) -> Vec<(String, OptionValue)> {
    let text =
        |(name, value): &(&str, &str)| ((*name).to_owned(), OptionValue::Text((*value).to_owned()));
    options.iter().map(text).collect()
}

fn plan(options: &[(&str, &str)]) -> Plan {
    Plan::from_options(texts(options)).unwrap()
}

fn config(directory: &Path, capacity_bytes: u64) -> Config {
    Config::new(directory.to_str().unwrap(), capacity_bytes).unwrap()
}

fn run(plan: Plan) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(config(directory.path(), plan.capacity_bytes()), plan).unwrap();
    run.finish().unwrap()
}

fn class<'report>(report: &'report Report, name: &str) -> &'report ClassReport {
    let classes = &report.measured.as_ref().unwrap().classes;
    classes.iter().find(|class| class.name == name).unwrap()
}

#[test]
fn every_pattern_moves_each_chunk_once() {
    for (rw, name, moves) in [
        ("read", "get", true),
        ("randread", "get", true),
        ("write", "set", true),
        ("randwrite", "set", true),
        ("exists", "exists", false),
        ("delete", "delete", false),
    ] {
        let report = run(plan(&[
            ("rw", rw),
            ("bs", "8KiB"),
            ("size", "1MiB"),
            ("numjobs", "2"),
            ("verify", "on"),
        ]));
        assert!(!report.has_errors() && !report.interrupted, "{rw}: {:?}", report.messages);
        let class = class(&report, name);
        assert_eq!((class.keys, class.batches), (128, 16), "{rw}");
        assert_eq!(class.bytes, if moves { 1 << 20 } else { 0 }, "{rw}");
        assert_eq!(class.hits, if matches!(name, "get" | "exists") { 128 } else { 0 }, "{rw}");
        assert_eq!(report.fill.is_some(), !rw.ends_with("write"), "{rw}");
        assert_eq!(report.check.is_some(), rw.ends_with("write"), "{rw}");
        assert_eq!(report.stats.keys, if rw == "delete" { 0 } else { 128 }, "{rw}");
        // Behind the mean.
        let ordered = &class.latency_us()[1..];
        assert!(ordered[0].1 > 0.0 && ordered.is_sorted_by_key(|(_, us)| *us), "{rw}: {ordered:?}");
    }
}

#[test]
fn a_mix_has_both_and_its_share_decides() {
    for rw in ["rw", "randrw"] {
        let common =
            [("rw", rw), ("bs", "4KiB"), ("size", "1MiB"), ("batch", "1"), ("verify", "on")];
        let report = run(plan(&common));
        assert!(!report.has_errors(), "{:?}", report.messages);
        let (gets, sets) = (class(&report, "get").keys, class(&report, "set").keys);
        assert!(gets + sets == 256 && gets > 60 && sets > 60, "{gets} and {sets}");
        for (share, name) in [("100", "get"), ("0", "set")] {
            let report = run(plan(&[&common[..], &[("rwmixread", share)]].concat()));
            assert_eq!(class(&report, name).keys, 256);
        }
    }
}

#[test]
fn a_runtime_rewrites_and_every_chunk_stays_right() {
    let report = run(plan(&[
        ("rw", "randrw"),
        ("bs", "4KiB-20KiB"),
        ("size", "512KiB"),
        ("numjobs", "3"),
        ("iodepth", "16"),
        ("batch", "4"),
        ("align", "1"),
        ("runtime", "2"),
        ("verify", "on"),
    ]));
    assert!(!report.has_errors(), "{:?}", report.messages);
    let keys = report.plan.keys();
    assert!(class(&report, "get").keys + class(&report, "set").keys > 2 * keys);
    let counter = |name| report.stats.counters.iter().find(|(other, _)| *other == name).unwrap().1;
    assert!(counter("bounced_bytes") > 0, "buffers at odd addresses are bounced");
    assert_eq!(counter("set_unchanged"), 0, "every SET has bytes of its own");
}

#[test]
fn chunks_of_all_lengths() {
    for bs in ["1", "7", "511,4097,100000"] {
        let size = if bs.len() == 1 { "1000" } else { "4MB" };
        let report = run(plan(&[("rw", "randread"), ("bs", bs), ("size", size), ("verify", "on")]));
        assert!(!report.has_errors(), "{bs}: {:?}", report.messages);
        assert_eq!(class(&report, "get").hits, report.plan.keys(), "{bs}");
    }
}

#[test]
fn the_capacity_of_a_plan_holds_its_chunks() {
    for (bs, size) in [("1", "20000"), ("4KiB", "16MiB"), ("5000", "30MB"), ("4KiB-1MiB", "80MiB")]
    {
        for rw in ["write", "randwrite"] {
            let mut plan = plan(&[("rw", rw), ("bs", bs), ("size", size), ("batch", "32")]);
            if rw == "randwrite" {
                // Chunks that are replaced take their place twice for a moment.
                plan.runtime = Some(Duration::from_millis(500));
            }
            let report = run(plan);
            assert!(!report.has_errors(), "{bs}, {rw}: {:?}", report.messages);
        }
    }
}

#[test]
fn a_full_store_evicts_and_that_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&[("rw", "write"), ("bs", "1MiB"), ("size", "64MiB"), ("verify", "on")]);
    let mut config = config(directory.path(), 32 << 20);
    // Nothing goes behind an answer: what is counted stands still.
    (config.tuning.low_watermark, config.tuning.high_watermark) = (1.0, 1.0);
    let report = Run::start(config, plan).unwrap().finish().unwrap();
    let written = class(&report, "set");
    assert!(written.failed == 0 && written.keys == 64);
    let evicted = report.stats.counters.iter().find(|(name, _)| *name == "evicted").unwrap().1;
    let checked = &report.check.as_ref().unwrap().classes;
    let checked = checked.iter().find(|class| class.name == "get").unwrap();
    assert_eq!(checked.misses, evicted);
    assert!(!report.gave_up && report.wrong_chunks == 0);
}

#[test]
fn stop_ends_it_and_what_was_measured_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&[("rw", "randread"), ("bs", "4KiB"), ("size", "1MiB"), ("runtime", "3600")]);
    let run = Run::start(config(directory.path(), 64 << 20), plan).unwrap();
    while run.poll().phase.name() != "measure" || run.poll().keys == 0 {
        assert!(!run.wait(Duration::from_millis(1)));
    }
    run.stop();
    assert!(run.wait(ENOUGH));
    assert_eq!((run.poll().phase.name(), run.poll().fraction), ("end", 1.0));
    let report = run.finish().unwrap();
    assert!(report.interrupted && !report.has_errors(), "{:?}", report.messages);
    assert!(class(&report, "get").hits > 0);
    assert!(matches!(run.finish(), Err(BenchError::Defect(_))), "a report is taken once");
}

#[test]
fn a_dropped_run_closes_its_store() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&[("rw", "write"), ("bs", "4KiB"), ("size", "1MiB"), ("runtime", "3600")]);
    drop(Run::start(config(directory.path(), 64 << 20), plan.clone()).unwrap());
    Run::start(config(directory.path(), 64 << 20), plan).unwrap().stop();
}

#[test]
fn what_would_not_be_written_is_refused_beforehand() {
    let off = |rw, runtime| {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), 64 << 20);
        config.checksum = Checksum::Off;
        let plan = plan(&[("rw", rw), ("bs", "4KiB"), ("size", "1MiB"), ("runtime", runtime)]);
        Run::start(config, plan).and_then(|run| run.finish())
    };
    for (rw, runtime) in [("rw", "0"), ("randrw", "0.1"), ("write", "0.1")] {
        let error = off(rw, runtime).err().unwrap().to_string();
        assert!(error.contains("checksum = off") && error.contains("crc64nvme"), "{error}");
    }
    for (rw, runtime) in [("write", "0"), ("read", "0.1")] {
        assert!(!off(rw, runtime).unwrap().has_errors());
    }
}

#[test]
fn chunks_longer_than_the_store_takes_are_refused_beforehand() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&[("bs", "32MiB"), ("batch", "1"), ("iodepth", "1")]);
    let error = Run::start(config(directory.path(), 16 << 20), plan).err().unwrap();
    assert!(matches!(error, BenchError::Plan(_)), "{error}");
    assert!(error.to_string().contains("raise capacity"), "{error}");
}
