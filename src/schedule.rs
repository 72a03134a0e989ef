//! Which transfer next: GET before DELETE before SET, FIFO inside a class, bounded depth and bytes in flight.
//!
//! A pure data structure: no I/O, no clock, no threads. Operations are known by the id their owner gave them; what the
//! scheduler hands out are pieces of at most `max_io_bytes`, so that what comes later can overtake in the middle of a
//! long SET.

use std::collections::VecDeque;

/// What an operation is, in the order in which classes are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A load that a request waits for.
    Get,
    /// Space to be freed, so that SETs find it.
    Delete,
    /// A store in the background.
    Set,
}

/// Bounds of what is in the device at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most pieces in flight.
    pub queue_depth: usize,
    /// Longest piece.
    pub max_io_bytes: u64,
    /// Most bytes in flight; one piece goes whatever its size.
    pub max_in_flight_bytes: u64,
}

/// Permission to start one piece of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The operation, as named in [`Scheduler::push`].
    pub id: usize,
    /// Its class.
    pub class: Class,
    /// Where the piece starts inside the operation's bytes.
    pub offset_bytes: u64,
    /// Its length; 0 for an operation without bytes.
    pub length_bytes: u64,
}

struct Waiting {
    id: usize,
    granted_bytes: u64,
    total_bytes: u64,
}

