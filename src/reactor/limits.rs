//! How much is in the device at a time: it follows from the drives of the path, within bounds for what trials find. Each reactor has
//! a part of it.

use super::bytes_bound::BytesBound;
use crate::config::Config;
use crate::schedule::Limits;
use crate::store::DRIVE_DEPTH;

/// Bytes in the device for each transfer: 48 MiB for one drive, which bounds bounce memory. Drives need less; virtual disks that
/// answer all that they have at once go up to it (48 MiB gave 2 to 4 % more than 32 MiB, 64 MiB nothing beyond).
const TRANSFER_BYTES: u64 = (48 << 20) / DRIVE_DEPTH as u64;

/// Most transfers in the devices of all paths together, unless each path has one drive: 384 MiB of them.
const MAX_DEPTH: usize = 8 * DRIVE_DEPTH;

/// The bytes in the device do not fall below so much of what its depth lets expect.
const LEAST_PART: u64 = 8;

/// Most of the capacity that SETs have in the device at a time, all reactors together: what is being written cannot make
/// room for others.
const SET_PART: u64 = 8;

/// Most transfers of loads, and as many of stores, in the device of one of `paths`, and most bytes of either.
pub(super) fn of_device(config: &Config, drives_depth: usize, paths: usize) -> (usize, u64) {
    let depth = drives_depth.clamp(1, (MAX_DEPTH / paths).max(DRIVE_DEPTH));
    let tuning = &config.tuning;
    let in_flight_bytes = tuning.in_flight_bytes.unwrap_or(depth as u64 * TRANSFER_BYTES);
    (tuning.queue_depth.unwrap_or(depth), in_flight_bytes)
}

/// What decides the bytes in the device, from those that follow from its depth on; `None` where they stay what they are.
///
/// With more bytes than the longest pieces have that the device takes at a time, transfers are the bound. With less than an eighth of
/// what is expected, chunks of 48 KiB would not reach the depth that hides the latency of a drive; and each reactor has a piece in
/// the device whatever its part is.
pub(super) fn bytes_bound(
    config: &Config,
    (queue_depth, first_bytes): (usize, u64),
) -> Option<BytesBound> {
    let tuning = &config.tuning;
    let is_tuned = tuning.in_flight_bytes.is_some()
        || tuning.set_in_flight_bytes.is_some()
        || tuning.queue_depth.is_some();
    let pieces_bytes = |pieces: usize| pieces as u64 * tuning.max_io_bytes;
    let most_bytes = pieces_bytes(queue_depth);
    let least_bytes = (first_bytes / LEAST_PART).max(pieces_bytes(config.reactors().1));
    // Turns of a simulation take no time.
    (!is_tuned && !config.works_inline && least_bytes < first_bytes && first_bytes < most_bytes)
        .then(|| BytesBound::new(first_bytes, least_bytes, most_bytes))
}

/// The part of one of `reactors`.
pub(super) fn of_reactor(
    config: &Config,
    (queue_depth, in_flight_bytes): (usize, u64),
    reactors: usize,
) -> Limits {
    let tuning = &config.tuning;
    let share = |bytes: u64| (bytes / reactors as u64).max(1);
    let sets = |tuned: Option<u64>, derived: u64| {
        share(tuned.unwrap_or(derived).min(config.capacity_bytes() / SET_PART))
    };
    Limits {
        queue_depth: (queue_depth / reactors).max(1),
        max_io_bytes: tuning.max_io_bytes,
        max_in_flight_bytes: share(in_flight_bytes),
        // Of 48 MiB it is 32, which keep a drive busy with stores alone, and 2, less than 1 ms of its time: four pieces keep
        // it busy too, and a load waits for them.
        set_in_flight_bytes: sets(tuning.set_in_flight_bytes, in_flight_bytes * 2 / 3),
        set_in_flight_between_loads_bytes: sets(
            tuning.set_in_flight_between_loads_bytes,
            in_flight_bytes / 24,
        ),
        // 0 has a meaning of its own, also for each of them.
        set_in_flight_while_loading_bytes: tuning.set_in_flight_while_loading_bytes
            / reactors as u64,
        set_max_wait: tuning.set_max_wait,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            assert_eq!(of_device(&config(), drives_depth, paths), expected);
        }
        let mut config = config();
        (config.tuning.queue_depth, config.tuning.in_flight_bytes) = (Some(3), Some(MIB));
        assert_eq!(of_device(&config, 1024, 1), (3, MIB));
    }

    #[test]
    fn bytes_follow_trials_unless_they_are_set_or_there_is_nothing_to_find() {
        let is_tried = |change: fn(&mut Config), device| {
            let mut config = config();
            config.io_threads = Some(1);
            change(&mut config);
            bytes_bound(&config, device).is_some()
        };
        assert!(is_tried(|_| (), (128, 48 * MIB)));
        assert!(!is_tried(|config| config.works_inline = true, (128, 48 * MIB)));
        assert!(!is_tried(|config| config.tuning.in_flight_bytes = Some(MIB), (128, 48 * MIB)));
        assert!(!is_tried(|config| config.tuning.queue_depth = Some(128), (128, 48 * MIB)));
        assert!(!is_tried(|config| config.tuning.set_in_flight_bytes = Some(1), (128, 48 * MIB)));
        // Transfers are the bound.
        assert!(!is_tried(|config| config.tuning.max_io_bytes = 64 << 10, (128, 48 * MIB)));
        // Each reactor has a piece.
        assert!(!is_tried(|_| (), (1, 3 << 17)));
        assert!(!is_tried(|config| config.io_threads = Some(24), (32, 12 * MIB)));
    }

    #[test]
    fn reactors_share_the_bounds_of_the_device() {
        let limits = of_reactor(&config(), (128, 48 * MIB), 1);
        assert_eq!(limits.set_in_flight_bytes, 32 * MIB);
        assert_eq!(limits.set_in_flight_between_loads_bytes, 2 * MIB);

        let mut config = config();
        config.tuning.max_io_bytes = 123 << 10;
        config.tuning.set_in_flight_bytes = Some(24 * MIB);
        config.tuning.set_in_flight_between_loads_bytes = Some(12 * MIB);
        config.tuning.set_in_flight_while_loading_bytes = 4 * MIB;
        config.tuning.set_max_wait = Duration::from_millis(77);
        let limits = of_reactor(&config, (40, 48 * MIB), 4);
        assert_eq!((limits.queue_depth, limits.max_io_bytes), (10, 123 << 10));
        assert_eq!(limits.max_in_flight_bytes, 12 * MIB);
        assert_eq!(limits.set_in_flight_bytes, 6 * MIB);
        assert_eq!(limits.set_in_flight_between_loads_bytes, 3 * MIB);
        assert_eq!(limits.set_in_flight_while_loading_bytes, MIB);
        assert_eq!(limits.set_max_wait, Duration::from_millis(77));

        config.tuning.set_in_flight_while_loading_bytes = 0;
        let limits = of_reactor(&config, (3, MIB), 4);
        assert_eq!(limits.queue_depth, 1, "each has something to do");
        assert_eq!(limits.set_in_flight_while_loading_bytes, 0, "SETs wait for loads");
    }
}
