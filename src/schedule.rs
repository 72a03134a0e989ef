//! Which transfer next: GET before DELETE before SET, FIFO inside a class, bounded depth and bytes in flight.
//!
//! A pure data structure: no I/O, no clock, no threads. Operations are known by the id their owner gave them; what the
//! scheduler hands out are pieces of at most `max_io_bytes`, so that what comes later can overtake in the middle of a
//! long SET.
//!
//! What is in the device already cannot be overtaken any more. So SETs have a budget of bytes in flight of their own,
//! a smaller one for a while after a load, as loads come in bursts, and the smallest while loads wait or are under way.
//! A SET that has waited for `set_max_wait` is due: it goes ahead of loads, so that endless loads cannot starve it. Of what is in
//! the device an eighth is then due SETs', or one piece.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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

/// Where something was loaded, more is expected for this long.
pub(crate) const LOADS_RECUR_WITHIN: Duration = Duration::from_millis(250);

/// SETs that are due may have as many bytes in the device as loads have there, divided by this: an eighth of all together.
const LOADS_PER_DUE_SET: u64 = 7;

/// Bounds of what is in the device at a time, with what others have there. Whatever they say, one piece of a class goes if no other
/// piece of this scheduler is in flight: its end is what the next one waits for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most pieces of one class in flight: SETs leave GETs their room.
    pub queue_depth: usize,
    /// Longest piece.
    pub max_io_bytes: u64,
    /// Most bytes of one class in flight.
    pub max_in_flight_bytes: u64,
    /// Most bytes of SETs in flight while nothing is being loaded, and has not been for 250 ms.
    pub set_in_flight_bytes: u64,
    /// The same between loads that follow each other within that time.
    pub set_in_flight_between_loads_bytes: u64,
    /// The same while GETs wait or are in flight. With less than a piece SETs wait for the loads to end.
    pub set_in_flight_while_loading_bytes: u64,
    /// After this time in the queue a SET goes ahead of loads, as long as no more than an eighth of what is in the device is
    /// such SETs', or one piece.
    pub set_max_wait: Duration,
}

/// What the device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Transfers.
    pub pieces: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl InFlight {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { pieces: self.pieces + other.pieces, bytes: self.bytes + other.bytes }
    }
}

/// What others do with the same device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elsewhere {
    /// Whether GETs wait there, or are in flight.
    pub are_loads_present: bool,
    /// Of GETs.
    pub loads: InFlight,
    /// Of SETs.
    pub sets: InFlight,
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

/// Where an operation waits. Once it does not wait there any more, it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    class: Class,
    number: u64,
    /// A number that was put back in front is given twice.
    id: usize,
}

/// Operations that wait for the device.
pub struct Scheduler {
    limits: Limits,
    /// By class.
    queues: [Queue; 3],
    in_flight: [InFlight; 3],
    last_load: Option<Instant>,
    /// Whether a load ended since the last grant was asked for.
    load_ended: bool,
    /// No SET gets a grant.
    holds_sets: bool,
    /// GETs with lower numbers have started, or were late.
    late_until: u64,
}

/// Operations in the order in which they came, of which any can be taken out.
struct Queue {
    /// `None` where an operation was taken out of the middle; the front is always there.
    waiting: VecDeque<Option<Waiting>>,
    /// Number of the front.
    first: u64,
}

struct Waiting {
    id: usize,
    granted_bytes: u64,
    total_bytes: u64,
    since: Instant,
}

impl Default for Queue {
    /// Numbers begin where there is room before the first one, for what is put back.
    fn default() -> Self {
        Self { waiting: VecDeque::new(), first: 1 << 32 }
    }
}

impl Queue {
    fn front(&self) -> Option<&Waiting> {
        self.waiting.front()?.as_ref()
    }

    fn place_of(&mut self, number: u64) -> Option<&mut Option<Waiting>> {
        self.waiting.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let taken = self.place_of(number)?.take();
        while matches!(self.waiting.front(), Some(None)) {
            self.waiting.pop_front();
            self.first += 1;
        }
        taken
    }
}

