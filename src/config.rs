//! Options: each named once, with unit, default, range, meaning and the code that takes its value.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

use crate::error::ConfigError;

/// Unit of place on disk: every chunk starts at a multiple of it and takes a whole number of them.
pub const BLOCK_BYTES: u64 = 4096;

/// Longest chunk that any store takes.
pub const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// Smallest capacity: room for an index and one useful data file.
pub const MIN_CAPACITY_BYTES: u64 = 16 << 20;

/// A value as a caller (JSON, Python, Rust) gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A whole number.
    Integer(i128),
    /// A number with a fraction.
    Float(f64),
    /// A string.
    Text(String),
    /// A truth value; no option takes one so far, so that it is refused by name.
    Boolean(bool),
    /// Anything else, as its text; no option takes it, so that it is refused by name.
    Other(String),
}

impl std::fmt::Display for OptionValue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{value}"),
            Self::Text(value) => write!(formatter, "'{value}'"),
            Self::Boolean(value) => write!(formatter, "{value}"),
            Self::Other(value) => write!(formatter, "{value}"),
        }
    }
}

/// How payloads are guarded between SET and GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-32C (Castagnoli), computed while writing, compared on every GET.
    Crc32c,
    /// None: what the disk returns is trusted.
    Off,
}

/// What a completed SET withstands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process.
    BestEffort,
    /// Power loss as well: data and record are synced before the completion.
    Persistent,
}

