//! The paths of a connector: one, all of them together, their engines, and how they close.

mod closing;
#[expect(clippy::module_inception, reason = "the one that the folder is about")]
mod volume;
mod volumes;

pub(crate) use closing::{close_all, close_started, on_thread};
pub use volume::Shutdown;
pub(crate) use volume::{Volume, VolumeContext};
pub(crate) use volumes::{Unavailable, Volumes, Watch};
