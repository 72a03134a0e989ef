"""What every tool is given, what it answers, and how it runs a command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

# Logs, builds, corpora that grow and reports. Nothing below is committed.
OUTPUT = REPOSITORY / "target" / "tools"

# The return code of a command that took longer than it may.
TIMED_OUT = 124


@dataclass(frozen=True)
class Options:
    """How long and how a tool searches.

    Attributes:
        minutes: How long the search may take; what it takes to build comes on top.
        seed: Where random choices begin: the same seed makes the same choices.
        quick: As short as in CI.
        arguments: What the command line has behind `--`; each tool's docstring explains them.
    """

    minutes: float
    seed: int = 1
    quick: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The same as `minutes`."""
        return self.minutes * 60


@dataclass
class Report:
    """What a tool did.

    Attributes:
        ran: What ran, with counts, for the table: "31 tests, 0 reports".
        findings: One line for each thing found, with what repeats it. None found: the tool passed.
        skipped: Why it could not run for want of something, if so.
        broken: What does not build, if so: what it runs, as the tree is.
    """

    ran: str = ""
    findings: list[str] = field(default_factory=list)
    skipped: str = ""
    broken: str = ""


class BuildError(Exception):
    """What a tool runs does not build: nothing is found until it does."""


def from_seed(names: Sequence[str], seed: int) -> list[str]:
    """Return names in their order, from another one on for each seed.

    Seed 1 begins with the first. So what there was no time for is reached by runs with other seeds.
    """
    start = (seed - 1) * 7 % len(names)
    return [*names[start:], *names[:start]]


def cargo_tool(name: str, version: str) -> Path | None:
    """Return a program that cargo installs, at this version; it lies below target.

    Returns:
        None if it cannot be installed. Why is in the log beside it.
    """
    root = OUTPUT / "programs" / f"{name}-{version}"
    program = root / "bin" / name
    if not program.exists():
        install: list[str | Path] = ["cargo", "install", "--locked", "--root", root]
        call([*install, f"{name}@{version}"], log=root.parent / f"{root.name}.log")
    return program if program.exists() else None


def call(
    command: Sequence[str | Path],
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path = REPOSITORY,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and keep what it printed.

    Args:
        command: The program and its arguments.
        log: A file that takes stdout and stderr, one after the other.
        environment: Added to that of this process.
        directory: Where it runs.
        timeout_s: When the command and its children are killed; it returns `TIMED_OUT` then.

    Returns:
        The return code, and what was printed: stdout and stderr together.
    """
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        is_late = False
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            is_late = True
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, 9)
            raise
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output)
    code = TIMED_OUT if is_late else process.returncode
    return subprocess.CompletedProcess(process.args, code, output, "")
