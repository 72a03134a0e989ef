//! What is said of a store that was closed.

/// How a store was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The clean flag is on disk: the next open needs no deep check.
    pub clean: bool,
    /// Operations were dropped at the deadline.
    pub partial_flush: bool,
    /// How many; if it `timed_out` also those that are not answered yet.
    pub abandoned: u64,
    /// The kernel, or a thread in it, still has memory of callers: it must stay where it is.
    pub memory_held: bool,
    /// The time was over first: threads go on with the rest, and keep the store locked until then.
    pub timed_out: bool,
    /// Stores and removals, at most, that are not known to be durable: power loss may undo them. In `persistent` those whose
    /// records are not in the index file.
    pub not_durable: u64,
}

impl Shutdown {
    /// How several volumes were left, as if they were one.
    pub(crate) fn of_all(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self { clean: true, ..Self::default() }, |sum, one| Self {
            clean: sum.clean && one.clean,
            partial_flush: sum.partial_flush || one.partial_flush,
            abandoned: sum.abandoned + one.abandoned,
            memory_held: sum.memory_held || one.memory_held,
            timed_out: sum.timed_out || one.timed_out,
            not_durable: sum.not_durable + one.not_durable,
        })
    }
}

impl std::fmt::Display for Shutdown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let order = match (self.clean, self.timed_out) {
            (true, _) => "closed in order",
            (false, false) => "closed, but not in order",
            (false, true) => "not closed yet",
        };
        write!(formatter, "{order}, {} operations abandoned", self.abandoned)?;
        match self.not_durable {
            0 => Ok(()),
            count => write!(formatter, ", {count} changes not durable"),
        }
    }
}
