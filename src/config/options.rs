//! Every option in one table, and a configuration from options by name.

use std::time::Duration;

use super::values::{
    count, identity, list, one_of, or, or_none, path_name, size, sizes_by_name, time,
};
use super::{
    Admission, Checksum, Config, Discard, Durability, EngineChoice, Eviction, Layout,
    MIN_CAPACITY_BYTES, OptionValue, WriteStreams,
};
use crate::error::ConfigError;
use crate::format::membership::MAX_VOLUMES;
use crate::lock::current_boot;

const PIB: u64 = 1 << 50;
const DAY: Duration = Duration::from_secs(86_400);

/// Description of one option.
pub struct OptionSpec {
    /// Its name, as in JSON.
    pub name: &'static str,
    /// Unit of its value; empty for a name.
    pub unit: &'static str,
    /// Value that it has when it is not given; `None` when it must be given.
    pub default: Option<&'static str>,
    /// Values that it accepts.
    pub range: &'static str,
    /// What it does.
    pub meaning: &'static str,
    set: fn(&mut Config, &OptionValue) -> Result<(), String>,
}

macro_rules! option {
    ($name:literal, $unit:literal, $default:expr, $range:literal, $field:ident, $read:expr, $meaning:literal) => {
        OptionSpec {
            name: $name,
            unit: $unit,
            default: $default,
            range: $range,
            meaning: $meaning,
            set: |config, value| {
                let read: fn(&OptionValue) -> Result<_, String> = $read;
                config.$field = read(value)?;
                Ok(())
            },
        }
    };
}

