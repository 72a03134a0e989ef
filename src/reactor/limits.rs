//! How much is in the device at a time, which follows from the drives of the path and stays what it is while the store is open; and how
//! much a turn of a reactor does.

use crate::config::Config;
use crate::schedule::Limits;
use crate::store::DRIVE_DEPTH;

/// Bytes that are summed up between two looks at the device: a tenth of a millisecond at most, in which a device has enough
/// with what it was given before.
pub(super) const CHECKSUM_TURN_BYTES: u64 = 1 << 20;

/// Bytes of pieces that are begun in one turn: what is left is for other reactors, if this one turns out to be short of processor time.
pub(super) const BEGUN_TURN_BYTES: u64 = 1 << 20;

/// Operations of one kind that a turn takes up, or answers without a transfer: some tenth of a millisecond.
pub(super) const MOST_IN_A_TURN: usize = 256;

/// Bytes in the device for each transfer: 48 MiB for one drive, which bounds bounce memory. Drives need less; virtual disks that
/// answer all that they have at once go up to it (48 MiB gave 2 to 4 % more than 32 MiB, 64 MiB nothing beyond).
const TRANSFER_BYTES: u64 = (48 << 20) / DRIVE_DEPTH as u64;

/// Most transfers in the devices of all paths together, unless each path has one drive: 384 MiB of them.
const MAX_DEPTH: usize = 8 * DRIVE_DEPTH;

/// Most of the capacity that SETs have in the device at a time, all reactors together: what is being written cannot make
/// room for others.
const SET_PART: u64 = 8;

/// Bounds of the device of one of `paths`, all reactors of it together.
pub(super) fn of_device(config: &Config, drives_depth: usize, paths: usize) -> Limits {
    let tuning = &config.tuning;
    let depth = drives_depth.clamp(1, (MAX_DEPTH / paths).max(DRIVE_DEPTH));
    let in_flight_bytes = tuning.in_flight_bytes.unwrap_or(depth as u64 * TRANSFER_BYTES);
    let sets = |tuned: Option<u64>, derived: u64| {
        tuned.unwrap_or(derived).min(config.capacity_bytes() / SET_PART).max(1)
    };
    Limits {
        queue_depth: tuning.queue_depth.unwrap_or(depth).max(1),
        max_io_bytes: tuning.max_io_bytes,
        max_in_flight_bytes: in_flight_bytes.max(1),
        // Of 48 MiB it is 32, which keep a drive busy with stores alone, and 2, less than 1 ms of its time: four pieces keep
        // it busy too, and a load waits for them.
        set_in_flight_bytes: sets(tuning.set_in_flight_bytes, in_flight_bytes * 2 / 3),
        set_in_flight_between_loads_bytes: sets(
            tuning.set_in_flight_between_loads_bytes,
            in_flight_bytes / 24,
        ),
        set_in_flight_while_loading_bytes: tuning.set_in_flight_while_loading_bytes,
        set_max_wait: tuning.set_max_wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config() -> Config {
        Config::new("/somewhere", 1 << 30).unwrap()
    }

    #[test]
    fn more_drives_get_more_and_many_paths_share_it() {
        for (drives_depth, paths, expected) in [
            (128, 1, (128, 48 * MIB)),
            (32, 1, (32, 12 * MIB)),
            (4 * 128, 1, (512, 192 * MIB)),
            (1024, 1, (1024, 384 * MIB)),
            (1024, 2, (512, 192 * MIB)),
            (1024, 30, (128, 48 * MIB)),
            (128, 30, (128, 48 * MIB)),
        ] {
            let limits = of_device(&config(), drives_depth, paths);
            assert_eq!((limits.queue_depth, limits.max_in_flight_bytes), expected);
        }
        let limits = of_device(&config(), 128, 1);
        assert_eq!(limits.set_in_flight_bytes, 32 * MIB);
        assert_eq!(limits.set_in_flight_between_loads_bytes, 2 * MIB);
        assert_eq!(limits.set_in_flight_while_loading_bytes, 0, "SETs wait for loads");
        let mut config = config();
        (config.tuning.queue_depth, config.tuning.in_flight_bytes) = (Some(3), Some(MIB));
        config.tuning.set_in_flight_bytes = Some(1 << 40);
        let limits = of_device(&config, 1024, 1);
        assert_eq!((limits.queue_depth, limits.max_in_flight_bytes), (3, MIB));
        assert_eq!(limits.set_in_flight_bytes, (1 << 30) / SET_PART, "a part of the capacity");
    }
}