/// Everything that can be set when a store is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the store.
    pub path: PathBuf,
    /// Most bytes the store may take on disk, index included.
    pub capacity_bytes: u64,
    /// Payload checksum.
    pub checksum: Checksum,
    /// What a completed SET withstands.
    pub durability: Durability,
    /// How often a failed write is tried again in `persistent`.
    pub persistent_max_retries: u32,
    /// Transfers given to the device at a time.
    pub queue_depth: usize,
    /// Longest single transfer.
    pub max_io_bytes: u64,
    /// Reactors, each with a thread and a ring of its own.
    pub io_threads: usize,
    /// Most bytes of SETs in the device while nothing is being loaded.
    pub set_in_flight_bytes: u64,
    /// The same shortly after something was loaded.
    pub set_in_flight_between_loads_bytes: u64,
    /// The same while GETs wait or are in flight.
    pub set_in_flight_while_loading_bytes: u64,
    /// After this time in the queue a SET goes ahead of GETs.
    pub set_max_wait: Duration,
    /// Most bytes of SETs that are not answered yet.
    pub set_queue_bytes: u64,
    /// Most SETs that are not answered yet.
    pub set_queue_operations: u64,
    /// Whether a submit waits for room in the queue of SETs.
    pub blocks: bool,
    /// How long, if so.
    pub backpressure_timeout: Duration,
    /// How long `close` waits for queued operations.
    pub drain_timeout: Duration,
}

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
        range: "a directory",
        meaning: "where the store lives; the directory is made if it is missing",
        apply: |config, value| {
            config.path = PathBuf::from(text(value)?);
            if config.path.as_os_str().is_empty() { Err("it is empty".into()) } else { Ok(()) }
        },
    },
    OptionSpec {
        name: "capacity",
        unit: "bytes",
        default: None,
        range: "a number of bytes or a string such as '500GiB', at least 16 MiB",
        meaning: "most bytes that the store takes on disk, data and index together",
        apply: |config, value| {
            config.capacity_bytes = size_within(value, MIN_CAPACITY_BYTES, 1 << 50)?;
            Ok(())
        },
    },
    OptionSpec {
        name: "layout",
        unit: "",
        default: Some("extents"),
        range: "'extents'",
        meaning: "how chunks lie on disk: extents of preallocated data files",
        apply: |_, value| one_of(value, &["extents"]).map(drop),
    },
    OptionSpec {
        name: "engine",
        unit: "",
        default: Some("io_uring"),
        range: "'io_uring'",
        meaning: "what moves the bytes",
        apply: |_, value| one_of(value, &["io_uring"]).map(drop),
    },
    OptionSpec {
        name: "checksum",
        unit: "",
        default: Some("crc32c"),
        range: "'crc32c' or 'off'",
        meaning: "payload checksum, computed on SET and compared on every GET; with 'off' a re-stored key of the same length counts as unchanged",
        apply: |config, value| {
            config.checksum = match one_of(value, &["crc32c", "off"])? {
                "off" => Checksum::Off,
                _ => Checksum::Crc32c,
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
        meaning: "how often a failed write is tried again, with growing pauses from 10 ms on, in 'persistent'",
        apply: |config, value| {
            config.persistent_max_retries = size_within(value, 0, 100)? as u32;
            Ok(())
        },
    },
    OptionSpec {
        name: "queue_depth",
        unit: "transfers",
        default: Some("128"),
        range: "1 to 4096",
        meaning: "most transfers in the device at a time, of loads and of stores",
        apply: |config, value| {
            config.queue_depth = size_within(value, 1, 4096)? as usize;
            Ok(())
        },
    },
    OptionSpec {
        name: "max_io_bytes",
        unit: "bytes",
        default: Some("1MiB"),
        range: "a multiple of 4096 from 4 KiB to 64 MiB",
        meaning: "longest single transfer; longer chunks go down in pieces of this size",
        apply: |config, value| {
            let bytes = size_within(value, BLOCK_BYTES, MAX_CHUNK_BYTES)?;
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
        meaning: "threads that move bytes, each with a ring of its own, keys spread over them; 'auto' takes one for every 8 processors, 4 at most",
        apply: |config, value| {
            config.io_threads = match value {
                OptionValue::Text(text) if text == "auto" => std::thread::available_parallelism()
                    .map_or(1, |cores| cores.get() / 8)
                    .clamp(1, 4),
                _ => size_within(value, 1, 64)? as usize,
            };
            Ok(())
        },
    },
    OptionSpec {
        name: "set_in_flight_bytes",
        unit: "bytes",
        default: Some("32MiB"),
        range: "4 KiB to 1 GiB",
        meaning: "most bytes of SETs in the device at a time while nothing is being loaded: what is there cannot be overtaken",
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
        meaning: "after this time in the queue a SET goes ahead of GETs, one piece at a time, so that endless loads cannot starve it",
        apply: |config, value| {
            config.set_max_wait = Duration::from_millis(size_within(value, 0, 600_000)?);
            Ok(())
        },
    },
    OptionSpec {
        name: "set_queue_bytes",
        unit: "bytes",
        default: Some("8GiB"),
        range: "1 MiB to 1 TiB",
        meaning: "most bytes of SETs that are not answered yet; a batch past it is refused with 'queue full', so that its memory is free again",
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
            config.set_queue_operations = size_within(value, 1, 1 << 24)?;
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
            config.backpressure_timeout = Duration::from_millis(size_within(value, 0, 60_000)?);
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

impl Config {
    /// A configuration with defaults for all but the two options that have none.
    ///
    /// # Errors
    /// `ConfigError` when `capacity_bytes` or `path` is out of range.
    pub fn new(path: impl Into<String>, capacity_bytes: u64) -> Result<Self, ConfigError> {
        Self::from_options([
            ("path".to_owned(), OptionValue::Text(path.into())),
            ("capacity".to_owned(), OptionValue::Integer(capacity_bytes.into())),
        ])
    }

    /// Reads options by name; what is not given has its default.
    ///
    /// # Errors
    /// `ConfigError` for an unknown name (with the list of those that exist), a value that does not fit, or a
    /// missing required option.
    pub fn from_options(
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self {
            path: PathBuf::new(),
            capacity_bytes: 0,
            checksum: Checksum::Crc32c,
            durability: Durability::BestEffort,
            persistent_max_retries: 0,
            queue_depth: 0,
            max_io_bytes: 0,
            io_threads: 0,
            set_in_flight_bytes: 0,
            set_in_flight_between_loads_bytes: 0,
            set_in_flight_while_loading_bytes: 0,
            set_max_wait: Duration::ZERO,
            set_queue_bytes: 0,
            set_queue_operations: 0,
            blocks: false,
            backpressure_timeout: Duration::ZERO,
            drain_timeout: Duration::ZERO,
        };
        for spec in OPTIONS {
            if let Some(default) = spec.default {
                spec.set(&mut config, &OptionValue::Text(default.to_owned()))?;
            }
        }
        let mut given = Vec::new();
        for (name, value) in options {
            let spec = OPTIONS.iter().find(|spec| spec.name == name).ok_or_else(|| {
                ConfigError::Unknown {
                    name: name.clone(),
                    known: OPTIONS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
                }
            })?;
            spec.set(&mut config, &value)?;
            given.push(spec.name);
        }
        match OPTIONS.iter().find(|spec| spec.default.is_none() && !given.contains(&spec.name)) {
            Some(spec) => Err(ConfigError::Missing { name: spec.name, meaning: spec.meaning }),
            None => Ok(config),
        }
    }
}

impl OptionSpec {
    fn set(&self, config: &mut Config, value: &OptionValue) -> Result<(), ConfigError> {
        (self.apply)(config, value).map_err(|reason| ConfigError::Invalid {
            name: self.name,
            value: value.to_string(),
            reason,
            range: self.range,
        })
    }
}

fn text(value: &OptionValue) -> Result<&str, String> {
    match value {
        OptionValue::Text(text) => Ok(text),
        _ => Err("it is not a string".into()),
    }
}

fn one_of<'value>(value: &'value OptionValue, choices: &[&str]) -> Result<&'value str, String> {
    let text = text(value)?;
    if choices.contains(&text) { Ok(text) } else { Err("it is not one of the choices".into()) }
}

fn number(value: &OptionValue) -> Result<f64, String> {
    match value {
        OptionValue::Integer(integer) => Ok(*integer as f64),
        OptionValue::Float(float) => Ok(*float),
        OptionValue::Text(text) => text.trim().parse().map_err(|_| "it is not a number".into()),
        OptionValue::Boolean(_) | OptionValue::Other(_) => Err("it is not a number".into()),
    }
}

/// Reads a number of bytes, such as "4096", "64KiB" or "1.5GB", the way every option that is a size does.
///
/// # Errors
/// Why it cannot be read.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    match ByteSize::from_str(text) {
        Ok(size) => Ok(size.0),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

fn size_within(value: &OptionValue, least: u64, most: u64) -> Result<u64, String> {
    let size = match value {
        OptionValue::Integer(integer) => {
            u64::try_from(*integer).map_err(|_| "it is out of range".to_owned())?
        }
        OptionValue::Text(text) => size_bytes(text)?,
        OptionValue::Float(_) | OptionValue::Boolean(_) | OptionValue::Other(_) => {
            return Err("it is not a whole number of bytes in range".into());
        }
    };
    if (least..=most).contains(&size) {
        Ok(size)
    } else {
        Err(format!("{size} is not within {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(extra: &[(&str, OptionValue)]) -> Result<Config, ConfigError> {
        let base = [
            ("path", OptionValue::Text("/tmp/x".into())),
            ("capacity", OptionValue::Text("1GiB".into())),
        ];
        Config::from_options(
            base.iter().chain(extra).map(|(name, value)| ((*name).to_owned(), value.clone())),
        )
    }

    #[test]
    fn defaults_and_sizes() {
        let config = options(&[]).unwrap();
        assert_eq!(config.capacity_bytes, 1 << 30);
        assert_eq!((config.queue_depth, config.max_io_bytes), (128, 1 << 20));
        assert_eq!(config.drain_timeout, Duration::from_secs(5));
        assert_eq!(
            options(&[("capacity", OptionValue::Text("1.5GB".into()))]).unwrap().capacity_bytes,
            1_500_000_000
        );
    }

    #[test]
    fn unknown_option_lists_those_that_exist() {
        let message = options(&[("capcity", OptionValue::Integer(1))]).unwrap_err().to_string();
        assert!(
            message.contains("'capcity'") && OPTIONS.iter().all(|spec| message.contains(spec.name)),
            "{message}"
        );
    }

    #[test]
    fn wrong_values_name_value_and_range() {
        let wrong = [
            ("capacity", OptionValue::Integer(4096)),
            ("capacity", OptionValue::Integer(-1)),
            ("capacity", OptionValue::Text("many".into())),
            ("capacity", OptionValue::Float(1e9)),
            ("max_io_bytes", OptionValue::Integer(5000)),
            ("queue_depth", OptionValue::Integer(0)),
            ("queue_depth", OptionValue::Boolean(true)),
            ("layout", OptionValue::Text("files".into())),
            ("checksum", OptionValue::Boolean(false)),
            ("drain_timeout_s", OptionValue::Float(f64::NAN)),
            ("path", OptionValue::Text(String::new())),
        ];
        for (name, value) in wrong {
            let message = options(&[(name, value.clone())]).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(&value.to_string()), "{message}");
        }
    }

    #[test]
    fn required_options() {
        let message = Config::from_options([]).unwrap_err().to_string();
        assert!(message.contains("'path' is required"), "{message}");
    }
}
