//! Why an engine cannot be had, or works no more.
//!
//! What to do where io_uring cannot be had, the errno alone does not tell: seccomp and a sysctl answer EPERM both, and a seccomp filter
//! may claim that the kernel is an old one.

use std::io;

use thiserror::Error;

const ALLOW: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container or service";
const CAP_IPC_LOCK: u32 = 14;
const UPGRADE: &str = "use Linux 5.11 or newer";

/// Failures of the I/O engine as a whole; a failed transfer is reported with its completion instead.
#[derive(Debug, Error)]
pub enum EngineError {
    /// io_uring cannot be had.
    #[error("io_uring is not available: {0}; or let engine be 'auto' or 'posix'")]
    Unavailable(Refusal),
    /// The engine stopped working after it had started.
    #[error("the I/O engine failed in {operation}: {source}")]
    Failed {
        /// The system call.
        operation: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// Why io_uring cannot be had, and what to do about it.
#[derive(Debug, Error)]
#[error("{cause}; {remedy}")]
pub struct Refusal {
    cause: String,
    remedy: String,
}

impl Refusal {
    /// A system call was refused.
    pub(super) fn of_call(call: &str, error: &io::Error) -> Self {
        let (cause, remedy) = explain(error.raw_os_error(), &Facts::here());
        Self { cause: format!("{cause} ({call}: {error})"), remedy }
    }

    /// Memory was not registered.
    pub(super) fn of_memory(error: &io::Error, length_bytes: usize) -> Self {
        let (cause, remedy) = explain_memory(error.raw_os_error(), length_bytes, &Facts::here());
        Self { cause: format!("{cause} ({error})"), remedy }
    }

    /// There are rings, but without a timed wait.
    pub(super) fn too_old() -> Self {
        let release = Facts::here().release;
        let cause =
            format!("the io_uring of Linux {release} has no timed wait (IORING_FEAT_EXT_ARG)");
        Self { cause, remedy: UPGRADE.into() }
    }
}

/// What tells refusals apart.
#[derive(Clone, Default)]
struct Facts {
    /// Of the kernel, such as "5.15.0-91-generic".
    release: String,
    /// The sysctl kernel.io_uring_disabled; none before 6.6.
    disabled: Option<u64>,
    /// Whether a seccomp filter is in force.
    is_filtered: bool,
    /// RLIMIT_MEMLOCK, where it binds this process.
    memlock_bytes: Option<u64>,
}

impl Facts {
    fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/thread-self/status");
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("", str::trim).to_owned()
        };
        let capabilities = u64::from_str_radix(&value("CapEff:"), 16).unwrap_or(0);
        let is_bound = capabilities >> CAP_IPC_LOCK & 1 == 0;
        let limits = read("/proc/thread-self/limits");
        let memlock = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        Self {
            release: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            disabled: read("/proc/sys/kernel/io_uring_disabled").trim().parse().ok(),
            is_filtered: value("Seccomp:") == "2",
            memlock_bytes: memlock
                .filter(|_| is_bound)
                .and_then(|rest| rest.split_whitespace().next()?.parse().ok()),
        }
    }
}

/// Cause and remedy.
fn explain(errno: Option<i32>, facts: &Facts) -> (String, String) {
    let Facts { release, disabled, is_filtered, memlock_bytes } = facts;
    let (cause, remedy) = match errno {
        Some(libc::EPERM | libc::EACCES) => match disabled {
            Some(2..) => ("the sysctl kernel.io_uring_disabled is 2".into(), "set it to 0"),
            Some(1) => (
                "the sysctl kernel.io_uring_disabled is 1".into(),
                "set it to 0, or run in the group that kernel.io_uring_group names",
            ),
            _ if *is_filtered => {
                ("a seccomp filter denies it, as Docker's default profile does".into(), ALLOW)
            }
            _ => (
                "a security module denies it".into(),
                "allow io_uring to this process in the policy of SELinux or what else is in force",
            ),
        },
        Some(libc::ENOSYS) if *is_filtered => {
            (format!("a seccomp filter hides what Linux {release} has"), ALLOW)
        }
        Some(libc::ENOSYS) => (
            format!("Linux {release} has no io_uring"),
            "use Linux 5.11 or newer, built with CONFIG_IO_URING",
        ),
        Some(libc::ENOMEM) => match memlock_bytes {
            // Kernels charged rings to it before 5.12, and do so again.
            Some(bytes) => (
                format!("no memory for rings, which count against RLIMIT_MEMLOCK: {bytes} bytes"),
                "raise it (ulimit -l, LimitMEMLOCK=, --ulimit memlock), or lower io_threads",
            ),
            None => (
                "no memory for rings".into(),
                "raise the memory limit of the process or its container, or lower io_threads",
            ),
        },
        Some(libc::EMFILE | libc::ENFILE) => {
            ("no descriptor is left for rings".into(), "raise RLIMIT_NOFILE (ulimit -n)")
        }
        Some(libc::EINVAL) => {
            (format!("Linux {release} sets up no ring that kvring can use"), UPGRADE)
        }
        _ => ("the kernel refuses it".into(), "see the kernel's log"),
    };
    (cause, remedy.to_owned())
}

