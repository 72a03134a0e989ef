//! SETs that wait until the chunks that are being written are stored, and can go for them, or give their room back.
//!
//! They are not in the scheduler meanwhile: it goes on with others, also with writes that are tried again and have the room.

use std::collections::VecDeque;

use crate::cache::RoomOf;

/// In the order in which they came, by whose room they wait for.
#[derive(Default)]
pub(super) struct RoomQueue {
    pub(super) queues: Vec<(RoomOf, VecDeque<usize>)>,
    /// The changes in what is being written that the first ones have seen.
    pub(super) seen_changes: u64,
}

impl RoomQueue {
    pub(super) fn of(&mut self, room: RoomOf) -> Option<&mut VecDeque<usize>> {
        self.queues.iter_mut().find(|(of, _)| *of == room).map(|(_, queue)| queue)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|(_, queue)| queue.is_empty())
    }

    /// The room that others wait for, of which a SET of this namespace needs some.
    pub(super) fn ahead_of(&self, namespace: u64) -> Option<RoomOf> {
        let is_ahead = |of: RoomOf| of.is_none_or(|quota_of| quota_of == namespace);
        let mut queues = self.queues.iter();
        queues.find(|(of, queue)| is_ahead(*of) && !queue.is_empty()).map(|(of, _)| *of)
    }

    /// Queues one that has seen so many `changes`: in front if it was the first one before, else behind all.
    pub(super) fn push(&mut self, id: usize, room: RoomOf, changes: u64, was_first: bool) {
        if self.is_empty() {
            self.seen_changes = changes;
        }
        if self.of(room).is_none() {
            self.queues.push((room, VecDeque::new()));
        }
        if let Some(queue) = self.of(room) {
            if was_first { queue.push_front(id) } else { queue.push_back(id) }
        }
    }
}
