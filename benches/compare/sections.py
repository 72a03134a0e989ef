"""The parts of a run, in the order in which they are measured."""

from __future__ import annotations

from importlib import import_module

from benches.compare.session import Section

DISK = "disk"
ZRAM = "zram"
THREADS_DISK = "threads-disk"
THREADS_ZRAM = "threads-zram"
BARE = "bare"
NEIGHBOURS = "neighbours"
LAYOUTS = "layouts"
PATHS = "paths"
FAILING = "failing"
EXISTS = "exists"
DELETES = "deletes"
MIXED_DISK = "mixed-disk"
MIXED_ZRAM = "mixed-zram"
GROWTH = "growth"
OPENING = "opening"
BENCH_L2 = "lmcache"
BURSTS = "bursts"
BURSTS_BUSY = "bursts-busy"
SERVER_DISK = "server-disk"
SERVER_ZRAM = "server-zram"
SETTINGS = "settings"
VLLM = "vllm"
SGLANG = "sglang"
RANKS = "ranks"

TITLES = {
    DISK: "Put, get and delete on ext4 over the disk",
    ZRAM: "Put, get and delete on XFS at the speed of memory",
    THREADS_DISK: "kvring's choice of threads beside fixed numbers, on the disk",
    THREADS_ZRAM: "kvring's choice of threads beside fixed numbers, on XFS at the speed of memory",
    BARE: "Put, get and delete on a bare device",
    NEIGHBOURS: "Small chunks side by side, on a bare device",
    LAYOUTS: "Layouts and engines of kvring, on the disk",
    PATHS: "One path and two paths, on the disk",
    FAILING: "A disk that dies in the middle of a mixed load",
    EXISTS: "Exists",
    DELETES: "Many deletes in one call",
    MIXED_DISK: "Loads among stores, on ext4 over the disk",
    MIXED_ZRAM: "Loads among stores, on XFS at the speed of memory",
    GROWTH: "Loads while the store grows, on XFS at the speed of memory",
    OPENING: "Opening a store of many keys",
    BENCH_L2: "Through lmcache bench l2",
    BURSTS: "Bursts of loads, on XFS at the speed of memory",
    BURSTS_BUSY: "Bursts of loads beside eight busy processes, on XFS at the speed of memory",
    SERVER_DISK: "L2 to L1 in lmcache server, on ext4 over the disk",
    SERVER_ZRAM: "L2 to L1 in lmcache server, on XFS at the speed of memory",
    VLLM: "Below vLLM, beside its tier fs, on ext4 over the disk",
    SGLANG: "Below SGLang, beside its backend file, on ext4 over the disk",
    RANKS: "Ranks of a model that have the same KV, below SGLang, on ext4 over the disk",
    SETTINGS: "kvring's own settings, on XFS at the speed of memory",
}

_FUNCTIONS = {
    DISK: ("transfer_parts", "run_on_disk"),
    ZRAM: ("transfer_parts", "run_on_zram"),
    THREADS_DISK: ("transfer_parts", "run_threads_on_disk"),
    THREADS_ZRAM: ("transfer_parts", "run_threads_on_zram"),
    BARE: ("transfer_parts", "run_bare"),
    NEIGHBOURS: ("neighbours", "run"),
    LAYOUTS: ("transfer_parts", "run_layouts"),
    PATHS: ("transfer_parts", "run_paths"),
    FAILING: ("failing", "run"),
    EXISTS: ("lookups", "run"),
    DELETES: ("deletes", "run"),
    MIXED_DISK: ("mixed", "run_on_disk"),
    MIXED_ZRAM: ("mixed", "run_on_zram"),
    GROWTH: ("growth", "run"),
    OPENING: ("opening", "run"),
    BENCH_L2: ("lmcache_bench", "run"),
    BURSTS: ("bursts", "run"),
    BURSTS_BUSY: ("bursts", "run_busy"),
    SERVER_DISK: ("server", "run_on_disk"),
    SERVER_ZRAM: ("server", "run_on_zram"),
    VLLM: ("engines", "run_vllm"),
    SGLANG: ("engines", "run_sglang"),
    RANKS: ("engines", "run_ranks"),
    SETTINGS: ("transfer_parts", "run_settings"),
}


def section(name: str) -> Section:
    """Return what measures a part. Imported only then: it may need LMCache."""
    module, function = _FUNCTIONS[name]
    found: Section = getattr(import_module(f"benches.compare.{module}"), function)
    return found
