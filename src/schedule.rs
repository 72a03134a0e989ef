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
//!
//! A SET that a load waits for is promoted: it is served beside the loads, counts as one of them, and has a budget of its own.
//! Where the device takes a piece of either only, a piece of a due SET follows seven of promoted ones: neither starves.

mod bounds;
mod late;
mod waiting;

use std::time::{Duration, Instant};

pub use bounds::{Elsewhere, InFlight, Limits};
pub(crate) use waiting::Queue;
use waiting::Waiting;

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

/// SETs that are due may have as many bytes in the device as loads and promoted SETs have there, divided by this: an eighth of all
/// together. They get a turn after so many pieces of promoted SETs.
const LOADS_PER_DUE_SET: u64 = 7;

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
    /// Where the operation waited.
    pub(crate) line: Line,
}

/// Where an operation waits. Once it does not wait there any more, it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    line: Line,
    number: u64,
    /// A number that was put back in front is given twice.
    id: usize,
}

/// The queues, in the order in which they are served but for SETs that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// SETs that loads wait for.
    Promoted,
    Get,
    Delete,
    Set,
}

impl Line {
    fn of(class: Class) -> Self {
        match class {
            Class::Get => Self::Get,
            Class::Delete => Self::Delete,
            Class::Set => Self::Set,
        }
    }

    fn class(self) -> Class {
        match self {
            Self::Get => Class::Get,
            Self::Delete => Class::Delete,
            Self::Promoted | Self::Set => Class::Set,
        }
    }
}

