//! MIN, the upper bound: what a cache would find that knows all requests to come.

use std::collections::BTreeSet;

use crate::cache::{Outcome, Setting};
use crate::trace::Trace;

const NEVER: usize = usize::MAX;

/// Belady's rule for whole requests: of the chunks that were held and those of the request, those stay that are
/// asked for soonest. A request asks for its deeper chunks later, so that what is held always has all that is before it.
///
/// With a cache in memory the bound is what one cache as large as both would find.
pub(crate) fn simulate(trace: &Trace, setting: Setting) -> Outcome {
    let room = setting.room + setting.memory.unwrap_or(0);
    let mut next_uses = next_uses(trace).into_iter();
    // By chunk, of those that are held.
    let mut next = vec![NEVER; trace.chunks as usize];
    let mut held = BTreeSet::new();
    let mut outcome = Outcome::default();
    for (number, request) in trace.requests.iter().enumerate() {
        let are_held: Vec<bool> =
            request.iter().map(|chunk| next[*chunk as usize] != NEVER).collect();
        let found = are_held.iter().take_while(|is_held| **is_held).count();
        outcome.count(trace, number, found);
        for (chunk, next_use) in request.iter().zip(&mut next_uses) {
            let known = &mut next[*chunk as usize];
            held.remove(&(*known, *chunk));
            *known = next_use;
            if next_use != NEVER {
                held.insert((next_use, *chunk));
            }
        }
        while held.len() > room
            && let Some((_, chunk)) = held.pop_last()
        {
            next[chunk as usize] = NEVER;
        }
        let stays = |(chunk, was_held): (&u32, bool)| !was_held && next[*chunk as usize] != NEVER;
        outcome.stores += request.iter().zip(are_held).filter(|one| stays(*one)).count() as u64;
    }
    outcome
}

/// Of each chunk of each request the number of the lookup that asks for it next.
fn next_uses(trace: &Trace) -> Vec<usize> {
    let lookups = trace.requests.concat().into_iter().enumerate();
    let mut next = vec![NEVER; trace.chunks as usize];
    let next_use = |(lookup, chunk)| std::mem::replace(&mut next[chunk as usize], lookup);
    let mut uses: Vec<usize> = lookups.rev().map(next_use).collect();
    uses.reverse();
    uses
}
