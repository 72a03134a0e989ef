"""One build of the crate and its tests that holds all mutants."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.built_package import place_package
from tools.mutation.listing import Mutant, fingerprint
from tools.mutation.schema import SWITCH, Schema, arms_of_match, blamed
from tools.planted import files_of_tree
from tools.tool import OUTPUT, BuildError, call

TREE = OUTPUT / "mutants-tree"
_ENVIRONMENT = {
    "CARGO_TARGET_DIR": str(OUTPUT / "mutants-target"),
    # Code of mutants gives warnings by the hundred, and no debugger looks at it.
    "RUSTFLAGS": "--cap-lints=allow",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_TERM_COLOR": "never",
    "PYO3_PYTHON": sys.executable,
}
_REFUSED = OUTPUT / "mutants-refused.json"
_LOG = OUTPUT / "logs" / "mutants-build.log"
# Suites that read the source, or run for themselves what others prove.
_LEFT_OUT = ("module_order",)
# Suites in Python of what those in Rust leave to them: full file systems, copies, devices,
# commands, signals, figures. Each is one test here.
PYTHON_SUITES = (
    *("test_reflink.py", "test_enospc.py", "test_index_share.py", "test_device_format.py"),
    *("test_device.py", "test_capacity.py", "test_bad_sectors.py", "test_io_errors.py"),
    *("test_restart.py", "test_limits.py", "test_ls.py", "test_store_commands.py"),
    *("test_old_stores.py", "test_snapshots.py", "test_owner.py", "test_refusals.py"),
    *("test_admission.py", "test_answers.py", "test_counters.py", "test_signals.py"),
    *("test_namespaces.py", "test_pins.py", "test_ttl.py", "test_event_fd.py", "test_files.py"),
)
# Where Python finds the native module with all mutants.
PYTHON_PACKAGE = OUTPUT / "mutants-python"
# Programs that are a test each, and how they are called.
HARNESSES = {
    "crash_simulator": "--crashes 300 --threads 1",
    "random_operations": "--operations 3000",
}
_MODULE = b"mod backlog;\n"


def prepare(source: Path, mutants: list[Mutant]) -> list[Mutant]:
    """Write the tree at `source` with these mutants. Returns those that the compiler refuses.

    Raises:
        BuildError: The compiler refuses something else.
    """
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    codes = {file: fingerprint(source / file) for file in by_file}
    refused = _refused_before(mutants, codes)
    while True:
        texts = {}
        for file, own in by_file.items():
            schema = Schema(
                (source / file).read_bytes(), [one for one in own if one.number not in refused]
            )
            refused |= {one.number for one in schema.unplaced}
            texts[Path(file)] = schema.text()
        _write(source, texts)
        # Of the types first, and of what borrows once all types are right: some rounds.
        errors = [error for error in _errors(["check", "--lib"]) if error]
        if not errors:
            break
        to_blame = {number for error in errors for number in _blamed(error)}
        if not to_blame - refused:
            raise BuildError(errors[0]["rendered"])
        refused |= to_blame
    _remember(mutants, codes, refused)
    return [one for one in mutants if one.number in refused]


def _refused_before(mutants: list[Mutant], codes: dict[str, str]) -> set[int]:
    """What the compiler has refused of this very code: so that nothing is built anew for it."""
    if not _REFUSED.exists():
        return set()
    before = {tuple(one) for one in json.loads(_REFUSED.read_text())}
    return {one.number for one in mutants if (one.file, codes[one.file], one.name) in before}


def _remember(mutants: list[Mutant], codes: dict[str, str], refused: set[int]) -> None:
    names = [(one.file, codes[one.file], one.name) for one in mutants if one.number in refused]
    _REFUSED.write_text(json.dumps(names))


def _write(source: Path, texts: dict[Path, bytes]) -> None:
    """Write what is not there already: cargo goes by the time of change."""
    texts[Path("src/mutant.rs")] = SWITCH.encode()
    root = Path("src/lib.rs")
    lib = texts.get(root, (source / root).read_bytes())
    texts[root] = lib.replace(_MODULE, _MODULE + b"mod mutant;\n", 1)
    names = {name for name in files_of_tree() if (source / name).is_file()}
    for name in names | set(texts):
        text = texts[name] if name in texts else (source / name).read_bytes()
        copy = TREE / name
        if not copy.exists() or copy.read_bytes() != text:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(text)
    for copy in (TREE / "tests").rglob("*.rs"):
        if copy.relative_to(TREE) not in names:
            copy.unlink()


def _messages(arguments: list[str], package: str = "kvring") -> Iterator[dict[str, Any]]:
    command = ["cargo", *arguments, "--package", package, "--message-format=json"]
    done = call(command, directory=TREE, environment=_ENVIRONMENT, log=_LOG)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _errors(arguments: list[str]) -> Iterator[dict[str, Any]]:
    for one in _messages(arguments):
        message = one.get("message")
        # One without a place only counts the others.
        if message and message["level"] == "error" and message["spans"]:
            yield message


def _blamed(error: dict[str, Any]) -> set[int]:
    is_inexhaustive = error["code"] and error["code"]["code"] == "E0004"
    find = arms_of_match if is_inexhaustive else blamed
    found: set[int] = set()
    for span in error["spans"]:
        path = TREE / span["file_name"]
        if span["is_primary"] and path.is_file():
            found |= find(path.read_bytes(), span["byte_start"])
    return found


def units() -> dict[str, Path]:
    """Build the unit tests. Returns the program by its name, which is that of the crate."""
    return _programs(["test", "--no-run", "--lib"])


def suites() -> dict[str, Path]:
    """Build the suites and the harnesses. Returns the programs by name."""
    examples = [argument for name in HARNESSES for argument in ("--example", name)]
    programs = {
        **_programs(["test", "--no-run", "--test", "*"]),
        **_programs(["build", *examples]),
    }
    return {name: program for name, program in programs.items() if name not in _LEFT_OUT}


def python_suites() -> dict[str, Path]:
    """Build the native module for Python. Returns the files of the suites by name."""
    built = list(_messages(["build"], "kvring-python"))
    libraries = [one["filenames"][0] for one in built if _is_native(one)]
    if not libraries:
        raise BuildError(f"the native module cannot be built: see {_LOG}")
    place_package(TREE, Path(libraries[-1]), PYTHON_PACKAGE)
    return {name: TREE / "tests" / "python" / name for name in PYTHON_SUITES}


def native_module() -> Path:
    """Return what suites in Python run, beside their own file."""
    return PYTHON_PACKAGE / "kvring" / "_native.so"


def _is_native(message: dict[str, Any]) -> bool:
    is_built = message["reason"] == "compiler-artifact"
    return is_built and bool(message["target"]["name"] == "_native")


def _programs(arguments: list[str]) -> dict[str, Path]:
    programs = {
        one["target"]["name"]: Path(one["executable"])
        for one in _messages(arguments)
        if one["reason"] == "compiler-artifact" and one["executable"]
    }
    if not programs:
        raise BuildError(f"the tests cannot be built: see {_LOG}")
    return programs
