//! What can be set when a store is opened.

mod eviction;
mod nearest;
mod options;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use eviction::Eviction;
pub use options::{OPTIONS, OptionSpec};
pub use values::{OptionValue, size_bytes};

use nearest::nearest;

use crate::checksum::ChecksumKind;
use crate::engine::{FileOperations, SystemFiles};
use crate::error::ConfigError;
use crate::lock::current_boot;
use crate::time::Clock;

/// Longest single transfer that can be configured.
pub const MAX_IO_BYTES: u64 = 64 << 20;

/// Smallest capacity: room for an index and one useful data file.
pub const MIN_CAPACITY_BYTES: u64 = 16 << 20;

/// How payloads are guarded between SET and GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-64/NVME, computed while writing, compared on every GET.
    Crc64Nvme,
    /// None: what the disk returns is trusted.
    Off,
}

impl Checksum {
    /// What new chunks get.
    pub(crate) fn kind(self) -> Option<ChecksumKind> {
        match self {
            Self::Crc64Nvme => Some(ChecksumKind::Crc64Nvme),
            Self::Off => None,
        }
    }
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring, or threads where it cannot be had.
    Auto,
    /// io_uring; opening fails where it cannot be had.
    IoUring,
    /// Threads.
    Posix,
}

/// What a completed SET withstands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process.
    BestEffort,
    /// Power loss as well: data and record are synced before the completion.
    Persistent,
}

/// What the file system keeps free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinFree {
    /// The smaller of 5 % of it and 10 GiB.
    Auto,
    /// This many bytes.
    Bytes(u64),
}

/// How chunks lie on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As extents of preallocated data files.
    Extents,
    /// Each in a file of its own.
    Files,
}

impl Layout {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extents => "extents",
            Self::Files => "files",
        }
    }
}

/// Which SETs store something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// All of them.
    Always,
    /// Those of keys that were to be stored before.
    SecondUse,
}

/// When a block device is told which of its bytes are not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Never.
    Never,
    /// When it is formatted, of all of it.
    Format,
    /// Then, and of the place of each chunk that goes.
    Free,
}

/// Everything that can be set when a store is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the store lives: one path, or several that share the keys.
    pub paths: Vec<PathBuf>,
    /// Most bytes the store may take at each of them, index included; [`Config::WHOLE_DEVICE`] for all that a block device
    /// has.
    pub capacities_bytes: Vec<u64>,
    /// Directory of the index of a store on a block device; `None` for the device itself.
    pub index_path: Option<PathBuf>,
    /// Whether a block device may be formatted that holds something else.
    pub format: bool,
    /// When a block device is told which of its bytes are not needed any more.
    pub discard: Discard,
    /// What the file system keeps free.
    pub min_free: MinFree,
    /// Which chunks go when room is needed.
    pub eviction: Eviction,
    /// Share of the space above which chunks are evicted in the background.
    pub high_watermark: f64,
    /// Share of it down to which they are.
    pub low_watermark: f64,
    /// Time without use after which a chunk is a miss.
    pub ttl: Option<Duration>,
    /// Seconds for which what EXISTS found is not evicted.
    pub lease_s: u32,
    /// Most bytes of a namespace, by its name.
    pub quotas: Vec<(String, u64)>,
    /// Which SETs store something.
    pub admission: Admission,
    /// With `Admission::SecondUse`, which SET of a key does.
    pub admit_after: u8,
    /// Most bytes written in a day.
    pub write_budget_bytes: Option<u64>,
    /// How chunks lie on disk.
    pub layout: Layout,
    /// What calls the system on files, beside the engine; no option, for tests.
    #[doc(hidden)]
    pub files: Arc<dyn FileOperations>,
    /// What tells the time; no option, for tests.
    pub clock: Clock,
    /// Which boot of the machine this is; no option, for tests.
    pub boot: u32,
    /// Whether who needs room makes it grow, and who changes a record writes it, so that the same happens in each run; no option,
    /// for tests.
    pub works_inline: bool,
    /// What moves the bytes.
    pub engine: EngineChoice,
    /// Payload checksum.
    pub checksum: Checksum,
    /// What a completed SET withstands.
    pub durability: Durability,
    /// How often a write that has failed twice is tried again in `persistent`.
    pub persistent_max_retries: u32,
    /// Transfers given to the device at a time.
    pub queue_depth: usize,
    /// Longest single transfer.
    pub max_io_bytes: u64,
    /// Reactors, each with a thread and an engine of its own.
    pub io_threads: usize,
    /// Whether the files are registered with the ring.
    pub registered_files: bool,
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

impl Config {
    /// As `capacity_bytes`: all that the block device has.
    pub const WHOLE_DEVICE: u64 = u64::MAX;

    /// A configuration with defaults for all but the two options that have none.
    ///
    /// # Errors
    /// `ConfigError` when `capacity_bytes` or `path` is out of range.
    pub fn new(path: impl Into<String>, capacity_bytes: u64) -> Result<Self, ConfigError> {
        Self::from_options([
            ("path".to_owned(), OptionValue::Text(path.into())),
            (
                "capacity".to_owned(),
                match capacity_bytes {
                    Self::WHOLE_DEVICE => OptionValue::Text("all".into()),
                    bytes => OptionValue::Integer(bytes.into()),
                },
            ),
        ])
    }

