//! Operations in the order in which they came, of which any can be taken out.

use std::collections::VecDeque;
use std::time::Instant;

pub(super) struct Queue<T> {
    /// `None` where an operation was taken out of the middle; the front is always there.
    pub(super) waiting: VecDeque<Option<T>>,
    /// Number of the front.
    pub(super) first: u64,
}

impl<T> Default for Queue<T> {
    /// Numbers begin where there is room before the first one, for what is put back.
    fn default() -> Self {
        Self { waiting: VecDeque::new(), first: 1 << 32 }
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&mut self, waiting: T) -> u64 {
        self.waiting.push_back(Some(waiting));
        self.first + self.waiting.len() as u64 - 1
    }

    /// Puts back what was taken from the front, or from before it.
    pub(super) fn push_front(&mut self, waiting: T) {
        self.waiting.push_front(Some(waiting));
        self.first -= 1;
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.waiting.front()?.as_ref()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut T> {
        self.waiting.front_mut()?.as_mut()
    }

    pub(super) fn at(&self, number: u64) -> Option<&T> {
        self.waiting.get(usize::try_from(number.checked_sub(self.first)?).ok()?)?.as_ref()
    }

    pub(super) fn take(&mut self, number: u64) -> Option<T> {
        let position = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let taken = self.waiting.get_mut(position)?.take();
        while matches!(self.waiting.front(), Some(None)) {
            self.waiting.pop_front();
            self.first += 1;
        }
        taken
    }

    pub(super) fn clear(&mut self) {
        self.first += self.waiting.len() as u64;
        self.waiting.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

pub(super) struct Waiting {
    pub(super) id: usize,
    pub(super) granted_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) since: Instant,
}
