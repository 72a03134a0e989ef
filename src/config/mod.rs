//! What can be set when a store is opened.

mod choices;
mod options;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use choices::{
    Admission, Checksum, Discard, Durability, EngineChoice, Eviction, Layout, WriteStreams,
};
pub(crate) use options::LimitChanges;
pub use options::{OPTIONS, OptionSpec};
pub use values::{OptionValue, size_bytes};

use crate::base::time::Clock;
use crate::engine::{FileOperations, SystemFiles};
use crate::error::ConfigError;
use crate::key::Identity;
use crate::lock::current_boot;

/// Smallest capacity: room for an index and one useful data file.
pub const MIN_CAPACITY_BYTES: u64 = 16 << 20;

/// Reactors of a path, where the options leave it open. They sleep until there is more than the first ones can do; beside other work on
/// few processors, as many threads as others have get as much of them.
const REACTORS: usize = 8;

/// Settings that are no options: constants, and values that follow from the device. They carry no promise and change without notice.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Share of the space above which chunks are evicted in the background, so that a SET rarely waits for room.
    pub high_watermark: f64,
    /// Share of the space at which the background eviction stops.
    pub low_watermark: f64,
    /// With `Admission::SecondUse`, the number of the SET of a key that stores it.
    pub admit_after: u8,
    /// How often `persistent` repeats a write that has failed twice.
    pub persistent_max_retries: u32,
    /// Longest single transfer in bytes, a multiple of 4096. Longer chunks move in pieces.
    pub max_io_bytes: u64,
    /// Most transfers in the device, of loads and as many of stores. `None` follows from the device, here and below.
    pub queue_depth: Option<usize>,
    /// Most bytes in the device, of loads and as many of stores.
    pub in_flight_bytes: Option<u64>,
    /// Most bytes of SETs in the device while nothing is loaded.
    pub set_in_flight_bytes: Option<u64>,
    /// Most bytes of SETs in the device within 250 ms after a load.
    pub set_in_flight_between_loads_bytes: Option<u64>,
    /// Most bytes of SETs in the device while GETs wait or are in flight; 0 lets SETs wait for them.
    pub set_in_flight_while_loading_bytes: u64,
    /// Time in the queue after which a SET goes ahead of GETs.
    pub set_max_wait: Duration,
    /// Most keys of SETs that are not answered yet.
    pub set_queue_operations: u64,
    /// Write streams of the drive.
    pub write_streams: Option<u8>,
    /// How often `best_effort` makes durable what was stored and removed.
    pub flush_period: Duration,
    /// Threads that read the index of a path when it is opened. `None` follows from the processors.
    pub open_threads: Option<usize>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            high_watermark: 0.98,
            low_watermark: 0.96,
            admit_after: 2,
            persistent_max_retries: 3,
            max_io_bytes: 512 << 10,
            queue_depth: None,
            in_flight_bytes: None,
            set_in_flight_bytes: None,
            set_in_flight_between_loads_bytes: None,
            set_in_flight_while_loading_bytes: 0,
            set_max_wait: Duration::from_secs(1),
            set_queue_operations: 128 << 10,
            write_streams: None,
            flush_period: Duration::from_secs(1),
            open_threads: None,
        }
    }
}

/// Everything that can be set when a store is opened. [`OPTIONS`] says what each option does; `None` is the word for none.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "the fields are the options, and the meaning of each is in `OPTIONS`"
)]
pub struct Config {
    pub paths: Vec<PathBuf>,
    /// Of each path; [`Config::WHOLE_DEVICE`] for all that a block device has.
    pub capacities_bytes: Vec<u64>,
    pub index_path: Option<PathBuf>,
    /// Directories that must be mount points when the store is opened.
    pub require_mounts: Vec<PathBuf>,
    pub layout: Layout,
    pub engine: EngineChoice,
    pub checksum: Checksum,
    pub durability: Durability,
    pub eviction: Eviction,
    pub ttl: Option<Duration>,
    pub lease_s: u32,
    /// After this time in the queue a GET is a miss; none if it waits as long as it takes.
    pub load_deadline_ms: Option<u64>,
    pub identity: Option<Identity>,
    pub quotas: Vec<(String, u64)>,
    pub admission: Admission,
    /// In a day.
    pub write_budget_bytes: Option<u64>,
    /// `None` for the smaller of 5 % of the file system and 10 GiB.
    pub min_free_bytes: Option<u64>,
    pub discard: Discard,
    pub write_streams: WriteStreams,
    /// Reactors of each path, each with a thread and an engine of its own; `None` for as many as are needed.
    pub io_threads: Option<usize>,
    pub set_queue_bytes: u64,
    /// For whoever serves metrics: nothing here does.
    pub metrics_port: Option<u16>,
    /// For tests and benchmarks, as all below: no options.
    #[doc(hidden)]
    pub tuning: Tuning,
    #[doc(hidden)]
    pub files: Arc<dyn FileOperations>,
    #[doc(hidden)]
    pub clock: Clock,
    /// Which boot of the machine this is.
    #[doc(hidden)]
    pub boot: u32,
    /// Whether growing and writing records happen on the thread that needs them, so that each run does the same.
    #[doc(hidden)]
    pub works_inline: bool,
    /// Whether chunks stay at their paths, and are found there, although the capacities give their keys to others: for commands,
    /// which are not told the capacities of a store. Nothing is to be stored in it.
    #[doc(hidden)]
    pub keeps_misplaced: bool,
    /// Whether no chunk is evicted for the sake of another: a SET that finds no room is refused.
    #[doc(hidden)]
    pub never_evicts: bool,
}