/// Cause and remedy where memory of `length_bytes` is not registered.
fn explain_memory(errno: Option<i32>, length_bytes: usize, facts: &Facts) -> (String, String) {
    let release = &facts.release;
    let (cause, remedy) = match (errno, facts.memlock_bytes) {
        (Some(libc::ENOMEM), Some(limit_bytes)) => (
            format!(
                "{length_bytes} bytes are more than RLIMIT_MEMLOCK leaves, {limit_bytes} in all"
            ),
            "raise it (ulimit -l, LimitMEMLOCK=, --ulimit memlock), or give the process CAP_IPC_LOCK",
        ),
        (Some(libc::ENODEV), _) => {
            ("threads move the bytes, and not io_uring".into(), "set engine to 'io_uring'")
        }
        (Some(libc::EINVAL), _) => {
            (format!("the io_uring of Linux {release} cannot"), "use Linux 5.19 or newer")
        }
        _ => (
            format!("the system cannot pin {length_bytes} bytes"),
            "register fewer and longer pieces of memory that is anonymous, of hugetlbfs or shared, or raise the memory limit",
        ),
    };
    (cause, remedy.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_cause_and_remedy() {
        let facts = |release: &str| Facts { release: release.into(), ..Facts::default() };
        let limited = Facts { memlock_bytes: Some(65536), ..facts("6.18.0") };
        let modern = facts("6.18.0");
        let disabled = |value| Facts { disabled: Some(value), is_filtered: true, ..modern.clone() };
        let filtered = Facts { is_filtered: true, ..facts("6.1.0-13-amd64") };
        let cases = [
            (libc::EPERM, disabled(2), "io_uring_disabled is 2", "set it to 0"),
            (libc::EPERM, disabled(1), "io_uring_disabled is 1", "in the group"),
            (libc::EPERM, disabled(0), "a seccomp filter denies", ALLOW),
            (libc::EPERM, filtered.clone(), "a seccomp filter denies", ALLOW),
            (libc::EACCES, modern.clone(), "a security module", "SELinux"),
            (libc::ENOSYS, filtered, "a seccomp filter hides", ALLOW),
            (libc::ENOSYS, facts("4.18.0-513.el8"), "4.18.0-513.el8 has no", "CONFIG_IO_URING"),
            (libc::ENOMEM, limited, "RLIMIT_MEMLOCK: 65536", "ulimit -l"),
            (libc::ENOMEM, modern.clone(), "no memory for rings", "memory limit"),
            (libc::EMFILE, modern.clone(), "no descriptor", "ulimit -n"),
            (libc::EINVAL, facts("5.4.0"), "5.4.0 sets up no ring", UPGRADE),
            (libc::EIO, modern, "the kernel refuses it", "log"),
        ];
        for (errno, facts, cause, remedy) in cases {
            let told = explain(Some(errno), &facts);
            assert!(told.0.contains(cause) && told.1.contains(remedy), "{errno}: {told:?}");
        }
    }

    #[test]
    fn each_refusal_to_register_memory_has_its_cause_and_remedy() {
        let free = Facts { release: "5.15.0".into(), ..Facts::default() };
        let limited = Facts { memlock_bytes: Some(65536), ..free.clone() };
        let cases = [
            (
                libc::ENOMEM,
                &limited,
                "1234 bytes are more than RLIMIT_MEMLOCK leaves, 65536",
                "ulimit -l",
            ),
            (libc::ENOMEM, &free, "cannot pin 1234", "memory limit"),
            (libc::EFAULT, &limited, "cannot pin 1234", "anonymous"),
            (libc::ENODEV, &free, "not io_uring", "engine"),
            (libc::EINVAL, &free, "Linux 5.15.0 cannot", "5.19"),
        ];
        for (errno, facts, cause, remedy) in cases {
            let told = explain_memory(Some(errno), 1234, facts);
            assert!(told.0.contains(cause) && told.1.contains(remedy), "{errno}: {told:?}");
        }
    }

    #[test]
    fn the_facts_of_this_machine_are_read() {
        let (facts, told) = (Facts::here(), Refusal::too_old().to_string());
        assert!(!facts.release.is_empty());
        assert!(told.contains(&facts.release) && told.contains(UPGRADE), "{told}");
    }
}
