"""Mutants: small changes of the code, by cargo-mutants, each of which a test must notice.

Without ARGUMENTS it changes what differs from main; `-- src/cache/write.rs` changes a whole file,
`-- --shard 1/20 src/cache/room.rs` a part of it. .cargo/mutants.toml says which tests are asked,
and which changes none can notice. A mutant takes minutes: it is built, then tested until one fails.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.tool import OUTPUT, REPOSITORY, BuildError, Options, Report, call, cargo_tool

_VERSION = "27.1.0"
_LOG = OUTPUT / "mutants.log"
_FAILED_BASELINE = 4
_STATES = ("caught", "missed", "timeout", "unviable")


def run(options: Options) -> Report:
    """Search until the time is over, or every mutant was tried."""
    program = cargo_tool("cargo-mutants", _VERSION)
    if program is None:
        return Report(skipped="cargo-mutants cannot be installed")
    words = list(options.arguments)
    if files := [word for word in words if word.endswith(".rs")]:
        words = [word for word in words if word not in files]
        words += [f"--file={file}" for file in files]
    elif diff := _diff():
        words.append(f"--in-diff={diff}")
    else:
        return Report(ran="src is as on main")
    copies = OUTPUT / "mutants-copies"
    copies.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(OUTPUT / "mutants.out", ignore_errors=True)
    # By a signal it removes its copy of the tree, and ends the tests.
    limit_s = f"{options.seconds:.0f}"
    until: list[str | Path] = ["timeout", "--signal=INT", "--kill-after=60", limit_s]
    command = [*until, program, "mutants", "--package=kvring", "--no-shuffle", *words]
    done = call(
        [*command, f"--output={OUTPUT}"],
        log=_LOG,
        environment={
            # In the copy: elsewhere cargo would take a mutant for the code of the tree itself.
            "CARGO_TARGET_DIR": "target",
            "CARGO_PROFILE_DEV_DEBUG": "0",
            "TMPDIR": str(copies),
        },
    )
    shutil.rmtree(copies, ignore_errors=True)
    if done.returncode == _FAILED_BASELINE:
        raise BuildError(f"the tests fail without a mutant: {_LOG}")
    listed = {state: _lines(OUTPUT / "mutants.out" / f"{state}.txt") for state in _STATES}
    report = Report(ran=", ".join(f"{len(names)} {state}" for state, names in listed.items()))
    report.findings = [f"no test notices it: {name}" for name in listed["missed"]]
    if done.returncode == 124:
        report.ran += ", no time for the rest"
    elif done.returncode not in (0, 2, 3):
        report.findings.append(f"cargo-mutants ended with {done.returncode}: {_LOG}")
    return report


def _diff() -> Path | None:
    """Write what the working tree changes since it left main. None if that is nothing."""
    git = ["git", "-C", str(REPOSITORY)]
    base = subprocess.run([*git, "merge-base", "main", "HEAD"], capture_output=True, check=False)
    commit = base.stdout.decode().strip() or "HEAD"
    changed = subprocess.run([*git, "diff", commit, "--", "src"], capture_output=True, check=True)
    path = OUTPUT / "mutants.diff"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(changed.stdout)
    return path if changed.stdout else None


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