/// What SETs have beside the loads that there are now.
#[derive(Clone, Copy)]
struct SetBudget {
    bytes: u64,
    /// Whatever its length, one piece goes if no other SET is in flight.
    lets_one_go: bool,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            queues: Default::default(),
            in_flight: Default::default(),
            last_load: None,
            load_ended: false,
            holds_sets: false,
            late_until: 0,
        }
    }

    /// Gives no grants to SETs, or gives them again.
    pub fn hold_sets(&mut self, holds: bool) {
        self.holds_sets = holds;
    }

    /// Queues an operation of `total_bytes`, submitted at `since`, at the end of its class.
    pub fn push(&mut self, class: Class, id: usize, total_bytes: u64, since: Instant) -> Ticket {
        let queue = &mut self.queues[class as usize];
        let number = queue.first + queue.waiting.len() as u64;
        queue.waiting.push_back(Some(Waiting { id, granted_bytes: 0, total_bytes, since }));
        Ticket { class, number, id }
    }

    /// Queues a SET in front of all others: one that waited elsewhere, or whose first piece is not begun after all.
    pub fn push_first(&mut self, id: usize, total_bytes: u64, since: Instant) -> Ticket {
        let queue = &mut self.queues[Class::Set as usize];
        queue.waiting.push_front(Some(Waiting { id, granted_bytes: 0, total_bytes, since }));
        queue.first -= 1;
        Ticket { class: Class::Set, number: queue.first, id }
    }

    /// The next piece that may start now. Each grant is to be returned by [`Self::finish`].
    pub fn next_grant(&mut self, now: Instant, elsewhere: &Elsewhere) -> Option<Grant> {
        let budget = self.set_budget(now, elsewhere.are_loads_present);
        let is_due = self.set_is_due().is_some_and(|due| due <= now);
        let class = self.next_class(budget, is_due, elsewhere)?;
        let length_bytes = self.next_length(class)?;
        let queue = &mut self.queues[class as usize];
        let front = queue.waiting.front_mut()?.as_mut()?;
        let (id, offset_bytes) = (front.id, front.granted_bytes);
        front.granted_bytes += length_bytes;
        if front.granted_bytes == front.total_bytes {
            queue.take(queue.first);
        }
        let in_flight = &mut self.in_flight[class as usize];
        in_flight.pieces += 1;
        in_flight.bytes += length_bytes;
        Some(Grant { id, class, offset_bytes, length_bytes })
    }

    /// The class whose front may start its next piece.
    fn next_class(&self, budget: SetBudget, is_due: bool, elsewhere: &Elsewhere) -> Option<Class> {
        let can_go = |class: &Class| {
            self.next_length(*class).is_some_and(|length_bytes| {
                self.device_fits(*class, length_bytes, elsewhere)
                    && (*class != Class::Set
                        || !self.holds_sets
                            && self.set_fits(length_bytes, budget, is_due, elsewhere))
            })
        };
        if is_due && can_go(&Class::Set) {
            return Some(Class::Set);
        }
        // Freeing space asks nothing of the device: loads that fill it must not hold it up.
        let first = [Class::Get, Class::Delete].into_iter().find(can_go);
        let may_follow = !is_due && self.is_empty_of(Class::Get) && can_go(&Class::Set);
        first.or_else(|| may_follow.then_some(Class::Set))
    }

    /// What is in flight of GETs, and of SETs.
    pub(crate) fn in_flight(&self) -> [InFlight; 2] {
        [Class::Get, Class::Set].map(|class| self.in_flight[class as usize])
    }

    /// Whether nothing of this class waits for a grant.
    pub(crate) fn is_empty_of(&self, class: Class) -> bool {
        self.queues[class as usize].waiting.is_empty()
    }

    /// Whether the device takes a piece beside what it has of the same class.
    fn device_fits(&self, class: Class, length_bytes: u64, elsewhere: &Elsewhere) -> bool {
        let own = self.in_flight[class as usize];
        let others = match class {
            Class::Set => elsewhere.sets,
            Class::Get => elsewhere.loads,
            Class::Delete => return true,
        };
        let in_flight = own.plus(others);
        own.pieces == 0
            || in_flight.pieces < self.limits.queue_depth
                && in_flight.bytes + length_bytes <= self.limits.max_in_flight_bytes
    }

    /// Length of the next piece of a class.
    fn next_length(&self, class: Class) -> Option<u64> {
        let front = self.queues[class as usize].front()?;
        Some((front.total_bytes - front.granted_bytes).min(self.limits.max_io_bytes))
    }

    fn set_budget(&mut self, now: Instant, loads_elsewhere: bool) -> SetBudget {
        // Nobody may have looked while a load took long: its end counts too.
        let load_ended = std::mem::take(&mut self.load_ended);
        let are_present = self.loads() > 0 || loads_elsewhere;
        if are_present || load_ended {
            self.last_load = Some(now);
        }
        let are_expected = self.last_load.is_some_and(|last| now - last < LOADS_RECUR_WITHIN);
        let bytes = match are_expected {
            _ if are_present => self.limits.set_in_flight_while_loading_bytes,
            true => self.limits.set_in_flight_between_loads_bytes,
            false => self.limits.set_in_flight_bytes,
        };
        SetBudget { bytes, lets_one_go: !are_present }
    }

    /// Whether the next piece of a SET is within the budget of SETs that are due, or of any.
    fn set_fits(
        &self,
        length_bytes: u64,
        budget: SetBudget,
        is_due: bool,
        elsewhere: &Elsewhere,
    ) -> bool {
        let [loads, sets] = self.in_flight();
        let (goes_alone, budget_bytes, others_bytes) = if is_due {
            let loaded_bytes = loads.plus(elsewhere.loads).bytes;
            (true, budget.bytes.max(loaded_bytes / LOADS_PER_DUE_SET), 0)
        } else {
            (budget.lets_one_go, budget.bytes, elsewhere.sets.bytes)
        };
        goes_alone && sets.pieces == 0 || sets.bytes + others_bytes + length_bytes <= budget_bytes
    }

    /// When the first SET in the queue goes ahead of loads, if that is still to come at `now`, when the last grant was asked for.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.set_is_due().filter(|due| *due > now)
    }

    fn set_is_due(&self) -> Option<Instant> {
        self.queues[Class::Set as usize].front().map(|set| set.since + self.limits.set_max_wait)
    }

    /// A granted piece is done, whatever became of it.
    pub fn finish(&mut self, grant: Grant) {
        let in_flight = &mut self.in_flight[grant.class as usize];
        debug_assert!(in_flight.pieces > 0 && in_flight.bytes >= grant.length_bytes);
        in_flight.pieces -= 1;
        in_flight.bytes -= grant.length_bytes;
        self.load_ended |= grant.class == Class::Get;
    }

    /// Takes back what is not granted yet of an operation.
    pub fn cancel_rest(&mut self, ticket: Ticket) {
        let queue = &mut self.queues[ticket.class as usize];
        let place = queue.place_of(ticket.number);
        if place.is_some_and(|waiting| waiting.as_ref().is_some_and(|one| one.id == ticket.id)) {
            queue.take(ticket.number);
        }
    }

    /// Empties the queues.
    pub fn clear(&mut self) {
        for queue in &mut self.queues {
            queue.first += queue.waiting.len() as u64;
            queue.waiting.clear();
        }
    }

    /// Whether nothing waits for a grant.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }

    /// GETs that wait, and pieces of them in flight.
    pub fn loads(&self) -> usize {
        self.queues[Class::Get as usize].waiting.len() + self.in_flight[Class::Get as usize].pieces
    }

    /// Whether a SET waits for a grant.
    pub fn has_waiting_sets(&self) -> bool {
        !self.is_empty_of(Class::Set)
    }

    /// Takes the GETs that came by `latest`, and of which nothing is granted.
    pub fn take_late_loads(&mut self, latest: Instant) -> Vec<usize> {
        let mut late = Vec::new();
        while let Some((number, since)) = self.first_unstarted_load()
            && since <= latest
        {
            self.late_until = number + 1;
            late.extend(self.queues[Class::Get as usize].take(number).map(|waiting| waiting.id));
        }
        late
    }

    /// When the first GET came of which nothing is granted.
    pub fn oldest_unstarted_load(&mut self) -> Option<Instant> {
        self.first_unstarted_load().map(|(_, since)| since)
    }

    fn first_unstarted_load(&mut self) -> Option<(u64, Instant)> {
        let queue = &self.queues[Class::Get as usize];
        // Only the front may have started.
        let begun = queue.front().is_some_and(|front| front.granted_bytes > 0);
        self.late_until = self.late_until.max(queue.first + u64::from(begun));
        let offset = (self.late_until - queue.first) as usize;
        let mut rest = queue.waiting.iter().skip(offset);
        let (skipped, waiting) =
            rest.by_ref().enumerate().find_map(|(skipped, one)| Some((skipped, one.as_ref()?)))?;
        self.late_until += skipped as u64;
        Some((self.late_until, waiting.since))
    }
}

#[cfg(test)]
mod tests;
