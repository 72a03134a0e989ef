//! From an index file to the map: what an open finds, keeps and drops.

mod ghost_records;
pub(super) mod opening;
mod recovery_scan;
pub(super) mod report;
mod restoring;
