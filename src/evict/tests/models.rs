//! The policies once more, from their definitions: vectors, gone through from end to end.

/// A policy over chunks that the test numbers.
pub(super) trait Model {
    fn insert(&mut self, chunk: u32, uses: u64);
    fn learn(&mut self, _was_used: bool, _ghosts: (u64, u64), _held: usize) {}
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
    fn insert(&mut self, chunk: u32, _uses: u64) {
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

/// LFU with ageing, or the adaptive rule, in eighths of a level.
pub(super) struct Aged {
    is_adaptive: bool,
    bonus: f32,
    chunks: Vec<Counted>,
    age: u64,
    time: u64,
}

impl Aged {
    pub(super) fn new(is_adaptive: bool) -> Self {
        Self { is_adaptive, bonus: 1.0, chunks: Vec::new(), age: 0, time: 0 }
    }

    fn add(&mut self, chunk: u32, uses: u64) {
        self.time += 1;
        let above = match (self.is_adaptive, uses) {
            (false, _) => 1 + uses.min(126),
            (true, 0) => (8.0 * self.bonus).round() as u64,
            (true, _) => (8.0 + 8.0 * (uses.min(65_535) as f64 + 1.0).log2()).round() as u64,
        };
        let (priority, time) = (self.age + above, self.time);
        self.chunks.push(Counted { chunk, uses, priority, time });
    }

    fn take_out(&mut self, chunk: u32) -> Counted {
        let place = self.chunks.iter().position(|one| one.chunk == chunk).unwrap();
        self.chunks.remove(place)
    }
}

impl Model for Aged {
    fn insert(&mut self, chunk: u32, uses: u64) {
        self.add(chunk, uses);
    }

    fn learn(&mut self, was_used: bool, (used, unused): (u64, u64), held: usize) {
        let (used, unused) = (used.max(1) as f32, unused.max(1) as f32);
        let (rarer, sign) = if was_used { (unused / used, -1.0) } else { (used / unused, 1.0) };
        let step = 1.0 / held.max(1) as f32 * rarer.clamp(1.0, 50.0);
        self.bonus = (self.bonus + sign * step).clamp(1.0 / 32.0, 3.0);
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
