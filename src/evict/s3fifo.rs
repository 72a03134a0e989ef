//! S3-FIFO: a small queue for new chunks, which evicts those that are not used soon, and a main queue for the others. A chunk
//! that returns goes to the main queue at once: the index remembered its key (the ghost queue). Yang et al., "FIFO queues are all
//! you need for cache eviction", SOSP 2023.

use super::lists::{List, NodeId, Nodes};
use super::policy::Policy;

const SMALL: u8 = 0;
const MAIN: u8 = 1;

/// The small queue has one block in so many.
pub(super) const SMALL_SHARE: u64 = 10;
/// More uses than these do not count.
const MOST_CHANCES: u8 = 3;
/// Chunks that get another chance at a time: others wait for the lock.
const MOST_PASSED: usize = 1024;

pub(super) struct S3Fifo {
    pub(super) small: List,
    pub(super) main: List,
    small_share: u64,
}

/// What is left of a queue, without the chunks that were found to go.
struct Remaining {
    next: Option<NodeId>,
    blocks: u64,
}

impl Remaining {
    fn of(queue: &List) -> Self {
        Self { next: queue.coldest, blocks: queue.blocks }
    }

    fn go_past(&mut self, nodes: &Nodes, id: NodeId) {
        self.next = List::after(nodes, id);
        self.blocks -= u64::from(nodes[id].extent.blocks);
    }
}

impl S3Fifo {
    /// No chunks; the small queue is to have one block in `small_share`.
    pub(super) fn new(small_share: u64) -> Self {
        Self { small: List::new(SMALL), main: List::new(MAIN), small_share }
    }

    /// Whether the small queue has more than its share.
    fn is_over_share(&self, small_blocks: u64, main_blocks: u64) -> bool {
        small_blocks * self.small_share > small_blocks + main_blocks
    }

    fn promote(&mut self, nodes: &mut Nodes, id: NodeId) {
        self.small.remove(nodes, id);
        self.main.push_hot(nodes, id);
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, nodes: &mut Nodes, id: NodeId, returns: bool) {
        nodes[id].chances = 0;
        let queue = if returns { &mut self.main } else { &mut self.small };
        queue.push_hot(nodes, id);
    }

    fn restore(&mut self, nodes: &mut Nodes, id: NodeId) {
        let uses = nodes[id].uses.min(MOST_CHANCES.into());
        nodes[id].chances = uses as u8;
        let queue = if uses > 0 { &mut self.main } else { &mut self.small };
        queue.push_hot(nodes, id);
        // The latest of those that were not used are the small queue. The older ones go when the main queue comes to them.
        while let Some(coldest) = self.small.coldest
            && self.small.len > 1
            && self.is_over_share(self.small.blocks, self.main.blocks)
        {
            self.promote(nodes, coldest);
        }
    }

    fn touch(&mut self, nodes: &mut Nodes, id: NodeId) {
        let node = &mut nodes[id];
        node.count_use();
        node.chances = (node.chances + 1).min(MOST_CHANCES);
    }

    fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        let queue = if nodes[id].list == SMALL { &mut self.small } else { &mut self.main };
        queue.remove(nodes, id);
    }

    fn coldest(&mut self, nodes: &mut Nodes, count: usize, found: &mut Vec<NodeId>) {
        // What is found counts as gone, so that the order is that of chunks that go one by one. It ends: each turn finds a
        // chunk or takes chances away.
        let (mut small, mut main) = (Remaining::of(&self.small), Remaining::of(&self.main));
        let enough = found.len().saturating_add(count);
        let mut chances_left = MOST_PASSED;
        while found.len() < enough && chances_left > 0 {
            let (id, is_small) = match (small.next, main.next) {
                (Some(id), None) => (id, true),
                (Some(id), Some(_)) if self.is_over_share(small.blocks, main.blocks) => (id, true),
                (_, Some(id)) => (id, false),
                (None, None) => return,
            };
            let chances = nodes[id].chances;
            let queue = if is_small { &mut small } else { &mut main };
            queue.go_past(nodes, id);
            if chances == 0 {
                found.push(id);
                continue;
            }
            chances_left -= 1;
            if is_small {
                nodes[id].chances = 0;
                self.promote(nodes, id);
            } else {
                nodes[id].chances -= 1;
                self.main.remove(nodes, id);
                self.main.push_hot(nodes, id);
            }
            main.next = main.next.or(Some(id));
            main.blocks += u64::from(nodes[id].extent.blocks);
        }
    }

    fn rank(&self, nodes: &Nodes, id: NodeId) -> u8 {
        let node = &nodes[id];
        let (queue, unused) = if node.list == SMALL { (&self.small, 0) } else { (&self.main, 1) };
        let quarter = match node.chances {
            0 => unused,
            1 => 2,
            _ => 3,
        };
        quarter * 64 + queue.position(nodes, id) / 4
    }
}
