"""Kernel and limits, as far as a store depends on them."""

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from kvring.cli.doctor.findings import Finding, Level
from kvring.cli.output import size_text

__all__ = ["look_at_limits", "look_at_memory"]

_GIB = 1 << 30
_CAP_IPC_LOCK = 14
_FEW_FILES = 4096
_LITTLE_MEMORY_BYTES = 2 * _GIB


def look_at_limits() -> Iterator[Finding]:
    """Look at what this process may do. A server that runs elsewhere has limits of its own."""
    yield Finding(Level.OK, "kernel", f"Linux {platform.release()} on {platform.machine()}")
    yield from _locked_memory()
    yield from _open_files()
    yield from _address_space()


def look_at_memory() -> Iterator[Finding]:
    """Look at the memory of the machine, of the control group, and at huge pages."""
    yield from _memory_limit()
    yield from _huge_pages()


def _locked_memory() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or _has_capability(_CAP_IPC_LOCK):
        yield Finding(Level.OK, "locked memory", "no limit")
        return
    what = f"limited to {size_text(soft)}"
    if hard != soft:
        what += f" (hard limit: {'none' if hard == resource.RLIM_INFINITY else size_text(hard)})"
    yield Finding(
        Level.WARNING if soft < _GIB else Level.NOTE,
        "locked memory",
        f"{what}: L1 memory beyond it is not registered, which costs processor time",
        "ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, --ulimit memlock=-1 of Docker",
    )


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # kvring raises the soft limit by itself, in layout `files`.
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
        yield Finding(
            Level.WARNING,
            "open files",
            f"at most {hard}: in layout 'files' loads may miss with EMFILE",
            f"raise the hard limit to {_FEW_FILES} or more (ulimit -Hn, LimitNOFILE=)",
        )
    else:
        yield Finding(Level.OK, "open files", f"at most {soft}, raised where that is needed")


def _address_space() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield Finding(
            Level.WARNING,
            "address space",
            f"limited to {size_text(soft)}: the index reserves an eighth of the capacity",
            "ulimit -v unlimited, LimitAS=infinity",
        )


def _memory_limit() -> Iterator[Finding]:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    whose = "of the machine"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(Path("/sys/fs/cgroup") / name)
        if text.isdigit() and int(text) < limits[0]:
            limits.append(int(text))
            whose = "of the control group"
    memory_bytes = min(limits)
    what = f"{size_text(memory_bytes)} {whose}"
    if memory_bytes < _LITTLE_MEMORY_BYTES:
        remedy = "raise the limit: the index takes about 145 bytes of memory for each chunk"
        yield Finding(Level.WARNING, "memory", what, remedy)
    else:
        yield Finding(Level.OK, "memory", what)


def _huge_pages() -> Iterator[Finding]:
    lines = (line.split() for line in _read(Path("/proc/meminfo")).splitlines())
    values = {fields[0].rstrip(":"): int(fields[1]) for fields in lines if len(fields) > 1}
    total, free = values.get("HugePages_Total", 0), values.get("HugePages_Free", 0)
    size_bytes = values.get("Hugepagesize", 0) << 10
    if total:
        what = f"{free} of {total} free, of {size_text(size_bytes)} each"
        yield Finding(Level.OK, "huge pages", what)
        return
    yield Finding(
        Level.NOTE,
        "huge pages",
        "none are set aside: with them loads into L1 take less than half of the processor time",
        "sysctl vm.nr_hugepages=N and --l1-use-hugepages (docs/how-to/operations.md#huge-pages)",
    )


def _has_capability(number: int) -> bool:
    for line in _read(Path("/proc/thread-self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> number & 1)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
