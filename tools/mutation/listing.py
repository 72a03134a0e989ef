"""Which mutants there are: cargo-mutants lists them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.tool import REPOSITORY, call, cargo_tool

_VERSION = "27.1.0"

# What publishes chunks and finds them again: it comes first.
PROMISES = (
    "src/cache/write.rs",
    "src/reactor/commit.rs",
    "src/reactor/record_writer.rs",
    "src/index/file/changes.rs",
    "src/index/file/locked_index.rs",
    "src/index/file/index_bytes.rs",
    "src/index/file/index_file.rs",
    "src/index/file/index_file/**",
    "src/index/recovery/recovery_scan.rs",
    "src/index/file/records.rs",
    "src/index/recovery/opening.rs",
    "src/index/recovery/report.rs",
    "src/index/recovery/restoring.rs",
    "src/index/file/table.rs",
    "src/index/file/table_file.rs",
    "src/index/memory/writing.rs",
    "src/evict/restoring.rs",
    "src/format/**",
    "src/store/data_files/found_files.rs",
)
REST = (
    "src/cache/**",
    "src/index/**",
    "src/schedule.rs",
    "src/schedule/**",
    "src/batch_completion.rs",
    "src/completion_queue.rs",
    "src/evict/**",
    "src/reactor/errnos.rs",
)


@dataclass(frozen=True)
class Mutant:
    """One change of the source.

    Attributes:
        number: How the switch in the build knows it.
        file: The file, from the root of the repository.
        name: What is changed, without lines: it stays while other code of the file changes.
        genre: The kind, in cargo-mutants' words.
        start: Line and column where the changed text begins, both from 1.
        end: The same of where it ends.
        replacement: What stands there instead.
    """

    number: int
    file: str
    name: str
    genre: str
    start: tuple[int, int]
    end: tuple[int, int]
    replacement: str

    @property
    def place(self) -> str:
        """Where it is, and what."""
        return f"{self.file}:{self.start[0]}: {self.name}"


def cargo_mutants() -> Path:
    """Return the program, installed at the version that is known to work."""
    program = cargo_tool("cargo-mutants", _VERSION)
    if program is None:
        raise RuntimeError("cargo-mutants cannot be installed: see target/tools/programs")
    return program


def mutants(tree: Path) -> list[Mutant]:
    """List all mutants of the files above in a tree: those of the promises first."""
    files = [argument for glob in PROMISES + REST for argument in ("--file", glob)]
    command = [str(cargo_mutants()), "mutants", "--list", "--json", "--dir", str(tree), *files]
    done = call(command, environment={"CARGO_TERM_COLOR": "never"})
    done.check_returncode()
    listed = json.loads(done.stdout[done.stdout.index("[") :])
    # Benchmarks have files of their own below these modules.
    listed = [one for one in listed if ".." not in one["file"]]
    listed.sort(key=lambda one: not is_promise(one["file"]))
    seen: Counter[tuple[str, str]] = Counter()
    return [_mutant(number, one, seen) for number, one in enumerate(listed, 1)]


def searched_files() -> list[str]:
    """Return the files of the working tree that may have mutants, without asking cargo-mutants."""
    globs = (f"{glob}/*.rs" if glob.endswith("**") else glob for glob in PROMISES + REST)
    paths = {path for glob in globs for path in REPOSITORY.glob(glob)}
    return sorted(
        str(path.relative_to(REPOSITORY))
        for path in paths
        if "test" not in str(path.relative_to(REPOSITORY)) and "fn " in path.read_text()
    )


def _mutant(number: int, one: dict[str, Any], seen: Counter[tuple[str, str]]) -> Mutant:
    start, end = one["span"]["start"], one["span"]["end"]
    # "src/a.rs:12:5: replace > with < in f"
    name = one["name"].split(": ", 1)[1]
    seen[one["file"], name] += 1
    if (nth := seen[one["file"], name]) > 1:
        name = f"{name} (#{nth})"
    return Mutant(
        number,
        one["file"],
        name,
        one["genre"],
        (start["line"], start["column"]),
        (end["line"], end["column"]),
        one["replacement"],
    )


def is_promise(file: str) -> bool:
    """Whether no mutant of a file may survive without a reason."""
    return any(
        file.startswith(glob[:-2]) if glob.endswith("/**") else file == glob for glob in PROMISES
    )


def fingerprint(file: Path) -> str:
    """Return what changes when the code of a file does, without its tests."""
    code, _, _ = file.read_text().partition("#[cfg(test)]\nmod tests")
    return hashlib.sha256(code.rstrip().encode()).hexdigest()[:16]
