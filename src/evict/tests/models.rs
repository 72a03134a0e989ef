//! The policies once more, from their definitions: vectors, gone through from end to end.

/// A policy over chunks that the test numbers.
pub(super) trait Model {
    fn insert(&mut self, chunk: u32, blocks: u64, returns: bool);
    fn restore(&mut self, chunk: u32, blocks: u64, uses: u64);
    fn touch(&mut self, chunk: u32);
    fn remove(&mut self, chunk: u32);
    /// Up to `count` chunks in the order in which they would go.
    fn coldest(&mut self, count: usize) -> Vec<u32>;
}

/// LRU, FIFO and MRU: one order.
pub(super) struct OneOrder {
    by_use: bool,
    last_goes_first: bool,
    chunks: Vec<u32>,
}

impl OneOrder {
    pub(super) fn new(by_use: bool, last_goes_first: bool) -> Self {
        Self { by_use, last_goes_first, chunks: Vec::new() }
    }
}

impl Model for OneOrder {
    fn insert(&mut self, chunk: u32, _blocks: u64, _returns: bool) {
        self.chunks.push(chunk);
    }

    fn restore(&mut self, chunk: u32, _blocks: u64, _uses: u64) {
        self.chunks.push(chunk);
    }

    fn touch(&mut self, chunk: u32) {
        if self.by_use {
            self.remove(chunk);
            self.chunks.push(chunk);
        }
    }

    fn remove(&mut self, chunk: u32) {
        self.chunks.retain(|one| *one != chunk);
    }

    fn coldest(&mut self, count: usize) -> Vec<u32> {
        let mut order = self.chunks.clone();
        if self.last_goes_first {
            order.reverse();
        }
        order.truncate(count);
        order
    }
}

struct Counted {
    chunk: u32,
    uses: u64,
    priority: u64,
    /// When it was used last.
    time: u64,
}

/// LFU with ageing.
#[derive(Default)]
pub(super) struct Aged {
    chunks: Vec<Counted>,
    age: u64,
    time: u64,
}

impl Aged {
    fn add(&mut self, chunk: u32, uses: u64) {
        self.time += 1;
        let (priority, time) = (self.age + 1 + uses.min(126), self.time);
        self.chunks.push(Counted { chunk, uses, priority, time });
    }

    fn take_out(&mut self, chunk: u32) -> Counted {
        let place = self.chunks.iter().position(|one| one.chunk == chunk).unwrap();
        self.chunks.remove(place)
    }
}

impl Model for Aged {
    fn insert(&mut self, chunk: u32, _blocks: u64, _returns: bool) {
        self.add(chunk, 0);
    }

    fn restore(&mut self, chunk: u32, _blocks: u64, uses: u64) {
        self.add(chunk, uses);
    }

    fn touch(&mut self, chunk: u32) {
        let used = self.take_out(chunk);
        self.add(chunk, used.uses + 1);
    }

    fn remove(&mut self, chunk: u32) {
        let gone = self.take_out(chunk);
        if self.chunks.iter().all(|one| one.priority >= gone.priority) {
            self.age = gone.priority;
        }
    }

    fn coldest(&mut self, count: usize) -> Vec<u32> {
        self.chunks.sort_by_key(|one| (one.priority, one.time));
        self.chunks.iter().take(count).map(|one| one.chunk).collect()
    }
}

#[derive(Clone, Copy)]
struct Queued {
    chunk: u32,
    blocks: u64,
    chances: u64,
}

/// S3-FIFO. It evicts in earnest, and puts back what it was only asked about.
#[derive(Default)]
pub(super) struct Queues {
    small: Vec<Queued>,
    main: Vec<Queued>,
}

impl Queues {
    fn small_is_over_a_tenth(&self) -> bool {
        let blocks = |queue: &[Queued]| queue.iter().map(|one| one.blocks).sum::<u64>();
        10 * blocks(&self.small) > blocks(&self.small) + blocks(&self.main)
    }

    /// Evicts one, and says whether from the small queue.
    fn evict(&mut self) -> Option<(bool, Queued)> {
        loop {
            if !self.small.is_empty() && (self.main.is_empty() || self.small_is_over_a_tenth()) {
                let first = self.small.remove(0);
                if first.chances == 0 {
                    return Some((true, first));
                }
                self.main.push(Queued { chances: 0, ..first });
            } else if !self.main.is_empty() {
                let first = self.main.remove(0);
                if first.chances == 0 {
                    return Some((false, first));
                }
                self.main.push(Queued { chances: first.chances - 1, ..first });
            } else {
                return None;
            }
        }
    }
}

impl Model for Queues {
    fn insert(&mut self, chunk: u32, blocks: u64, returns: bool) {
        let queue = if returns { &mut self.main } else { &mut self.small };
        queue.push(Queued { chunk, blocks, chances: 0 });
    }

    fn restore(&mut self, chunk: u32, blocks: u64, uses: u64) {
        let queue = if uses > 0 { &mut self.main } else { &mut self.small };
        queue.push(Queued { chunk, blocks, chances: uses.min(3) });
        while self.small.len() > 1 && self.small_is_over_a_tenth() {
            let first = self.small.remove(0);
            self.main.push(first);
        }
    }

    fn touch(&mut self, chunk: u32) {
        for one in self.small.iter_mut().chain(&mut self.main) {
            if one.chunk == chunk {
                one.chances = (one.chances + 1).min(3);
            }
        }
    }

    fn remove(&mut self, chunk: u32) {
        self.small.retain(|one| one.chunk != chunk);
        self.main.retain(|one| one.chunk != chunk);
    }

    fn coldest(&mut self, count: usize) -> Vec<u32> {
        let gone: Vec<(bool, Queued)> = std::iter::from_fn(|| self.evict()).take(count).collect();
        for (from_small, one) in gone.iter().rev() {
            let queue = if *from_small { &mut self.small } else { &mut self.main };
            queue.insert(0, *one);
        }
        gone.into_iter().map(|(_, one)| one.chunk).collect()
    }
}
