//! The scheduler against a model of it, by random steps.

use proptest::prelude::*;

use super::*;

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Get), Just(Class::Delete), Just(Class::Set)]
}

/// What one random step does: queue something, take some grants, let time pass.
fn step() -> impl Strategy<Value = (Class, u64, usize, u64)> {
    (class(), 1_u64..5000, 0_usize..4, 0_u64..60)
}

fn limits() -> impl Strategy<Value = Limits> {
    let budgets = (0_u64..5000, 0_u64..5000, 0_u64..3000);
    (1_usize..6, 300_u64..2000, 1_u64..6000, budgets, 0_u64..300).prop_map(
        |(queue_depth, max_io_bytes, max_in_flight_bytes, (idle, between, loading), wait_ms)| {
            Limits {
                queue_depth,
                max_io_bytes,
                max_in_flight_bytes,
                set_in_flight_bytes: idle,
                set_in_flight_between_loads_bytes: between,
                set_in_flight_while_loading_bytes: loading,
                set_max_wait: Duration::from_millis(wait_ms),
            }
        },
    )
}

/// An operation that waits, or waits with its rest.
#[derive(Clone, Copy)]
struct Left {
    id: usize,
    offset_bytes: u64,
    total_bytes: u64,
    since: Instant,
}

/// What the scheduler should know, and what it must not grant.
struct Model {
    limits: Limits,
    waiting: [VecDeque<Left>; 3],
    flying: VecDeque<Grant>,
    last_load: Option<Instant>,
    load_ended: bool,
}

impl Model {
    fn in_flight(&self, class: Class) -> (usize, u64) {
        let same = self.flying.iter().filter(|grant| grant.class == class);
        (same.clone().count(), same.map(|grant| grant.length_bytes).sum())
    }

    fn is_due(&self, now: Instant) -> bool {
        let front = self.waiting[Class::Set as usize].front();
        front.is_some_and(|set| now - set.since >= self.limits.set_max_wait)
    }

    /// A SET that is due goes as soon as no other one is in flight.
    fn check_due(&self, grant: Option<Grant>, now: Instant) -> Result<(), TestCaseError> {
        let goes = grant.is_some_and(|one| one.class == Class::Set);
        prop_assert!(
            goes || !self.is_due(now) || self.in_flight(Class::Set).0 > 0,
            "a due SET waits"
        );
        Ok(())
    }

    fn loads(&self) -> usize {
        self.waiting[Class::Get as usize].len() + self.in_flight(Class::Get).0
    }

    fn length_of(&self, left: &Left) -> u64 {
        (left.total_bytes - left.offset_bytes).min(self.limits.max_io_bytes)
    }

    fn next_length(&self, class: Class) -> Option<u64> {
        Some(self.length_of(self.waiting[class as usize].front()?))
    }

    /// Whether the device takes the next piece of this class.
    fn device_fits(&self, class: Class, length_bytes: u64) -> bool {
        let (pieces, bytes) = self.in_flight(class);
        pieces == 0
            || pieces < self.limits.queue_depth
                && bytes + length_bytes <= self.limits.max_in_flight_bytes
    }

    fn set_budget_bytes(&self, now: Instant) -> u64 {
        match self.last_load {
            _ if self.loads() > 0 => self.limits.set_in_flight_while_loading_bytes,
            Some(last) if now - last < Duration::from_millis(250) => {
                self.limits.set_in_flight_between_loads_bytes
            }
            _ => self.limits.set_in_flight_bytes,
        }
    }