/// Operations that wait for the device.
pub struct Scheduler {
    limits: Limits,
    queues: [Queue<Waiting>; 4],
    /// Of each of these.
    in_flight: [InFlight; 4],
    /// Pieces of promoted SETs since the last one of another SET.
    promoted_in_a_row: u64,
    last_load: Option<Instant>,
    /// Whether a load ended since the last grant was asked for.
    load_ended: bool,
    /// No SET gets a grant.
    holds_sets: bool,
    /// GETs with lower numbers have started, or were late.
    late_until: u64,
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
            promoted_in_a_row: 0,
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
        let waiting = Waiting { id, granted_bytes: 0, total_bytes, since };
        self.push_to(Line::of(class), waiting)
    }

    fn push_to(&mut self, line: Line, waiting: Waiting) -> Ticket {
        let id = waiting.id;
        Ticket { line, number: self.queues[line as usize].push(waiting), id }
    }

    /// Queues a SET in front of all others: of those that loads wait for if it `is_promoted`.
    pub fn push_first(
        &mut self,
        id: usize,
        total_bytes: u64,
        since: Instant,
        is_promoted: bool,
    ) -> Ticket {
        let line = if is_promoted { Line::Promoted } else { Line::Set };
        let queue = &mut self.queues[line as usize];
        queue.push_front(Waiting { id, granted_bytes: 0, total_bytes, since });
        Ticket { line, number: queue.first, id }
    }

    /// A load waits for the SET with this ticket: what is not granted of it goes ahead of all other SETs, and beside loads. Returns
    /// where it waits from then on.
    pub fn promote(&mut self, ticket: Ticket) -> Ticket {
        if ticket.line == Line::Set
            && let Some(waiting) = self.take(ticket)
        {
            return self.push_to(Line::Promoted, waiting);
        }
        ticket
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiting> {
        let queue = &mut self.queues[ticket.line as usize];
        queue.at(ticket.number).is_some_and(|waiting| waiting.id == ticket.id).then_some(())?;
        queue.take(ticket.number)
    }

    /// The next piece that may start now. Each grant is to be returned by [`Self::finish`].
    pub fn next_grant(&mut self, now: Instant, elsewhere: &Elsewhere) -> Option<Grant> {
        let budget = self.set_budget(now, elsewhere.are_loads_present);
        let is_due = self.set_is_due().is_some_and(|due| due <= now);
        let line = self.next_line(budget, is_due, elsewhere)?;
        let (class, length_bytes) = (line.class(), self.next_length(line)?);
        let queue = &mut self.queues[line as usize];
        let front = queue.front_mut()?;
        let (id, offset_bytes) = (front.id, front.granted_bytes);
        let grant = Grant { id, class, offset_bytes, length_bytes, line };
        front.granted_bytes += length_bytes;
        if front.granted_bytes == front.total_bytes {
            queue.take(queue.first);
        }
        let in_flight = &mut self.in_flight[line as usize];
        in_flight.pieces += 1;
        in_flight.bytes += length_bytes;
        match line {
            Line::Promoted => self.promoted_in_a_row += 1,
            Line::Set => self.promoted_in_a_row = 0,
            Line::Get | Line::Delete => {}
        }
        Some(grant)
    }

    /// The queue whose front may start its next piece.
    fn next_line(&self, budget: SetBudget, is_due: bool, elsewhere: &Elsewhere) -> Option<Line> {
        let within_budget = |line: Line| {
            self.next_length(line).is_some_and(|length_bytes| {
                line.class() != Class::Set
                    || !self.holds_sets
                        && self.set_fits((line, length_bytes), budget, is_due, elsewhere)
            })
        };
        let device_fits = |line: Line| {
            self.next_length(line).is_some_and(|bytes| self.device_fits((line, bytes), elsewhere))
        };
        let can_go = |line: &Line| within_budget(*line) && device_fits(*line);
        // Both want the room that the device has for SETs. The one whose turn it is may need more of it than there is yet:
        // the other one leaves it that.
        let [turn, other] = match self.promoted_in_a_row < LOADS_PER_DUE_SET {
            true => [Line::Promoted, Line::Set],
            false => [Line::Set, Line::Promoted],
        };
        let may_go = |line: &Line| can_go(line) && (*line == turn || !within_budget(turn));
        if is_due && let Some(line) = [turn, other].into_iter().find(may_go) {
            return Some(line);
        }
        // Freeing space asks nothing of the device: loads that fill it must not hold it up.
        let promoted = if is_due { None } else { Some(Line::Promoted) };
        let first = promoted.into_iter().chain([Line::Get, Line::Delete]).find(can_go);
        let is_waited_for =
            [Line::Promoted, Line::Get].iter().any(|line| !self.queues[*line as usize].is_empty());
        first.or_else(|| (!is_due && !is_waited_for && can_go(&Line::Set)).then_some(Line::Set))
    }

    fn in_flight_of(&self, lines: &[Line]) -> InFlight {
        lines.iter().fold(InFlight::default(), |sum, line| sum.plus(self.in_flight[*line as usize]))
    }

    /// What is in flight of GETs, and of SETs.
    pub(crate) fn in_flight(&self) -> [InFlight; 2] {
        [&[Line::Get][..], &[Line::Promoted, Line::Set]].map(|lines| self.in_flight_of(lines))
    }

    /// Whether nothing waits for a grant in this line.
    pub(crate) fn is_line_empty(&self, line: Line) -> bool {
        self.queues[line as usize].is_empty()
    }

    /// Whether the device takes a piece beside what it has of the same class.
    fn device_fits(&self, (line, length_bytes): (Line, u64), elsewhere: &Elsewhere) -> bool {
        let [loads, sets] = self.in_flight();
        let (own, others) = match line {
            Line::Promoted | Line::Set => (sets, elsewhere.sets),
            Line::Get => (loads, elsewhere.loads),
            Line::Delete => return true,
        };
        let in_flight = own.plus(others);
        own.pieces == 0
            || in_flight.pieces < self.limits.queue_depth
                && in_flight.bytes + length_bytes <= self.limits.max_in_flight_bytes
    }

    /// Length of the next piece of a queue.
    fn next_length(&self, line: Line) -> Option<u64> {
        let front = self.queues[line as usize].front()?;
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

    /// Whether the next piece of a SET is within the budget of its kind: promoted, due, or any.
    fn set_fits(
        &self,
        (line, length_bytes): (Line, u64),
        budget: SetBudget,
        is_due: bool,
        elsewhere: &Elsewhere,
    ) -> bool {
        let own = self.in_flight[line as usize];
        let (in_flight, goes_alone, budget_bytes, others) = if line == Line::Promoted {
            (own, true, self.limits.set_in_flight_between_loads_bytes, 0)
        } else if is_due {
            let loads = self.in_flight_of(&[Line::Promoted, Line::Get]).plus(elsewhere.loads);
            (own, true, budget.bytes.max(loads.bytes / LOADS_PER_DUE_SET), 0)
        } else {
            let sets = self.in_flight_of(&[Line::Promoted, Line::Set]);
            (sets, budget.lets_one_go, budget.bytes, elsewhere.sets.bytes)
        };
        goes_alone && in_flight.pieces == 0
            || in_flight.bytes + others + length_bytes <= budget_bytes
    }

    /// When the first SET in the queue goes ahead of loads, if that is still to come at `now`, when the last grant was asked for.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.set_is_due().filter(|due| *due > now)
    }

    fn set_is_due(&self) -> Option<Instant> {
        self.queues[Line::Set as usize].front().map(|set| set.since + self.limits.set_max_wait)
    }

    /// A granted piece is done, whatever became of it.
    pub fn finish(&mut self, grant: Grant) {
        let in_flight = &mut self.in_flight[grant.line as usize];
        debug_assert!(in_flight.pieces > 0 && in_flight.bytes >= grant.length_bytes);
        in_flight.pieces -= 1;
        in_flight.bytes -= grant.length_bytes;
        self.load_ended |= grant.class == Class::Get;
    }

    /// Takes back the first piece of a SET, as if it had not been granted: it is the next of its queue again. Returns its ticket.
    pub fn take_back(&mut self, grant: Grant, total_bytes: u64, since: Instant) -> Ticket {
        debug_assert!(grant.class == Class::Set && grant.offset_bytes == 0);
        self.finish(grant);
        let queue = &mut self.queues[grant.line as usize];
        match queue.front_mut() {
            Some(front) if front.id == grant.id => front.granted_bytes = 0,
            _ => queue.push_front(Waiting { id: grant.id, granted_bytes: 0, total_bytes, since }),
        }
        Ticket { line: grant.line, number: queue.first, id: grant.id }
    }

    /// Takes back what is not granted yet of an operation.
    pub fn cancel_rest(&mut self, ticket: Ticket) {
        self.take(ticket);
    }

    /// Empties the queues.
    pub fn clear(&mut self) {
        self.queues.iter_mut().for_each(Queue::clear);
    }

    /// Whether nothing waits for a grant.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// GETs that wait, and pieces of them in flight.
    pub fn loads(&self) -> usize {
        self.queues[Line::Get as usize].waiting.len() + self.in_flight[Line::Get as usize].pieces
    }

    /// Whether a SET waits for a grant.
    pub fn has_waiting_sets(&self) -> bool {
        !self.queues[Line::Set as usize].is_empty()
    }
}

#[cfg(test)]
mod tests;
