"""Known bugs, as patches in tools/planted: each is put in, and its tool must find it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.tool import OUTPUT, REPOSITORY, Options, Report

PATCHES = REPOSITORY / "tools" / "planted"


def patches_of(tool: str) -> list[Path]:
    """Return the patches of a tool: those named `TOOL-what-is-wrong.patch`, in order."""
    return sorted(PATCHES.glob(f"{tool}-*.patch"))


def files_of_tree() -> set[Path]:
    """Return what of the working tree is or may be committed, from its root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True).stdout
    return {Path(name) for name in names.decode().split("\0") if name}


def built_in(place: Path, tree: Path) -> Path:
    """Return where cargo builds a tree: `place` for the working tree, beside it for one with a bug.

    Cargo knows a package by its place in the workspace, and sees by the times of its files whether
    they have changed. In one place it would take the program with the bug for that of the working
    tree, whose files are older.
    """
    return place if tree == REPOSITORY else place.with_name(f"{place.name}-planted")


def target_of(tool: str, tree: Path) -> Path:
    """Return where cargo builds a tree for a tool that runs what `make` builds too.

    One with a bug is built apart, for the reason that `built_in` tells.
    """
    return REPOSITORY / "target" if tree == REPOSITORY else OUTPUT / f"{tool}-planted"


@contextmanager
def tree_with(patch: Path) -> Iterator[Path]:
    """Yield a copy of the working tree with a patch applied.

    The copy lies at the same place each time, so that cargo builds only what the patch changes. One
    at a time.

    Raises:
        subprocess.CalledProcessError: The patch does not fit the tree any more: mend the patch.
    """
    tree = OUTPUT / "planted-tree"
    tree.mkdir(parents=True, exist_ok=True)
    for name in files_of_tree():
        source, copy = REPOSITORY / name, tree / name
        if not source.is_file():
            continue
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    apply = ["git", "apply", "--whitespace=nowarn"]
    # Without a repository of its own, git would take the outer one for the place of the patch.
    environment = {"GIT_CEILING_DIRECTORIES": str(OUTPUT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    subprocess.run([*apply, patch], cwd=tree, check=True, env=environment)
    try:
        yield tree
    finally:
        subprocess.run([*apply, "--reverse", patch], cwd=tree, check=True, env=environment)


def find_where_told(
    tool: str, options: Options, search: Callable[[tuple[str, ...], Path], Report]
) -> Report:
    """Have a search find each bug at each place that its patch names, and by the words it names.

    Args:
        tool: Whose bugs. A patch has the lines `Found by: WHERE` and `As: WORDS`, once or more.
        options: Arguments choose among the patches, by a part of their names; none stands for all.
        search: Takes the words of WHERE, and the tree with the bug.
    """
    report, found, places = Report(), 0, 0
    for patch in patches_of(tool):
        if options.arguments and not any(part in patch.name for part in options.arguments):
            continue
        told = re.findall(r"^Found by: (.*)\nAs: (.*)$", patch.read_text(), re.M)
        with tree_with(patch) as tree:
            for where, words in told:
                there = search(tuple(where.split()), tree)
                is_found = any(words in finding for finding in there.findings)
                found += is_found
                places += 1
                if not is_found:
                    report.findings.append(f"{patch.name}: not found by {where}: {there}")
    report.ran = f"planted bugs found at {found} of {places} places"
    return report
