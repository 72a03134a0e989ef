"""Kills, simulated power loss, closes with I/O in flight, and pairs of mechanisms that meet.

ARGUMENTS are kinds: kills, crashes, closes, pairs; without any, all run side by side. Behind one
kind may stand the arguments of its harness (tests/harness), as `-- pairs --seed 7 --lives 40`.
Each `--seed` of this tool makes other choices: a long search is many runs, or many minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tools.tool import OUTPUT, BuildError, Options, Report, call

# The seeds of one run of this tool; no run is so long that it needs more.
_SEEDS: Final = 1_000_000
_ALONE: Final = ("--threads", "1")


def _kills(seed: int) -> list[str]:
    """Fifty kills: in each layout in turn, on one path or two."""
    turn = seed // 50
    where = ["--paths", str(1 + turn // 2 % 2), "--layout", ("extents", "files")[turn % 2]]
    return ["--rounds", "50", "--seed", str(seed * 1000), *where]


# A portion of each kind: how many it does, and its command by the first seed.
_PORTIONS: Final[dict[str, tuple[int, Callable[[int], list[str]]]]] = {
    "kills": (50, _kills),
    "crashes": (2000, lambda seed: [*_words(2000, "crashes", seed), *_ALONE]),
    "closes": (500, lambda seed: _words(500, "closes", seed)),
    "pairs": (50, lambda seed: _words(50, "lives", seed)),
}


def _words(count: int, what: str, seed: int) -> list[str]:
    return [f"--{what}", str(count), "--seed", str(seed)]


def run(options: Options) -> Report:
    """Run portions of each kind until the time is up, or one finds something."""
    first, *rest = options.arguments or tuple(_PORTIONS)
    given = rest if rest and rest[0] not in _PORTIONS else []
    kinds = [first] if given else [first, *rest]
    built = _build()
    report, counts = Report(), dict.fromkeys(kinds, 0)
    end_s = time.monotonic() + options.seconds

    def run_kind(kind: str) -> None:
        portion, command = _PORTIONS[kind]
        while not report.findings and time.monotonic() < end_s:
            arguments = given or command((options.seed - 1) * _SEEDS + counts[kind] + 1)
            done = call([built, kind, *arguments], log=OUTPUT / f"faults-{kind}.log")
            counts[kind] += portion
            if done.returncode != 0:
                said = done.stdout.strip().splitlines() or ["no message"]
                line = next((one for one in said if "seed" in one), said[-1])
                again = " ".join(["cargo run --release --example harness --", kind, *arguments])
                report.findings.append(f"{kind}: {line}; {again}")
            if given:
                break

    # Side by side: kills and closes mostly wait for the disk.
    with ThreadPoolExecutor(len(kinds)) as threads:
        list(threads.map(run_kind, kinds))
    report.ran = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return report


def _build() -> Path:
    """Build the harness: quick, with assertions, and without minutes of linking."""
    log, target = OUTPUT / "faults-build.log", OUTPUT / "faults"
    done = call(
        ["cargo", "build", "--release", "--example=harness"],
        log=log,
        environment={
            "CARGO_TARGET_DIR": str(target),
            "CARGO_PROFILE_RELEASE_LTO": "off",
            "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
            "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS": "true",
            "CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS": "true",
        },
    )
    if done.returncode != 0:
        raise BuildError(f"the harness does not build: see {log}")
    return target / "release" / "examples" / "harness"