    /// Refuses what means something on a block device only.
    ///
    /// # Errors
    /// `ConfigError` for the first such option.
    pub(crate) fn check_for_directory(&self) -> Result<(), ConfigError> {
        let path = self.path().display();
        let refuse = |name, value: String, way_out: &str| {
            let reason = format!("{path} is a directory, no block device; {way_out}");
            Err(ConfigError::unfitting(name, value, reason))
        };
        if self.capacity_bytes() == Self::WHOLE_DEVICE {
            return refuse("capacity", "'all'".into(), "give a size");
        }
        if let Some(index_path) = &self.index_path {
            let value = format!("'{}'", index_path.display());
            return refuse("index_path", value, "its index lies beside the data: leave this out");
        }
        if self.format {
            return refuse("format", "true".into(), "there is nothing to format: leave this out");
        }
        if self.discard == Discard::Free {
            let way_out = "freed places are used again and stay preallocated: leave this out";
            return refuse("discard", "'free'".into(), way_out);
        }
        Ok(())
    }

    /// Refuses what means something in a directory only.
    ///
    /// # Errors
    /// `ConfigError` for the first such option.
    pub(crate) fn check_for_device(&self) -> Result<(), ConfigError> {
        match self.layout {
            Layout::Extents => Ok(()),
            Layout::Files => {
                let path = self.path().display();
                let reason =
                    format!("{path} is a block device, which has no files: leave this out");
                Err(ConfigError::unfitting("layout", "'files'".into(), reason))
            }
        }
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
            paths: Vec::new(),
            capacities_bytes: Vec::new(),
            index_path: None,
            format: false,
            discard: Discard::Format,
            min_free: MinFree::Auto,
            eviction: Eviction::Lfu,
            high_watermark: 1.0,
            low_watermark: 1.0,
            ttl: None,
            lease_s: 0,
            quotas: Vec::new(),
            admission: Admission::Always,
            admit_after: 0,
            write_budget_bytes: None,
            layout: Layout::Extents,
            files: Arc::new(SystemFiles),
            clock: Clock::default(),
            boot: current_boot(),
            works_inline: false,
            engine: EngineChoice::Auto,
            checksum: Checksum::Crc64Nvme,
            durability: Durability::BestEffort,
            persistent_max_retries: 0,
            queue_depth: 0,
            max_io_bytes: 0,
            io_threads: 0,
            registered_files: false,
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
                    nearest: nearest(&name, OPTIONS.iter().map(|spec| spec.name)),
                    known: OPTIONS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
                }
            })?;
            spec.set(&mut config, &value)?;
            given.push(spec.name);
        }
        let required = OPTIONS.iter().filter(|spec| spec.default.is_none()).map(|spec| spec.name);
        let names: Vec<_> = required.filter(|name| !given.contains(name)).collect();
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
        if config.low_watermark > config.high_watermark {
            return Err(ConfigError::Watermarks {
                low: config.low_watermark,
                high: config.high_watermark,
            });
        }
        Ok(config)
    }

    /// The first path.
    pub fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Most bytes that the store may take, all paths together; [`Config::WHOLE_DEVICE`] if one of them is to take that.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacities_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// The part of it that is about path `number` alone.
    pub(crate) fn of_path(&self, number: usize) -> Self {
        Self {
            paths: vec![self.paths[number].clone()],
            capacities_bytes: vec![self.capacities_bytes[number]],
            ..self.clone()
        }
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
        assert_eq!(config.capacity_bytes(), 1 << 30);
        assert_eq!((config.queue_depth, config.max_io_bytes), (128, 512 << 10));
        assert_eq!(config.drain_timeout, Duration::from_secs(5));
        assert_eq!(
            options(&[("capacity", OptionValue::Text("1.5GB".into()))]).unwrap().capacity_bytes(),
            1_500_000_000
        );
        for value in [OptionValue::Float(1.5e9), OptionValue::Text("1.5e9".into())] {
            assert_eq!(options(&[("capacity", value)]).unwrap().capacity_bytes(), 1_500_000_000);
        }
        assert_eq!(options(&[("queue_depth", OptionValue::Float(64.0))]).unwrap().queue_depth, 64);
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
            ("capacity", OptionValue::Float(1.5)),
            ("capacity", OptionValue::Float(1e30)),
            ("capacity", OptionValue::Text("1.5".into())),
            ("max_io_bytes", OptionValue::Integer(5000)),
            ("queue_depth", OptionValue::Integer(0)),
            ("queue_depth", OptionValue::Boolean(true)),
            ("layout", OptionValue::Text("tapes".into())),
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
    fn a_tilde_is_a_home_directory() {
        let root = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(0)).unwrap().unwrap();
        let home = std::env::var_os("HOME").map_or(root.dir.clone(), PathBuf::from);
        let text = |text: &str| OptionValue::Text(text.into());
        let list = OptionValue::List(["~", "~/a/b", "~root/c", "./~", "/~"].map(text).into());
        let config = options(&[("path", list), ("index_path", text("~/index"))]).unwrap();
        let expected =
            [&home, &home.join("a/b"), &root.dir.join("c"), Path::new("./~"), Path::new("/~")];
        assert_eq!(config.paths, expected);
        assert_eq!(config.index_path, Some(home.join("index")));
        let message =
            options(&[("path", text("~nobody-has-this-name/a"))]).unwrap_err().to_string();
        assert!(message.contains("'~nobody-has-this-name' is no user"), "{message}");
    }

    #[test]
    fn required_options() {
        let message = Config::from_options([]).unwrap_err().to_string();
        assert!(message.contains("required and not given: 'path', 'capacity'"), "{message}");
    }
}
