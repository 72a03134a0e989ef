"""What every tool is given, what it answers, and how it runs a command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

REPOSITORY = Path(__file__).parents[1]

# Logs, corpora that grow and reports. Nothing below is committed.
OUTPUT = REPOSITORY / "target" / "tools"


@dataclass(frozen=True)
class Options:
    """How long and how a tool searches.

    Attributes:
        minutes: How long the search may take; what it takes to build comes on top.
        seed: Where random choices begin: the same seed makes the same choices.
        planted: Put known bugs in, one after the other, and find each, instead of searching.
        quick: Search what a change may have broken, and leave the rest to longer runs.
        arguments: What the command line has behind `--`; each tool's docstring explains them.
    """

    minutes: float
    seed: int = 1
    planted: bool = False
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


def from_seed(names: Sequence[str], seed: int) -> list[str]:
    """Return names in their order, from another one on for each seed.

    Seed 1 begins with the first. So what there was no time for is reached by runs with other seeds.
    """
    start = (seed - 1) * 7 % len(names)
    return [*names[start:], *names[:start]]


class BuildError(Exception):
    """What a tool runs does not build: nothing is found until it does."""


class Tool(Protocol):
    """A module of this package with `run`. The first line of its docstring is its help."""

    def run(self, options: Options) -> Report:
        """Search, or find what is planted."""


def cargo_tool(name: str, version: str) -> Path | None:
    """Return a program that cargo installs, at this version; it lies below target.

    Returns:
        None if it cannot be installed. Why is in the log beside it.
    """
    root = OUTPUT / "programs" / f"{name}-{version}"
    program = root / "bin" / name
    if not program.exists():
        call(
            ["cargo", "install", "--locked", "--root", root, f"{name}@{version}"],
            log=root.parent / f"{root.name}.log",
        )
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
        timeout_s: When the command and its children are killed; the return code is then 124.

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
        code: int | None = None
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            code = 124
        except BaseException:
            os.killpg(process.pid, 9)
            raise
        done = subprocess.CompletedProcess(
            process.args, process.returncode if code is None else code, output, ""
        )
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output)
    return done
