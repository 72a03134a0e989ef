//! What a run does, checked as a whole before anything is touched.

use std::time::Duration;

use kvring::OptionValue;

use crate::error::PlanError;
use crate::memory::BatchMemory;
use crate::options::BENCH_OPTIONS;
use crate::sizes::ChunkSizes;

/// Keys per submit unless told otherwise.
const DEFAULT_BATCH: u64 = 8;

/// Most keys of a run; what is remembered of each takes 8 bytes.
const MAX_KEYS: u64 = 1 << 28;

const MIB: u64 = 1 << 20;

/// What is done to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// GETs in the order in which the chunks were stored.
    Read,
    /// SETs in the order of the keys.
    Write,
    /// Batches of GETs and of SETs, in the order of the keys.
    ReadWrite,
    /// GETs in random order.
    RandRead,
    /// SETs in random order.
    RandWrite,
    /// Batches of GETs and of SETs, in random order.
    RandReadWrite,
    /// EXISTS in random order.
    Exists,
    /// DELETE of each key once, oldest first.
    Delete,
}

impl Pattern {
    const ALL: [(&'static str, Self); 8] = [
        ("read", Self::Read),
        ("write", Self::Write),
        ("rw", Self::ReadWrite),
        ("randread", Self::RandRead),
        ("randwrite", Self::RandWrite),
        ("randrw", Self::RandReadWrite),
        ("exists", Self::Exists),
        ("delete", Self::Delete),
    ];

    /// The pattern of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(other, _)| *other == name).map(|(_, pattern)| *pattern)
    }

    /// Its name, as fio has it where fio has it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, other)| *other == self).map_or("", |(name, _)| name)
    }

    /// Whether every chunk must be stored beforehand.
    pub(crate) fn needs_fill(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite)
    }

    /// Whether it stores chunks.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandWrite | Self::ReadWrite | Self::RandReadWrite)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite | Self::Exists)
    }
}

/// A run, ready to be started. [`BENCH_OPTIONS`] describes each field.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is done.
    pub rw: Pattern,
    /// Lengths of the chunks.
    pub sizes: ChunkSizes,
    /// Keys in flight of each job.
    pub iodepth: u64,
    /// Keys of one submit.
    pub batch: u64,
    /// Threads that submit.
    pub numjobs: u64,
    /// Bytes of all chunks together.
    pub size_bytes: u64,
    /// How long it goes on; `None` for one pass over all chunks.
    pub runtime: Option<Duration>,
    /// Percentage of GETs in a mix.
    pub rwmixread: u64,
    /// Alignment of the buffers.
    pub align_bytes: u64,
    /// Whether what is loaded is compared.
    pub verify: bool,
    /// Whether the buffers are registered with the store.
    pub registered: bool,
    /// Decides orders, lengths and contents.
    pub seed: u64,
}

impl Plan {
    /// Reads options by name; what is not given has its default.
    ///
    /// # Errors
    /// `PlanError` for an unknown name, a value that does not fit, options that do not go together, and more memory than
    /// this machine has available.
    pub fn from_options(
        options: impl IntoIterator<Item = (String, OptionValue)>,
    ) -> Result<Self, PlanError> {
        let mut plan = Self {
            rw: Pattern::Read,
            sizes: ChunkSizes::Choice(vec![1]),
            iodepth: 1,
            batch: 1,
            numjobs: 1,
            size_bytes: 1,
            runtime: None,
            rwmixread: 0,
            align_bytes: 1,
            verify: false,
            registered: false,
            seed: 0,
        };
        for option in BENCH_OPTIONS {
            option.set(&mut plan, &OptionValue::Text(option.default.to_owned()))?;
        }
        for (name, value) in options {
            let option =
                BENCH_OPTIONS.iter().find(|option| option.name == name).ok_or_else(|| {
                    let known: Vec<_> = BENCH_OPTIONS.iter().map(|option| option.name).collect();
                    PlanError::Unknown { name, known: known.join(", ") }
                })?;
            option.set(&mut plan, &value)?;
        }
        if plan.batch == 0 {
            plan.batch = DEFAULT_BATCH.min(plan.iodepth);
        }
        plan.check(available_memory_bytes())?;
        Ok(plan)
    }

    fn check(&self, available_bytes: u64) -> Result<(), PlanError> {
        let Self { batch, iodepth, numjobs, size_bytes, .. } = self;
        let conflict = |message| Err(PlanError::Conflict(message));
        if batch > iodepth {
            return conflict(format!(
                "batch = {batch} is more than iodepth = {iodepth}: a batch must fit into what may be in flight; lower \
                 batch or raise iodepth"
            ));
        }
        let mean_bytes = self.sizes.mean_bytes();
        if self.keys_per_job() == 0 {
            return conflict(format!(
                "size = {size_bytes} bytes is not a chunk for each job: {numjobs} jobs with bs = {} need at least {} \
                 bytes; raise size, or lower bs or numjobs",
                self.sizes,
                mean_bytes.saturating_mul(*numjobs)
            ));
        }
        if self.keys() > MAX_KEYS {
            return conflict(format!(
                "size = {size_bytes} bytes at bs = {} are {} chunks, which is more than {MAX_KEYS}; lower size or raise \
                 bs",
                self.sizes,
                self.keys()
            ));
        }
        let memory_bytes = self.memory_bytes();
        if memory_bytes > available_bytes / 2 {
            return conflict(format!(
                "the buffers would take {memory_bytes} bytes (numjobs = {numjobs}, iodepth = {iodepth}, bs = {}), more \
                 than half of the {available_bytes} bytes of memory that are available; lower one of them",
                self.sizes
            ));
        }
        Ok(())
    }

