"""Known bugs, as patches: each is put into a copy of the tree, where its tool must find it.

A patch is tools/planted/TOOL-what-is-wrong.patch. It begins with a sentence, a line `Found by:`
with the ARGUMENTS of the tool, and a line `As:` with words of the finding.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.tool import OUTPUT, REPOSITORY, Options, Report, call

_PATCHES = REPOSITORY / "tools" / "planted"
# The copy lies at one place, with a target directory of its own: cargo builds only what a patch
# changes, and never takes a program with a bug for that of the working tree.
_TREE = OUTPUT / "planted-tree"
_BUILT = ("connector_py/kvring/_native*.so", "target/tools/programs")


def find_planted(tool: str, options: Options) -> Report:
    """Have a tool find each bug that is planted for it, in `options.minutes` each.

    Args:
        tool: Its name.
        options: Arguments choose among the patches, by a part of their names; none means all.
    """
    report, found = Report(), 0
    patches = [
        patch
        for patch in sorted(_PATCHES.glob(f"{tool}-*.patch"))
        if not options.arguments or any(part in patch.name for part in options.arguments)
    ]
    for patch in patches:
        told = re.search(r"^Found by: *(.*)\nAs: (.*)$", patch.read_text(), re.M)
        assert told is not None, f"{patch.name} does not say what finds it"
        log = OUTPUT / f"planted-{patch.stem}.log"
        with _tree_with(patch):
            shown = _search(tool, told[1].split(), options, log)
        if any(told[2] in one for one in shown):
            found += 1
        else:
            report.findings.append(f"{patch.name}: not found, but {shown}; see {log}")
    report.ran = f"{found} of {len(patches)} planted bugs found"
    return report


def _search(tool: str, arguments: list[str], options: Options, log: Path) -> list[str]:
    """Run a tool of the copy. Returns what it finds, and what does not build."""
    words = [tool, "--minutes", str(options.minutes), "--seed", str(options.seed)]
    paths = {"PYTHONPATH": f"{_TREE}:{_TREE / 'connector_py'}"}
    target = {"CARGO_TARGET_DIR": str(_TREE / "target")}
    result = _TREE / "target" / "tools" / f"{tool}.json"
    result.unlink(missing_ok=True)
    call(
        [sys.executable, "-m", "tools", *words, "--", *arguments],
        log=log,
        directory=_TREE,
        environment={**paths, **target},
    )
    if not result.exists():
        return ["it ended without a report"]
    told = json.loads(result.read_text())
    return [*told["findings"], *filter(None, (told["broken"], told["skipped"]))]


@contextmanager
def _tree_with(patch: Path) -> Iterator[None]:
    """Have a copy of the working tree with a patch applied. One at a time.

    Raises:
        subprocess.CalledProcessError: The patch does not fit the tree any more: mend the patch.
    """
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True).stdout
    wanted = {Path(name) for name in names.decode().split("\0") if (REPOSITORY / name).is_file()}
    for path in _TREE.rglob("*") if _TREE.exists() else ():
        name = path.relative_to(_TREE)
        if path.is_file() and name.parts[0] != "target" and name not in wanted:
            path.unlink()
    for name in wanted:
        copy = _TREE / name
        if not copy.exists() or copy.read_bytes() != (REPOSITORY / name).read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, copy)
    for built in (path for glob in _BUILT for path in REPOSITORY.glob(glob)):
        link = _TREE / built.relative_to(REPOSITORY)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(built)
    apply = ["git", "apply", "--whitespace=nowarn"]
    # Without a repository of its own, git would take the outer one for the place of the patch.
    environment = {"GIT_CEILING_DIRECTORIES": str(OUTPUT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    subprocess.run([*apply, patch], cwd=_TREE, check=True, env=environment)
    try:
        yield
    finally:
        subprocess.run([*apply, "--reverse", patch], cwd=_TREE, check=True, env=environment)