/// Operations that wait for the device.
pub struct Scheduler {
    limits: Limits,
    queues: [VecDeque<Waiting>; 3],
    in_flight: usize,
    in_flight_bytes: u64,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits) -> Self {
        Self { limits, queues: Default::default(), in_flight: 0, in_flight_bytes: 0 }
    }

    /// Queues an operation of `total_bytes` at the end of its class.
    pub fn push(&mut self, class: Class, id: usize, total_bytes: u64) {
        self.queues[class as usize].push_back(Waiting { id, granted_bytes: 0, total_bytes });
    }

    /// The next piece that may start now. Each grant is to be returned by [`Self::finish`].
    pub fn next_grant(&mut self) -> Option<Grant> {
        let class = [Class::Get, Class::Delete, Class::Set]
            .into_iter()
            .find(|class| !self.queue(*class).is_empty())?;
        let limits = self.limits;
        let (in_flight, in_flight_bytes) = (self.in_flight, self.in_flight_bytes);
        let queue = &mut self.queues[class as usize];
        let front = queue.front_mut()?;
        let length_bytes = (front.total_bytes - front.granted_bytes).min(limits.max_io_bytes);
        let fits = in_flight < limits.queue_depth
            && in_flight_bytes + length_bytes <= limits.max_in_flight_bytes;
        if in_flight > 0 && !fits {
            return None;
        }
        let grant = Grant { id: front.id, class, offset_bytes: front.granted_bytes, length_bytes };
        front.granted_bytes += length_bytes;
        if front.granted_bytes == front.total_bytes {
            queue.pop_front();
        }
        self.in_flight += 1;
        self.in_flight_bytes += length_bytes;
        Some(grant)
    }

    /// A granted piece is done, whatever became of it.
    pub fn finish(&mut self, grant: Grant) {
        debug_assert!(self.in_flight > 0 && self.in_flight_bytes >= grant.length_bytes);
        self.in_flight -= 1;
        self.in_flight_bytes -= grant.length_bytes;
    }

    /// Takes back what is not granted yet of operation `id`, of which a piece was granted before.
    pub fn cancel_rest(&mut self, class: Class, id: usize) {
        // Pieces are granted in order, so an operation that is granted in part is the first of its class.
        let queue = &mut self.queues[class as usize];
        if queue.front().is_some_and(|waiting| waiting.id == id) {
            queue.pop_front();
        }
    }

    /// Empties the queues.
    pub fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
    }

    /// Whether nothing waits for a grant.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// Pieces granted and not finished.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn queue(&self, class: Class) -> &VecDeque<Waiting> {
        &self.queues[class as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { queue_depth: 4, max_io_bytes: 1000, max_in_flight_bytes: 2500 };

    #[test]
    fn classes_overtake_in_the_middle_of_a_long_set() {
        let mut scheduler = Scheduler::new(LIMITS);
        scheduler.push(Class::Set, 1, 2500);
        let first = scheduler.next_grant().unwrap();
        assert_eq!((first.id, first.offset_bytes, first.length_bytes), (1, 0, 1000));
        scheduler.push(Class::Delete, 2, 0);
        scheduler.push(Class::Get, 3, 10);
        assert_eq!(scheduler.next_grant().map(|grant| grant.id), Some(3));
        assert_eq!(scheduler.next_grant().map(|grant| grant.id), Some(2));
        let second = scheduler.next_grant().unwrap();
        assert_eq!((second.id, second.offset_bytes), (1, 1000));
        assert_eq!(scheduler.next_grant(), None, "the depth is used up");
    }

    #[test]
    fn a_piece_larger_than_the_bound_still_goes_alone() {
        let mut scheduler = Scheduler::new(Limits { max_in_flight_bytes: 10, ..LIMITS });
        scheduler.push(Class::Get, 1, 900);
        scheduler.push(Class::Get, 2, 1);
        let large = scheduler.next_grant().unwrap();
        assert_eq!(scheduler.next_grant(), None);
        scheduler.finish(large);
        assert_eq!(scheduler.next_grant().map(|grant| grant.id), Some(2));
    }

    fn class() -> impl Strategy<Value = Class> {
        prop_oneof![Just(Class::Get), Just(Class::Delete), Just(Class::Set)]
    }

    proptest! {
        /// Random pushes, grants and finishes: limits hold, pieces cover each operation once and in order, no lower
        /// class is served while a higher one waits, FIFO holds inside a class, nothing is lost.
        #[test]
        fn order_and_bounds(steps in prop::collection::vec((class(), 0_u64..5000, 0_usize..4), 1..200)) {
            let mut scheduler = Scheduler::new(LIMITS);
            let mut waiting: [VecDeque<(usize, u64)>; 3] = Default::default();
            let mut offsets: HashMap<usize, u64> = HashMap::new();
            let mut flying: VecDeque<Grant> = VecDeque::new();
            for (id, (class, bytes, takes)) in steps.into_iter().enumerate() {
                scheduler.push(class, id, bytes);
                waiting[class as usize].push_back((id, bytes));
                for _ in 0..takes {
                    let Some(grant) = scheduler.next_grant() else {
                        let Some(done) = flying.pop_front() else { break };
                        scheduler.finish(done);
                        continue;
                    };
                    for higher in waiting.iter().take(grant.class as usize) {
                        prop_assert!(higher.is_empty());
                    }
                    let front = waiting[grant.class as usize].front().copied();
                    let (front_id, total) = front.expect("granted from an empty class");
                    prop_assert_eq!(grant.id, front_id);
                    let offset = offsets.entry(grant.id).or_default();
                    prop_assert_eq!(grant.offset_bytes, *offset);
                    prop_assert!(grant.length_bytes <= LIMITS.max_io_bytes);
                    *offset += grant.length_bytes;
                    if *offset == total {
                        waiting[grant.class as usize].pop_front();
                    }
                    flying.push_back(grant);
                    prop_assert!(flying.len() <= LIMITS.queue_depth);
                    let bytes: u64 = flying.iter().map(|grant| grant.length_bytes).sum();
                    prop_assert!(flying.len() == 1 || bytes <= LIMITS.max_in_flight_bytes);
                }
            }
            loop {
                if let Some(grant) = scheduler.next_grant() {
                    *offsets.entry(grant.id).or_default() += grant.length_bytes;
                    flying.push_back(grant);
                } else if let Some(done) = flying.pop_front() {
                    scheduler.finish(done);
                } else {
                    break;
                }
            }
            prop_assert!(scheduler.is_empty() && scheduler.in_flight() == 0);
        }
    }
}
