//! How a store was left when it was closed.

/// How a store was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The clean flag is on disk: the next open needs no deep check.
    pub clean: bool,
    /// Operations were dropped at the deadline.
    pub partial_flush: bool,
    /// How many.
    pub abandoned: u64,
}

impl Shutdown {
    /// How several volumes were left, as if they were one.
    pub(super) fn of_all(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self { clean: true, partial_flush: false, abandoned: 0 }, |sum, one| Self {
            clean: sum.clean && one.clean,
            partial_flush: sum.partial_flush || one.partial_flush,
            abandoned: sum.abandoned + one.abandoned,
        })
    }
}

impl std::fmt::Display for Shutdown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let order = if self.clean { "closed in order" } else { "closed, but not in order" };
        write!(formatter, "{order}, {} operations abandoned", self.abandoned)
    }
}