    /// Keys of all jobs.
    pub fn keys(&self) -> u64 {
        self.keys_per_job() * self.numjobs
    }

    /// Keys of one job.
    pub fn keys_per_job(&self) -> u64 {
        self.size_bytes / self.numjobs / self.sizes.mean_bytes().max(1)
    }

    /// Most batches that a job can have in flight.
    pub fn batches_in_flight(&self) -> u64 {
        (self.iodepth / self.batch).min(self.keys_per_job().div_ceil(self.batch))
    }

    /// Whether a key that is held is stored once more, with other bytes.
    pub(crate) fn stores_keys_again(&self) -> bool {
        self.rw.writes() && (self.rw.needs_fill() || self.runtime.is_some())
    }

    /// Bytes that the chunks take on disk.
    pub fn stored_bytes(&self) -> u64 {
        self.keys().saturating_mul(self.sizes.mean_allocated_bytes())
    }

    /// A capacity in which every SET of this plan finds room: the chunks, the second copy that a chunk has while it is
    /// replaced, their records, and some room for fragments and for files that grow in steps.
    pub fn capacity_bytes(&self) -> u64 {
        let in_flight_bytes =
            self.memory_bytes().min(self.keys().saturating_mul(self.sizes.longest_bytes()));
        let chunk_bytes = self.stored_bytes().saturating_add(in_flight_bytes.saturating_mul(2));
        (chunk_bytes / 8 * 9)
            .saturating_add(self.keys() * 512)
            .saturating_add(192 * MIB)
            .next_multiple_of(MIB)
    }

    /// Bytes of all buffers.
    fn memory_bytes(&self) -> u64 {
        let one = BatchMemory::size_bytes(self.batch, self.sizes.longest_bytes(), self.align_bytes);
        one.saturating_mul(self.batches_in_flight()).saturating_mul(self.numjobs)
    }
}

/// Memory that can be taken without pushing others out; no limit where the kernel does not tell.
fn available_memory_bytes() -> u64 {
    let lines = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = lines.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(options: &[(&str, &str)]) -> Result<Plan, PlanError> {
        let given = |(name, value): &(&str, &str)| {
            ((*name).to_owned(), OptionValue::Text((*value).to_owned()))
        };
        Plan::from_options(options.iter().map(given))
    }

    #[test]
    fn defaults() {
        let plan = plan(&[]).unwrap();
        assert_eq!((plan.rw, plan.keys(), plan.batch), (Pattern::Read, 1024, 8));
        assert_eq!((plan.iodepth, plan.numjobs, plan.runtime), (32, 1, None));
        assert!(!plan.verify && plan.align_bytes == 4096);
        assert!(plan.capacity_bytes() > 1 << 30);
    }

    #[test]
    fn the_default_batch_fits_the_iodepth() {
        assert_eq!(plan(&[("iodepth", "3")]).unwrap().batch, 3);
        assert_eq!(plan(&[("iodepth", "20"), ("batch", "6")]).unwrap().batches_in_flight(), 3);
    }

    #[test]
    fn wrong_values_name_value_and_range() {
        let wrong = [
            ("rw", "reed"),
            ("bs", "2049MiB"),
            ("iodepth", "0"),
            ("batch", "-1"),
            ("numjobs", "129"),
            ("size", "much"),
            ("runtime", "-1"),
            ("runtime", "NaN"),
            ("rwmixread", "101"),
            ("align", "3"),
            ("align", "8192"),
            ("verify", "maybe"),
            ("seed", "1.5"),
        ];
        for (name, value) in wrong {
            let message = plan(&[(name, value)]).unwrap_err().to_string();
            let option = BENCH_OPTIONS.iter().find(|option| option.name == name).unwrap();
            for part in [name, value, option.range] {
                assert!(message.contains(part), "{message}");
            }
        }
        let message = plan(&[("depth", "1")]).unwrap_err().to_string();
        assert!(message.contains("'depth'") && message.contains("iodepth"), "{message}");
    }

    #[test]
    fn what_does_not_go_together_is_told_with_a_way_out() {
        let wrong: &[(&[(&str, &str)], &str)] = &[
            (&[("batch", "64"), ("iodepth", "32")], "raise iodepth"),
            (&[("size", "4KiB")], "raise size"),
            (&[("size", "1PiB"), ("bs", "4KiB")], "lower size"),
            (&[("bs", "64MiB"), ("iodepth", "65536"), ("size", "100TiB")], "lower one of them"),
        ];
        for (options, way_out) in wrong {
            let message = plan(options).unwrap_err().to_string();
            assert!(message.contains(way_out), "{message}");
        }
    }
}
