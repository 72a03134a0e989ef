"""Runs a tool over the Python package in copies of the tree with known bugs."""

from __future__ import annotations

import importlib.machinery
import shutil
import sys
from pathlib import Path

from tools.planted import patches_of, tree_with
from tools.tool import OUTPUT, REPOSITORY, Options, Report, call

__all__ = ["find_each"]


def find_each(tool: str, minutes: float, options: Options) -> Report:
    """Have a tool find each bug that is planted for it, in a program of its own.

    Args:
        tool: Its name.
        minutes: In which it must find a bug.
        options: What its own run is given.
    """
    report = Report()
    patches = patches_of(tool)
    for patch in patches:
        log = OUTPUT / f"{patch.stem}.log"
        with tree_with(patch) as tree:
            _give_native_module(tree, is_rust=".rs" in patch.read_text())
            words = ["-m", "tools", tool, "--minutes", str(minutes), "--seed"]
            done = call(
                [sys.executable, *words, str(options.seed)],
                log=log,
                environment={"PYTHONPATH": f"{tree}:{tree / 'connector_py'}"},
                directory=tree,
            )
        # What the tool prints of its findings begins so.
        _, _, told = done.stdout.partition(f"\n{tool}: seed ")
        if done.returncode == 1 and told:
            print(f"{patch.name}: found: {told}")
        else:
            report.findings.append(f"{patch.name} is not found: {log}")
    report.ran = f"{len(patches)} planted bugs"
    return report


def _give_native_module(tree: Path, *, is_rust: bool) -> None:
    """Give a tree a native module: one that is built of it, or that of the working tree."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    target = tree / "connector_py" / "kvring" / f"_native{suffix}"
    if is_rust:
        build = ["cargo", "build", "--release", "--package", "kvring-python"]
        where = OUTPUT / "planted-build"
        # Linked in no time: it is the bug that counts.
        quick = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
        built = call(build, directory=tree, environment={**quick, "CARGO_TARGET_DIR": str(where)})
        if built.returncode != 0:
            raise RuntimeError(built.stdout[-2000:])
        shutil.copy(where / "release" / "lib_native.so", target)
    else:
        (source,) = (REPOSITORY / "connector_py" / "kvring").glob("_native*.so")
        shutil.copy(source, target)
