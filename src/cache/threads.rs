//! The threads of a cache: maintenance and growth.

use std::sync::Arc;

use super::Cache;
use crate::base::sync::thread::{Builder, JoinHandle};
use crate::base::thread::join;

/// A running thread of a cache. Dropping it does not end it: that must do nothing in a fork, where the thread is not.
pub(crate) struct CacheThread {
    cache: Arc<Cache>,
    thread: JoinHandle<()>,
    order_end: fn(&Cache),
    /// What is lost if it ends in a panic, for the log.
    lost: &'static str,
}

impl CacheThread {
    pub(super) fn start(
        cache: &Arc<Cache>,
        name: &str,
        work: impl FnOnce(&Cache) + Send + 'static,
        order_end: fn(&Cache),
        lost: &'static str,
    ) -> std::io::Result<Self> {
        let cache = Arc::clone(cache);
        let thread = Builder::new().name(name.into()).spawn({
            let cache = Arc::clone(&cache);
            move || work(&cache)
        })?;
        Ok(Self { cache, thread, order_end, lost })
    }

    /// Ends it after what it is doing, for which a file system or a device may take any time.
    pub(crate) fn end(self) {
        (self.order_end)(&self.cache);
        join(self.thread, self.lost);
    }
}
