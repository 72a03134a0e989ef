//! Every option in one table.

use std::time::Duration;

use super::kinds::{
    count, identity, list, one_of, or, or_none, path_name, size, sizes_by_name, time,
};
use super::{
    Admission, Checksum, Config, Discard, Durability, EngineChoice, Eviction, Layout,
    MIN_CAPACITY_BYTES, OptionValue,
};
use crate::error::ConfigError;
use crate::format::membership::MAX_VOLUMES;

const PIB: u64 = 1 << 50;
const DAY: Duration = Duration::from_secs(86_400);

/// Description of one option.
pub struct OptionSpec {
    /// Its name, as in JSON.
    pub name: &'static str,
    /// Unit of its value; empty for a name.
    pub unit: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// The value in a configuration, and all that it takes.
    describe: fn(&Config) -> (String, String),
    set: fn(&mut Config, &OptionValue) -> Result<(), String>,
}

macro_rules! option {
    ($name:literal, $unit:literal, $field:ident, $kind:expr, $meaning:literal) => {
        OptionSpec {
            name: $name,
            unit: $unit,
            meaning: $meaning,
            describe: |config| {
                let kind = $kind;
                ((kind.show)(&config.$field), kind.range)
            },
            set: |config, value| {
                config.$field = ($kind.read)(value)?;
                Ok(())
            },
        }
    };
}

/// All options that exist.
#[rustfmt::skip]
pub const OPTIONS: &[OptionSpec] = &[
    option!("path", "", paths, list(path_name("a directory or a block device"), MAX_VOLUMES),
        "where the store lives; a directory is made if it is missing, a block device is formatted if there is nothing on it; several paths, none inside another, share the keys in proportion to their capacities, and one that fails is left out"),
    option!("capacity", "bytes", capacities_bytes, list(or("all", || Config::WHOLE_DEVICE, size(MIN_CAPACITY_BYTES, PIB)), MAX_VOLUMES),
        "most bytes that the store takes on disk at each path, data and index together; 'all' of a block device; a list has one for each path"),
    option!("index_path", "", index_path, or_none("none", path_name("a directory")),
        "where the index of a store on a block device lies, if not on the device itself; formatting settles which"),
    option!("layout", "", layout, one_of(&Layout::ALL, Layout::name),
        "how chunks lie on disk: as extents of preallocated data files, or each in a file of its own, to be seen and copied with ordinary tools; a store keeps the layout that it was made with"),
    option!("engine", "", engine, one_of(&EngineChoice::ALL, EngineChoice::name),
        "what moves the bytes: io_uring, or a pool of threads over preadv and pwritev; 'auto' takes io_uring where the kernel lets it, and says why not where it does not"),
    option!("checksum", "", checksum, one_of(&Checksum::ALL, Checksum::name),
        "payload checksum, computed on SET and compared on every GET; with 'off' a re-stored key of the same length counts as unchanged"),
    option!("durability", "", durability, one_of(&Durability::ALL, Durability::name),
        "what a completed SET withstands: the death of the process, and power loss two seconds later if a flush of the drive takes less than one; or power loss at once (data and record are synced before it completes, grouped over all SETs that wait)"),
    option!("eviction", "", eviction, one_of(&Eviction::ALL, Eviction::name),
        "which chunks go when room is needed; docs/eviction.md compares them"),
    option!("ttl", "", ttl, or_none("off", time(Duration::from_secs(1), DAY.saturating_mul(3660))),
        "after this time without use a chunk is a miss, and its space is given back"),
    option!("lease_s", "seconds", lease_s, count(0, 3600),
        "for this time a chunk that EXISTS found is not evicted, so that the load that follows finds it; a quarter of the capacity at most is leased"),
    option!("load_deadline_ms", "milliseconds", load_deadline_ms, or_none("off", count(1, 3_600_000)),
        "a load that could not start within this time is answered as a miss, so that the engine computes again rather than waits"),
    option!("identity", "", identity, or_none("none", identity()),
        "what tells this engine from others that use the store: its weights, dtype, layout and ranks, where they are not part of the model's name; it is part of the namespace (identity#model), and what was stored under another one is not seen"),
    option!("quotas", "bytes", quotas, or("none", Vec::new, sizes_by_name(1 << 20, PIB)),
        "most bytes of a namespace (model, or model@salt, after identity# if there is one), at all paths together; past it its own chunks go"),
    option!("admit", "", admission, one_of(&Admission::ALL, Admission::name),
        "with 'second_use' a key is stored only when it is to be stored for the second time, which saves writes; until then its SETs complete without storing"),
    option!("write_budget", "bytes a day", write_budget_bytes, or_none("off", size(1 << 30, PIB)),
        "most bytes written in a day, at all paths together, to spare the drive; an hour's worth may come at once, past it SETs complete without storing"),
    option!("min_free", "bytes", min_free_bytes, or_none("auto", size(0, PIB)),
        "the store does not grow where the file system would have less than this left; 'auto' is the smaller of 5 % of it and 10 GiB"),
    option!("discard", "", discard, one_of(&Discard::ALL, Discard::name),
        "when a block device is told what it need not keep: all of it when it is formatted; with 'free' the extents of chunks that were deleted or evicted as well"),
    option!("io_threads", "threads", io_threads, or_none("auto", count(1, 64)),
        "threads that move the bytes of each path, each with a ring, or a pool of threads, of its own; with 'auto' there are 8, of which one works until it is short of processor time (2 where pools of threads take the place of io_uring)"),
    option!("set_queue_bytes", "bytes", set_queue_bytes, size(1 << 20, 1 << 40),
        "most bytes of SETs that are not answered yet; a batch past it is refused with 'queue full', so that its memory is free again; where none is queued any batch is taken"),
    option!("metrics_port", "", metrics_port, or_none("off", count(1, 65_535)),
        "a port of 127.0.0.1 on which the process serves /metrics for Prometheus and /healthz; stores of a process may share one"),
];

impl OptionSpec {
    /// Values that it accepts.
    pub fn range(&self) -> String {
        (self.describe)(&Config::defaults()).1
    }

    /// Value that it has when it is not given; `None` when it must be given.
    pub fn default(&self) -> Option<String> {
        Some((self.describe)(&Config::defaults()).0).filter(|text| !text.is_empty())
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|spec| spec.name == name)
    }

    pub(super) fn set(&self, config: &mut Config, value: &OptionValue) -> Result<(), ConfigError> {
        (self.set)(config, value)
            .map_err(|reason| ConfigError::unfitting(self.name, value.to_string(), reason))
    }
}

impl ConfigError {
    /// A value that does not fit the option, or what the path names.
    pub(crate) fn unfitting(name: &'static str, value: String, reason: String) -> Self {
        let range = OptionSpec::named(name).map_or_else(String::new, |spec| match spec.unit {
            "" => spec.range(),
            unit => format!("{} ({unit})", spec.range()),
        });
        Self::Invalid { name, value, reason, range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/configuration.md is made from the code.
    #[test]
    fn the_document_has_the_table() {
        let option = |spec: &OptionSpec| {
            let default = spec.default().unwrap_or_else(|| "required".into());
            format!("| `{}` | {default} | {} | {} |\n", spec.name, spec.range(), spec.meaning)
        };
        let document = include_str!("../../docs/configuration.md");
        let options: String = OPTIONS.iter().map(option).collect();
        let head = "| option | default | takes | meaning |\n|---|---|---|---|\n";
        assert!(
            document.contains(&format!("{head}{options}\n")),
            "it should have:\n{head}{options}"
        );
    }
}