/// All options that exist.
#[rustfmt::skip]
pub const OPTIONS: &[OptionSpec] = &[
    option!("path", "", None, "a directory or a block device ('~' is the home directory), or a list of up to 30 of these", paths, |value| list(value, MAX_VOLUMES, path_name),
        "location of the store; a missing directory is created, a blank block device is formatted; several paths, none inside another, share the keys by capacity, and one that fails is left out"),
    option!("capacity", "bytes", None, "'all' or a size such as '500GiB' from 16 MiB to 1 PiB, or a list of up to 30 of these", capacities_bytes, |value| list(value, MAX_VOLUMES, |one| or(one, "all", Config::WHOLE_DEVICE, |one| size(one, MIN_CAPACITY_BYTES, PIB))),
        "maximum bytes on disk at each path, data and index together; 'all' takes a block device"),
    option!("index_path", "", Some("none"), "'none' or a directory ('~' is the home directory)", index_path, |value| or_none(value, "none", path_name),
        "directory for the index of a store on a block device, instead of the device; fixed at formatting"),
    option!("require_mount", "", Some("none"), "'none' or a directory, or a list of up to 30 of these", require_mounts, |value| or(value, "none", Vec::new(), |value| list(value, MAX_VOLUMES, path_name)),
        "mount point at or above a path or the index_path; while nothing is mounted there, the open fails, or leaves that path out if the other paths belong to the same store"),
    option!("layout", "", Some("extents"), "'extents' or 'files'", layout, |value| one_of(value, &Layout::ALL, Layout::name),
        "extents of preallocated data files, or one file per chunk that ordinary tools can list and copy; fixed when the store is made"),
    option!("engine", "", Some("auto"), "'auto', 'io_uring' or 'posix'", engine, |value| one_of(value, &EngineChoice::ALL, EngineChoice::name),
        "io_uring, or a pool of threads with preadv and pwritev; 'auto' takes io_uring where the kernel allows it, and logs the reason where it does not"),
    option!("checksum", "", Some("crc64nvme"), "'crc64nvme' or 'off'", checksum, |value| one_of(value, &Checksum::ALL, Checksum::name),
        "payload checksum, computed on SET and verified on every GET; with 'off' a SET of a stored key with the same length counts as unchanged"),
    option!("durability", "", Some("best_effort"), "'best_effort' or 'persistent'", durability, |value| one_of(value, &Durability::ALL, Durability::name),
        "what a completed SET survives: 'best_effort' a crash of the process, and power loss two seconds later if a flush takes less than one; 'persistent' power loss at once (data and record are synced before it completes, in groups)"),
    option!("eviction", "", Some("adaptive"), "'adaptive', 'lru', 'lfu', 'fifo' or 'mru'", eviction, |value| one_of(value, &Eviction::ALL, Eviction::name),
        "which chunks are evicted for space; docs/explanation/eviction.md compares the policies"),
    option!("ttl", "", Some("7d"), "'off' or seconds, or a string such as '7d' or '1h 30m', from 1s to 3660d", ttl, |value| or_none(value, "off", |value| time(value, Duration::from_secs(1), DAY.saturating_mul(3660))),
        "a chunk that is not used for this time is a miss, and its space is released"),
    option!("lease_s", "seconds", Some("10"), "0 to 3600", lease_s, |value| count(value, 0, 3600),
        "a chunk that EXISTS found is not evicted for this time, so that the load after it hits; at most a quarter of the capacity is leased"),
    option!("load_deadline_ms", "milliseconds", Some("off"), "'off' or 1 to 3600000", load_deadline_ms, |value| or_none(value, "off", |value| count(value, 1, 3_600_000)),
        "a load that cannot start within this time is a miss, so that the engine recomputes instead of waiting"),
    option!("identity", "", Some("none"), "'none' or 1 to 64 of the characters A-Z a-z 0-9 . _ -", identity, |value| or_none(value, "none", identity),
        "name that separates engines whose chunks differ where the model's name does not: weights, dtype, layout, ranks; part of the namespace (identity#model)"),
    option!("quotas", "bytes", Some("none"), "'none' or a mapping such as {'model@salt': '10GiB'}, each from 1 MiB to 1 PiB", quotas, |value| or(value, "none", Vec::new(), |value| sizes_by_name(value, 1 << 20, PIB)),
        "maximum bytes of a namespace (model or model@salt, after identity# if set), at all paths together; beyond it the namespace evicts its own chunks"),
    option!("admit", "", Some("adaptive"), "'adaptive', 'always' or 'second_use'", admission, |value| one_of(value, &Admission::ALL, Admission::name),
        "which SETs are stored, to save writes; the others complete without storing; 'second_use' stores keys that were offered before, 'adaptive' also those of a learned share of requests (with another 'eviction' all)"),
    option!("write_budget", "bytes a day", Some("off"), "'off' or a size such as '500GiB' from 1 GiB to 1 PiB", write_budget_bytes, |value| or_none(value, "off", |value| size(value, 1 << 30, PIB)),
        "maximum bytes written per day, at all paths together; a burst may use the share of one hour; beyond it SETs complete without storing"),
    option!("min_free", "bytes", Some("auto"), "'auto' or a size such as '500GiB' from 0 bytes to 1 PiB", min_free_bytes, |value| or_none(value, "auto", |value| size(value, 0, PIB)),
        "free space of the file system that the store does not grow into; 'auto' is the smaller of 5 % of it and 10 GiB"),
    option!("discard", "", Some("format"), "'never', 'format' or 'free'", discard, |value| one_of(value, &Discard::ALL, Discard::name),
        "when a block device gets discards: 'format' discards it when it is formatted, 'free' also the extents of removed chunks"),
    option!("write_streams", "", Some("lifetime"), "'off', 'lifetime' or 'namespace'", write_streams, |value| one_of(value, &WriteStreams::ALL, WriteStreams::name),
        "which chunks a block device with NVMe FDP keeps apart: 'lifetime' those stored for the first time from those that return after eviction, 'namespace' those of the largest namespaces from others"),
    option!("io_threads", "threads", Some("auto"), "'auto' or 1 to 64", io_threads, |value| or_none(value, "auto", |value| count(value, 1, 64)),
        "I/O threads of each path, each with its own ring or pool of threads; 'auto' is 8 (2 with pools), of which one works until it is short of CPU time"),
    option!("set_queue_bytes", "bytes", Some("8GiB"), "a size such as '500GiB' from 1 MiB to 1 TiB", set_queue_bytes, |value| size(value, 1 << 20, 1 << 40),
        "maximum bytes of unanswered SETs; a batch beyond it fails with 'queue full', unless nothing is queued"),
    option!("metrics_port", "", Some("off"), "'off' or 1 to 65535", metrics_port, |value| or_none(value, "off", |value| count(value, 1, 65_535)),
        "port of 127.0.0.1 for /metrics of Prometheus, /healthz, and a page at /; stores of a process may share one"),
];

/// Options of an open store that can be changed.
const CHANGEABLE: [&str; 3] = ["capacity", "ttl", "quotas"];

impl OptionSpec {
    fn named(name: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|spec| spec.name == name)
    }
}

