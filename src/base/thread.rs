//! Threads of ours: ending those that may be inside a system call, their processor time, and where they run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::base::sync::is_finished;
use crate::base::sync::thread::{JoinHandle, sleep};
use crate::base::time::Patience;

/// How often it is looked at: soon at first, as nearly all end at once.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LATER_LOOKS: Duration = Duration::from_millis(10);

/// Waits as long as `patience` lasts for a thread that was told to end, and says whether it did: none can be stopped in a system call
/// that a device, or a frozen file system, does not give back. Such a one goes on with all that it holds.
pub(crate) fn has_ended(thread: JoinHandle<()>, patience: &mut Patience) -> bool {
    let mut pause = FIRST_LOOK;
    while !is_finished(&thread) {
        if patience.step().is_none() {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(LATER_LOOKS);
    }
    // Its panic was told.
    let _ = thread.join();
    true
}

/// Waits for a thread that was told to end. If it had ended in a panic, `lost` tells the log what that means.
pub(crate) fn join(thread: JoinHandle<()>, lost: &str) {
    let name = thread.thread().name().unwrap_or("a thread").to_owned();
    if thread.join().is_err() {
        log::error!("{name} had ended in a panic: {lost}");
    }
}

const NODES: &str = "/sys/devices/system/node";

/// Has this thread run on the processors of a NUMA node, as far as it may run there at all. With one node there is nothing to do.
pub(crate) fn run_on_node(node: u32) {
    let Some(processors) = processors_of(Path::new(NODES), node) else { return };
    let this_thread = Pid::from_raw(0);
    let outcome = sched_getaffinity(this_thread).and_then(|allowed| {
        let mut both = CpuSet::new();
        let is_allowed = |number: &usize| allowed.is_set(*number).unwrap_or(false);
        let common: Vec<usize> = processors.into_iter().filter(is_allowed).collect();
        common.iter().try_for_each(|number| both.set(*number))?;
        if common.is_empty() { Ok(()) } else { sched_setaffinity(this_thread, &both) }
    });
    if let Err(error) = outcome {
        log::debug!("a thread runs on any NUMA node: {error}");
    }
}

/// Numbers of the processors of a node, where there are several nodes.
fn processors_of(nodes: &Path, node: u32) -> Option<Vec<usize>> {
    let lists = |name: &str| fs::read_to_string(nodes.join(name)).ok();
    if numbers(&lists("online")?)?.len() < 2 {
        return None;
    }
    numbers(&lists(&format!("node{node}/cpulist"))?)
}

/// Numbers as the kernel lists them: `0-3,8`.
fn numbers(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_where_there_are_several() {
        let nodes = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = nodes.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("node0/cpulist", "0-2,8\n");
        write("node1/cpulist", "3-5\n");
        write("online", "0\n");
        assert_eq!(processors_of(nodes.path(), 0), None);
        write("online", "0-1\n");
        assert_eq!(processors_of(nodes.path(), 0), Some(vec![0, 1, 2, 8]));
        assert_eq!(processors_of(nodes.path(), 1), Some(vec![3, 4, 5]));
        assert_eq!(processors_of(nodes.path(), 7), None);
    }

    #[test]
    fn a_thread_keeps_the_processors_that_it_may_have() {
        // Whatever this machine has: it must be able to go on.
        (0..2).for_each(run_on_node);
        assert!((0..CpuSet::count()).any(|number| {
            sched_getaffinity(Pid::from_raw(0)).unwrap().is_set(number).unwrap()
        }));
    }
}