    /// Takes a grant into account, if it is one that may be given.
    fn take(&mut self, grant: Grant, now: Instant) -> Result<(), TestCaseError> {
        let Grant { class, length_bytes, .. } = grant;
        let front = self.waiting[class as usize].front().copied();
        prop_assert!(front.is_some(), "granted from an empty class");
        let front = front.unwrap();
        prop_assert_eq!((grant.id, grant.offset_bytes), (front.id, front.offset_bytes));
        prop_assert_eq!(length_bytes, self.length_of(&front));
        prop_assert!(class == Class::Delete || self.device_fits(class, length_bytes));
        let waits = |class: Class| !self.waiting[class as usize].is_empty();
        let is_due = now - front.since >= self.limits.set_max_wait;
        if class == Class::Set {
            prop_assert!(is_due || !waits(Class::Get) && !waits(Class::Delete));
            let (pieces, bytes) = self.in_flight(Class::Set);
            let goes_alone = pieces == 0 && (is_due || self.loads() == 0);
            let share_bytes = if is_due { self.in_flight(Class::Get).1 / 7 } else { 0 };
            let budget_bytes = self.set_budget_bytes(now).max(share_bytes);
            prop_assert!(goes_alone || bytes + length_bytes <= budget_bytes);
        }
        if class == Class::Delete && waits(Class::Get) {
            let length_bytes = self.next_length(Class::Get).unwrap_or(0);
            prop_assert!(!self.device_fits(Class::Get, length_bytes), "ahead of a load");
        }
        let queue = &mut self.waiting[class as usize];
        queue[0].offset_bytes += length_bytes;
        if queue[0].offset_bytes == queue[0].total_bytes {
            queue.pop_front();
        }
        self.flying.push_back(grant);
        Ok(())
    }

    fn finish_oldest(&mut self) -> Option<Grant> {
        let done = self.flying.pop_front()?;
        self.load_ended |= done.class == Class::Get;
        Some(done)
    }

    /// Asks for a grant, which must be one that may be given. The end of a load is known from then on.
    fn ask(&mut self, clocked: &mut Clocked) -> Result<bool, TestCaseError> {
        if std::mem::take(&mut self.load_ended) {
            self.last_load = Some(clocked.now);
        }
        let grant = clocked.grant();
        self.check_due(grant, clocked.now)?;
        grant.map(|grant| self.take(grant, clocked.now)).transpose()?;
        Ok(grant.is_some())
    }

    fn is_same(&self, scheduler: &Scheduler) -> bool {
        pieces_in_flight(scheduler) == self.flying.len()
            && scheduler.loads() == self.loads()
            && scheduler.has_waiting_sets() != self.waiting[Class::Set as usize].is_empty()
            && scheduler.is_empty() == self.waiting.iter().all(VecDeque::is_empty)
    }
}

proptest! {
    /// Whatever the limits are, they hold; pieces cover each operation once and in order, FIFO holds inside a class,
    /// classes are served in their order but for SETs that are due, and nothing is lost or stuck.
    #[test]
    fn order_and_bounds(limits in limits(), steps in prop::collection::vec(step(), 1..200)) {
        let mut clocked = Clocked::new(limits);
        let mut model = Model {
            limits,
            waiting: Default::default(),
            flying: VecDeque::new(),
            last_load: None,
            load_ended: false,
        };
        for (id, (class, bytes, takes, wait_ms)) in steps.into_iter().enumerate() {
            let total_bytes = if class == Class::Delete { 0 } else { bytes };
            clocked.push(class, id, total_bytes);
            let left = Left { id, offset_bytes: 0, total_bytes, since: clocked.now };
            model.waiting[class as usize].push_back(left);
            clocked.wait(wait_ms);
            for _ in 0..takes {
                if !model.ask(&mut clocked)?
                    && let Some(done) = model.finish_oldest()
                {
                    clocked.scheduler.finish(done);
                }
                prop_assert!(model.is_same(&clocked.scheduler));
            }
        }
        loop {
            if !model.ask(&mut clocked)? {
                let Some(done) = model.finish_oldest() else { break };
                clocked.scheduler.finish(done);
            }
            prop_assert!(model.is_same(&clocked.scheduler));
        }
        prop_assert!(clocked.scheduler.is_empty(), "stuck");
    }
}