impl Config {
    /// Reads options by name; what is not given has its default.
    ///
    /// # Errors
    /// `ConfigError` for an unknown name (with the list of those that exist), a value that does not fit, or a
    /// missing required option.
    pub fn from_options(
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self { boot: current_boot(), ..Self::defaults() };
        let mut given = Vec::new();
        for (name, value) in options {
            let Some(spec) = OptionSpec::named(&name) else {
                let known = OPTIONS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ");
                return Err(ConfigError::Unknown { name, known });
            };
            (spec.set)(&mut config, &value)
                .map_err(|reason| ConfigError::unfitting(spec.name, value.to_string(), reason))?;
            given.push(spec.name);
        }
        let names = OPTIONS.iter().filter(|spec| spec.default.is_none()).map(|spec| spec.name);
        let names: Vec<_> = names.filter(|name| !given.contains(name)).collect();
        if !names.is_empty() {
            return Err(ConfigError::Missing { names });
        }
        if let [one_for_all] = config.capacities_bytes[..] {
            config.capacities_bytes = vec![one_for_all; config.paths.len()];
        }
        let (paths, capacities) = (config.paths.len(), config.capacities_bytes.len());
        if paths != capacities {
            return Err(ConfigError::Capacities { paths, capacities });
        }
        Ok(config)
    }
}

/// What is to be another one in an open store; what is `None`, or not named, stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LimitChanges {
    /// One for all paths, or one for each.
    pub(crate) capacities_bytes: Option<Vec<u64>>,
    pub(crate) ttl: Option<Option<Duration>>,
    /// `None` takes the quota of a namespace away.
    pub(crate) quotas: Vec<(String, Option<u64>)>,
}

impl LimitChanges {
    /// Reads options by name. Of `quotas` those that are named change, and go with 'none'.
    ///
    /// # Errors
    /// `ConfigError` for a name that cannot be changed, or a value that does not fit.
    pub(crate) fn from_options(
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self, ConfigError> {
        let mut changes = Self::default();
        for (name, value) in options {
            let Some(&name) = CHANGEABLE.iter().find(|known| **known == name) else {
                let known = CHANGEABLE.join(", ");
                return Err(ConfigError::Unchangeable { name, known });
            };
            // The option itself reads what it reads at an open.
            let mut read = Config::defaults();
            let set = |value: &OptionValue, read: &mut Config| {
                OptionSpec::named(name).map_or(Ok(()), |spec| (spec.set)(read, value))
            };
            let outcome = match (name, &value) {
                ("quotas", OptionValue::Map(values)) => values.iter().try_for_each(|one| {
                    let quota = match one {
                        (_, OptionValue::Text(text)) if text == "none" => None,
                        one => {
                            set(&OptionValue::Map(vec![one.clone()]), &mut read)?;
                            read.quotas.first().map(|(_, bytes)| *bytes)
                        }
                    };
                    changes.quotas.push((one.0.clone(), quota));
                    Ok(())
                }),
                ("quotas", _) => Err("it is no mapping of names to sizes or 'none'".to_owned()),
                _ => set(&value, &mut read),
            };
            outcome.map_err(|reason| ConfigError::unfitting(name, value.to_string(), reason))?;
            match name {
                "capacity" => changes.capacities_bytes = Some(read.capacities_bytes),
                "ttl" => changes.ttl = Some(read.ttl),
                _ => {}
            }
        }
        Ok(changes)
    }
}

impl ConfigError {
    /// A value that does not fit the option, or what the path names.
    pub(crate) fn unfitting(name: &'static str, value: String, reason: String) -> Self {
        let range = OptionSpec::named(name).map_or_else(String::new, |spec| match spec.unit {
            "" => spec.range.to_owned(),
            unit => format!("{} ({unit})", spec.range),
        });
        Self::Invalid { name, value, reason, range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the table says of an option is its default.
    #[test]
    fn each_default_is_the_one_of_the_table() {
        let given = |name: &str, value: &str| {
            let base = [("path", "/tmp/x"), ("capacity", "1GiB"), (name, value)];
            let text =
                |(name, value): (&str, &str)| (name.to_owned(), OptionValue::Text(value.into()));
            Config::from_options(base.map(text)).map(|config| format!("{config:?}"))
        };
        let unchanged = given("path", "/tmp/x").unwrap();
        for OptionSpec { name, default, .. } in OPTIONS {
            if let Some(default) = default {
                assert_eq!(given(name, default).unwrap(), unchanged, "{name}");
            }
        }
    }
}
