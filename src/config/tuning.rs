//! What users do not set: constants, and values that follow from the device. Tests and benchmarks may change them.

use std::time::Duration;

/// Settings that are no options. They carry no promise and change without notice.
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
            flush_period: Duration::from_secs(1),
            open_threads: None,
        }
    }
}
