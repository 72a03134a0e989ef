"""The parts of the comparison, in the order in which they are measured."""

from __future__ import annotations

from importlib import import_module

from benches.compare.harness.session import Part

_PARTS = {
    "disk": ("transfers", "run_on_disk", "Put, get and delete, ext4 on a loop device"),
    "zram": ("transfers", "run_on_zram", "Put, get and delete, XFS over zram"),
    "bare": ("transfers", "run_bare", "Put, get and delete, a bare loop device"),
    "layouts": ("transfers", "run_layouts", "Layouts and engines of kvring, ext4 on a loop device"),
    "paths": ("transfers", "run_paths", "One path and two paths, ext4 on a loop device"),
    "failing": ("failing", "run", "A disk that dies under a mixed load"),
    "exists": ("lookups", "run", "Exists"),
    "deletes": ("deletes", "run", "Many deletes in one call"),
    "mixed-disk": ("mixed", "run_on_disk", "Loads among stores, ext4 on a loop device"),
    "mixed-zram": ("mixed", "run_on_zram", "Loads among stores, XFS over zram"),
    "bursts": ("bursts", "run", "Bursts of 64 MiB of loads, XFS over zram"),
    "bursts-busy": ("bursts", "run_busy", "The same beside eight busy processes"),
    "server-disk": ("server", "run_on_disk", "L2 to L1 in lmcache server, ext4 on a loop device"),
    "server-zram": ("server", "run_on_zram", "L2 to L1 in lmcache server, XFS over zram"),
    "vllm": ("engines", "run_vllm", "Below vLLM, beside its tier fs"),
    "sglang": ("engines", "run_sglang", "Below SGLang, beside its backend file"),
    "ranks": ("engines", "run_ranks", "Ranks that have the same KV, below SGLang"),
}
TITLES = {name: title for name, (_, _, title) in _PARTS.items()}


def part(name: str) -> Part:
    """Return what measures a part. Imported only then: it may need LMCache."""
    module, function, _ = _PARTS[name]
    found: Part = getattr(import_module(f"benches.compare.parts.{module}"), function)
    return found