impl Config {
    /// As `capacity_bytes`: all that the block device has.
    pub const WHOLE_DEVICE: u64 = u64::MAX;

    /// A configuration with defaults for all but the two options that have none.
    ///
    /// # Errors
    /// `ConfigError` when `capacity_bytes` or `path` is out of range.
    pub fn new(path: impl Into<String>, capacity_bytes: u64) -> Result<Self, ConfigError> {
        let capacity = match capacity_bytes {
            Self::WHOLE_DEVICE => OptionValue::Text("all".into()),
            bytes => OptionValue::Integer(bytes.into()),
        };
        Self::from_options([
            ("path".to_owned(), OptionValue::Text(path.into())),
            ("capacity".to_owned(), capacity),
        ])
    }

    fn defaults() -> Self {
        Self {
            paths: Vec::new(),
            capacities_bytes: Vec::new(),
            index_path: None,
            require_mounts: Vec::new(),
            layout: Layout::Extents,
            engine: EngineChoice::Auto,
            checksum: Checksum::Crc64Nvme,
            durability: Durability::BestEffort,
            eviction: Eviction::Adaptive,
            ttl: Some(Duration::from_secs(7 * 86_400)),
            lease_s: 10,
            load_deadline_ms: None,
            identity: None,
            quotas: Vec::new(),
            admission: Admission::Adaptive,
            write_budget_bytes: None,
            min_free_bytes: None,
            discard: Discard::Format,
            write_streams: WriteStreams::Lifetime,
            io_threads: None,
            set_queue_bytes: 8 << 30,
            metrics_port: None,
            tuning: Tuning::default(),
            files: Arc::new(SystemFiles),
            clock: Clock::default(),
            boot: 0,
            works_inline: false,
            keeps_misplaced: false,
            never_evicts: false,
        }
    }

    /// The defaults, for all of a block device.
    pub(crate) fn of_device(path: &Path) -> Self {
        let (paths, capacities_bytes) = (vec![path.to_owned()], vec![Self::WHOLE_DEVICE]);
        Self { paths, capacities_bytes, boot: current_boot(), ..Self::defaults() }
    }

    /// Whether new keys are stored of a share of requests alone, which the order of eviction learns.
    pub(crate) fn admits_by_share(&self) -> bool {
        (self.admission, self.eviction) == (Admission::Adaptive, Eviction::Adaptive)
    }

    /// Refuses the options of block devices.
    pub(crate) fn check_for_directory(&self) -> Result<(), ConfigError> {
        let (name, value, remedy) = if self.capacity_bytes() == Self::WHOLE_DEVICE {
            ("capacity", "'all'".into(), "give a size")
        } else if let Some(index_path) = &self.index_path {
            let remedy = "its index lies beside the data: leave this out";
            ("index_path", format!("'{}'", index_path.display()), remedy)
        } else if self.discard == Discard::Free {
            let remedy = "freed extents are used again and stay preallocated: leave this out";
            ("discard", "'free'".into(), remedy)
        } else {
            return Ok(());
        };
        let reason = format!("{} is a directory, no block device; {remedy}", self.path().display());
        Err(ConfigError::unfitting(name, value, reason))
    }

    /// Refuses the options of directories.
    pub(crate) fn check_for_device(&self) -> Result<(), ConfigError> {
        if self.layout == Layout::Extents {
            return Ok(());
        }
        let path = self.path().display();
        let reason = format!("{path} is a block device, which has no files: leave this out");
        Err(ConfigError::unfitting("layout", "'files'".into(), reason))
    }

    /// How many reactors each path has at most.
    pub(crate) fn reactors(&self) -> usize {
        self.io_threads.unwrap_or(REACTORS)
    }

    /// The first path.
    pub fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Most bytes that the store may take, all paths together; [`Config::WHOLE_DEVICE`] if one of them is to take that.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacities_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// The configuration of path `number` alone.
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
        assert_eq!((config.lease_s, config.ttl), (10, Some(Duration::from_secs(7 * 86_400))));
        assert_eq!(
            options(&[("capacity", OptionValue::Text("1.5GB".into()))]).unwrap().capacity_bytes(),
            1_500_000_000
        );
        for value in [OptionValue::Float(1.5e9), OptionValue::Text("1.5e9".into())] {
            assert_eq!(options(&[("capacity", value)]).unwrap().capacity_bytes(), 1_500_000_000);
        }
        assert_eq!(
            options(&[("io_threads", OptionValue::Float(64.0))]).unwrap().io_threads,
            Some(64)
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
            ("capacity", OptionValue::Float(1.5)),
            ("capacity", OptionValue::Float(1e30)),
            ("capacity", OptionValue::Text("1.5".into())),
            ("io_threads", OptionValue::Integer(0)),
            ("io_threads", OptionValue::Boolean(true)),
            ("layout", OptionValue::Text("tapes".into())),
            ("checksum", OptionValue::Boolean(false)),
            ("ttl", OptionValue::Float(f64::NAN)),
            ("path", OptionValue::Text(String::new())),
            ("identity", OptionValue::Text("a b".into())),
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
