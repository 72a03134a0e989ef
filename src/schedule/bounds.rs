//! What may be in the device at a time, and what is there.

use std::time::Duration;

/// Bounds of what is in the device at a time, with what others have there. Whatever they say, one piece of a class goes if no other
/// piece of this scheduler is in flight: its end is what the next one waits for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most pieces of one class in flight: SETs leave GETs their room.
    pub queue_depth: usize,
    /// Longest piece.
    pub max_io_bytes: u64,
    /// Most bytes of one class in flight.
    pub max_in_flight_bytes: u64,
    /// Most bytes of SETs in flight while nothing is being loaded, and has not been for 250 ms.
    pub set_in_flight_bytes: u64,
    /// The same between loads that follow each other within that time.
    pub set_in_flight_between_loads_bytes: u64,
    /// The same while GETs wait or are in flight. With less than a piece SETs wait for the loads to end.
    pub set_in_flight_while_loading_bytes: u64,
    /// After this time in the queue a SET goes ahead of loads, as long as no more than an eighth of what is in the device is
    /// such SETs', or one piece.
    pub set_max_wait: Duration,
}

/// What the device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Transfers.
    pub pieces: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl InFlight {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { pieces: self.pieces + other.pieces, bytes: self.bytes + other.bytes }
    }
}

/// What others do with the same device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elsewhere {
    /// Whether GETs wait there, or are in flight.
    pub are_loads_present: bool,
    /// Of GETs.
    pub loads: InFlight,
    /// Of SETs.
    pub sets: InFlight,
}
