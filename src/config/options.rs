//! Every option: name, unit, default, range, meaning, and the code that takes its value.

use std::time::Duration;

use super::values::{
    OptionValue, count_within, duration_within, each, is_word, number, one_of, path, share_within,
    size_within, sizes_by_name, truth,
};
use super::{
    Admission, Checksum, Config, Discard, Durability, EngineChoice, Eviction, Layout, MAX_IO_BYTES,
    MIN_CAPACITY_BYTES, MinFree,
};
use crate::block::BLOCK_BYTES;
use crate::error::ConfigError;
use crate::format::membership::MAX_VOLUMES;

/// Description of one option.
pub struct OptionSpec {
    /// Its name, as in JSON.
    pub name: &'static str,
    /// Unit of its value; empty for a name.
    pub unit: &'static str,
    /// Value it has when not given; `None` when it must be given.
    pub default: Option<&'static str>,
    /// Values it accepts.
    pub range: &'static str,
    /// What it does.
    pub meaning: &'static str,
    apply: fn(&mut Config, &OptionValue) -> Result<(), String>,
}

/// All options that exist.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "path",
        unit: "",
        default: None,
        range: "a directory or a block device ('~' is the home directory), or a list of up to 30 of them, none inside another",
        meaning: "where the store lives; a directory is made if it is missing, a block device is formatted if there is nothing on it; several paths share the keys in proportion to their capacities, and one that fails is left out",
        apply: |config, value| {
            config.paths = each(value).map(path).collect::<Result<_, _>>()?;
            match config.paths.len() {
                0 => Err("it is empty".into()),
                1..=MAX_VOLUMES => Ok(()),
                count => Err(format!("{count} paths are too many")),
            }
        },
    },
    OptionSpec {
        name: "capacity",
        unit: "bytes",
        default: None,
        range: "a number of bytes or a string such as '500GiB', from 16 MiB to 1 PiB, or 'all' of a block device; or a list with one for each path",
        meaning: "most bytes that the store takes on disk at each path, data and index together",
        apply: |config, value| {
            let capacity = |value| match is_word(value, "all") {
                true => Ok(Config::WHOLE_DEVICE),
                false => size_within(value, MIN_CAPACITY_BYTES, 1 << 50),
            };
            config.capacities_bytes = each(value).map(capacity).collect::<Result<_, _>>()?;
            if config.capacities_bytes.is_empty() { Err("it is empty".into()) } else { Ok(()) }
        },
    },
    OptionSpec {
        name: "index_path",
        unit: "",
        default: Some("none"),
        range: "'none' or a directory ('~' is the home directory)",
        meaning: "where the index of a store on a block device lies, if not on the device itself; formatting settles which",
        apply: |config, value| {
            config.index_path = match is_word(value, "none") {
                true => None,
                false => Some(path(value)?),
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "format",
        unit: "",
        default: Some("false"),
        range: "true or false",
        meaning: "whether a block device is formatted although it holds something; never one that is in use, nor one that holds a store",
        apply: |config, value| {
            config.format = truth(value)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "discard",
        unit: "",
        default: Some("format"),
        range: "'never', 'format' or 'free'",
        meaning: "when a block device is told what it need not keep: all of it when it is formatted; with 'free' the places of chunks that went as well",
        apply: |config, value| {
            config.discard = match one_of(value, &["never", "format", "free"])? {
                "never" => Discard::Never,
                "free" => Discard::Free,
                _ => Discard::Format,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "min_free",
        unit: "bytes",
        default: Some("auto"),
        range: "'auto' or 0 to 1 PiB",
        meaning: "the store does not grow where the file system would have less than this left; 'auto' is the smaller of 5 % of it and 10 GiB",
        apply: |config, value| {
            config.min_free = match is_word(value, "auto") {
                true => MinFree::Auto,
                false => MinFree::Bytes(size_within(value, 0, 1 << 50)?),
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "eviction",
        unit: "",
        default: Some("lfu"),
        range: "'lru', 'lfu', 'fifo', 'mru' or 's3fifo'",
        meaning: "which chunks go when room is needed; docs/eviction.md compares them",
        apply: |config, value| {
            let names = Eviction::ALL.map(Eviction::name);
            let name = one_of(value, &names)?;
            config.eviction = Eviction::ALL
                .into_iter()
                .find(|eviction| eviction.name() == name)
                .unwrap_or(Eviction::Lfu);
            Ok(())
        },
    },
    OptionSpec {
        name: "high_watermark",
        unit: "share of the space",
        default: Some("0.98"),
        range: "0.5 to 1",
        meaning: "above it chunks are evicted in the background, so that a SET rarely waits for room",
        apply: |config, value| {
            config.high_watermark = share_within(value, 0.5, 1.0)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "low_watermark",
        unit: "share of the space",
        default: Some("0.96"),
        range: "0.5 to 1, at most high_watermark",
        meaning: "down to it",
        apply: |config, value| {
            config.low_watermark = share_within(value, 0.5, 1.0)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "ttl",
        unit: "",
        default: Some("7d"),
        range: "'off', a number of seconds or a string such as '7d' or '1h 30m', from 1 s to 10 years",
        meaning: "after this time without use a chunk is a miss, and its space is given back",
        apply: |config, value| {
            let years = Duration::from_secs(10 * 366 * 86_400);
            config.ttl = match is_word(value, "off") {
                true => None,
                false => Some(duration_within(value, Duration::from_secs(1), years)?),
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "lease_s",
        unit: "seconds",
        default: Some("10"),
        range: "0 to 3600",
        meaning: "for this time a chunk that EXISTS found is not evicted, so that the load that follows finds it; a quarter of the capacity at most is leased",
        apply: |config, value| {
            config.lease_s = count_within(value, 0, 3600)? as u32;
            Ok(())
        },
    },
    OptionSpec {
        name: "quotas",
        unit: "bytes",
        default: Some("none"),
        range: "'none' or a mapping such as {'model@salt': '10GiB'}, each at least 1 MiB",
        meaning: "most bytes of a namespace (model, or model@salt), at all paths together; past it its own chunks go",
        apply: |config, value| {
            config.quotas = match is_word(value, "none") {
                true => Vec::new(),
                false => sizes_by_name(value, 1 << 20, 1 << 50)?,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "admit",
        unit: "",
        default: Some("always"),
        range: "'always' or 'second_use'",
        meaning: "with 'second_use' a key is stored only when it is to be stored for the admit_after-th time, which saves writes; until then its SETs complete without storing",
        apply: |config, value| {
            config.admission = match one_of(value, &["always", "second_use"])? {
                "second_use" => Admission::SecondUse,
                _ => Admission::Always,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "admit_after",
        unit: "SETs",
        default: Some("2"),
        range: "2 to 255",
        meaning: "which SET of a key stores it, with admit 'second_use'",
        apply: |config, value| {
            config.admit_after = count_within(value, 2, 255)? as u8;
            Ok(())
        },
    },
    OptionSpec {
        name: "write_budget",
        unit: "bytes a day",
        default: Some("off"),
        range: "'off' or 1 GiB to 1 PiB",
        meaning: "most bytes written in a day, at all paths together, to spare the drive; an hour's worth may come at once, past it SETs complete without storing",
        apply: |config, value| {
            config.write_budget_bytes = match is_word(value, "off") {
                true => None,
                false => Some(size_within(value, 1 << 30, 1 << 50)?),
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "layout",
        unit: "",
        default: Some("extents"),
        range: "'extents' or 'files'",
        meaning: "how chunks lie on disk: as extents of preallocated data files, or each in a file of its own, to be seen and copied with ordinary tools; a store keeps the layout that it was made with",
        apply: |config, value| {
            config.layout = match one_of(value, &["extents", "files"])? {
                "files" => Layout::Files,
                _ => Layout::Extents,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "engine",
        unit: "",
        default: Some("auto"),
        range: "'auto', 'io_uring' or 'posix'",
        meaning: "what moves the bytes: io_uring, or a pool of threads over preadv and pwritev; 'auto' takes io_uring where the kernel lets it, and says why not where it does not",
        apply: |config, value| {
            config.engine = match one_of(value, &["auto", "io_uring", "posix"])? {
                "io_uring" => EngineChoice::IoUring,
                "posix" => EngineChoice::Posix,
                _ => EngineChoice::Auto,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "checksum",
        unit: "",
        default: Some("crc64nvme"),
        range: "'crc64nvme' or 'off'",
        meaning: "payload checksum, computed on SET and compared on every GET; with 'off' a re-stored key of the same length counts as unchanged",
        apply: |config, value| {
            if *value == OptionValue::Text("crc32c".into()) {
                return Err(
                    "'crc64nvme' has taken its place; chunks that have a CRC-32C are still \
                            verified by it"
                        .into(),
                );
            }
            config.checksum = match one_of(value, &["crc64nvme", "off"])? {
                "off" => Checksum::Off,
                _ => Checksum::Crc64Nvme,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "durability",
        unit: "",
        default: Some("best_effort"),
        range: "'best_effort' or 'persistent'",
        meaning: "what a completed SET withstands: the death of the process, or power loss as well (data and record are synced before it completes, grouped over all SETs that wait)",
        apply: |config, value| {
            config.durability = match one_of(value, &["best_effort", "persistent"])? {
                "persistent" => Durability::Persistent,
                _ => Durability::BestEffort,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "persistent_max_retries",
        unit: "tries",
        default: Some("3"),
        range: "0 to 100",
        meaning: "how often a write that has failed twice is tried again, with growing pauses from 10 ms on, in 'persistent'",
        apply: |config, value| {
            config.persistent_max_retries = count_within(value, 0, 100)? as u32;
            Ok(())
        },
    },
    OptionSpec {
        name: "queue_depth",
        unit: "transfers",
        default: Some("128"),
        range: "1 to 4096",
        meaning: "most transfers in the device at a time, of loads and of stores; with engine 'posix' 16 of each per io_thread at most",
        apply: |config, value| {
            config.queue_depth = count_within(value, 1, 4096)? as usize;
            Ok(())
        },
    },
    OptionSpec {
        name: "max_io_bytes",
        unit: "bytes",
        default: Some("512KiB"),
        range: "a multiple of 4096 from 4 KiB to 64 MiB",
        meaning: "longest single transfer; longer chunks go down in pieces of this size",
        apply: |config, value| {
            let bytes = size_within(value, BLOCK_BYTES, MAX_IO_BYTES)?;
            if !bytes.is_multiple_of(BLOCK_BYTES) {
                return Err(format!("{bytes} is no multiple of {BLOCK_BYTES}"));
            }
            config.max_io_bytes = bytes;
            Ok(())
        },
    },
    OptionSpec {
        name: "io_threads",
        unit: "threads",
        default: Some("auto"),
        range: "'auto' or 1 to 64",
        meaning: "threads that move bytes, each with a ring, or a pool of threads, of its own; what is submitted goes to the one with the least to do; 'auto' takes one for every 8 processors, 4 at most",
        apply: |config, value| {
            config.io_threads = match value {
                OptionValue::Text(text) if text == "auto" => std::thread::available_parallelism()
                    .map_or(1, |cores| cores.get() / 8)
                    .clamp(1, 4),
                _ => count_within(value, 1, 64)? as usize,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "registered_files",
        unit: "",
        default: Some("on"),
        range: "'on' or 'off'",
        meaning: "whether the ring knows the data files by number, so that transfers need not look them up",
        apply: |config, value| {
            config.registered_files = one_of(value, &["on", "off"])? == "on";
            Ok(())
        },
    },
    OptionSpec {
        name: "set_in_flight_bytes",
        unit: "bytes",
        default: Some("32MiB"),
        range: "4 KiB to 1 GiB",
        meaning: "most bytes of SETs in the device at a time while nothing is being loaded, of which 48 MiB are used at most: what is there cannot be overtaken",
        apply: |config, value| {
            config.set_in_flight_bytes = size_within(value, BLOCK_BYTES, 1 << 30)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "set_in_flight_between_loads_bytes",
        unit: "bytes",
        default: Some("8MiB"),
        range: "4 KiB to 1 GiB",
        meaning: "the same for 250 ms after something was loaded, as loads come in bursts",
        apply: |config, value| {
            config.set_in_flight_between_loads_bytes = size_within(value, BLOCK_BYTES, 1 << 30)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "set_in_flight_while_loading_bytes",
        unit: "bytes",
        default: Some("0"),
        range: "0 to 1 GiB",
        meaning: "the same while GETs wait or are in flight; with 0 SETs wait for the loads to end",
        apply: |config, value| {
            config.set_in_flight_while_loading_bytes = size_within(value, 0, 1 << 30)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "set_max_wait_ms",
        unit: "milliseconds",
        default: Some("1000"),
        range: "0 to 600000",
        meaning: "after this time in the queue a SET goes ahead of GETs, however long these take: SETs then have an eighth of what is in the device, or one piece",
        apply: |config, value| {
            config.set_max_wait = Duration::from_millis(count_within(value, 0, 600_000)?);
            Ok(())
        },
    },
    OptionSpec {
        name: "set_queue_bytes",
        unit: "bytes",
        default: Some("8GiB"),
        range: "1 MiB to 1 TiB",
        meaning: "most bytes of SETs that are not answered yet; a batch past it is refused with 'queue full', so that its memory is free again; where none is queued any batch is taken",
        apply: |config, value| {
            config.set_queue_bytes = size_within(value, 1 << 20, 1 << 40)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "set_queue_operations",
        unit: "keys",
        default: Some("131072"),
        range: "1 to 16777216",
        meaning: "most keys of SETs that are not answered yet; as set_queue_bytes",
        apply: |config, value| {
            config.set_queue_operations = count_within(value, 1, 1 << 24)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "backpressure",
        unit: "",
        default: Some("reject"),
        range: "'reject' or 'block'",
        meaning: "what a SET past set_queue_bytes or set_queue_operations does: it is refused at once, or waits in submit for backpressure_timeout_ms first",
        apply: |config, value| {
            config.blocks = one_of(value, &["reject", "block"])? == "block";
            Ok(())
        },
    },
    OptionSpec {
        name: "backpressure_timeout_ms",
        unit: "milliseconds",
        default: Some("50"),
        range: "0 to 60000",
        meaning: "how long a submit waits for room with backpressure 'block'",
        apply: |config, value| {
            config.backpressure_timeout = Duration::from_millis(count_within(value, 0, 60_000)?);
            Ok(())
        },
    },
    OptionSpec {
        name: "drain_timeout_s",
        unit: "seconds",
        default: Some("5"),
        range: "0 to 3600",
        meaning: "how long close() works on what is queued before it drops the rest",
        apply: |config, value| {
            let seconds = number(value)?;
            if !(0.0..=3600.0).contains(&seconds) {
                return Err("it is out of range".into());
            }
            config.drain_timeout = Duration::from_secs_f64(seconds);
            Ok(())
        },
    },
];

impl OptionSpec {
    pub(super) fn set(&self, config: &mut Config, value: &OptionValue) -> Result<(), ConfigError> {
        (self.apply)(config, value).map_err(|reason| ConfigError::Invalid {
            name: self.name,
            value: value.to_string(),
            reason,
            range: self.range,
            unit: self.unit,
        })
    }
}

impl ConfigError {
    /// A value that is in range and does not fit what the path names.
    pub(crate) fn unfitting(name: &'static str, value: String, reason: String) -> Self {
        let spec = OPTIONS.iter().find(|spec| spec.name == name);
        let (range, unit) = spec.map_or(("", ""), |spec| (spec.range, spec.unit));
        Self::Invalid { name, value, reason, range, unit }
    }
}
