"""Runs kvring's suites in virtual machines: a boot for each kernel, with drives for its targets."""

from __future__ import annotations

import datetime
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.tool import OUTPUT, REPOSITORY
from tools.vm.machine import boot, make_root
from tools.vm.packages import KERNEL_SUITES, fetch_kernel, fetch_programs

LOGS = OUTPUT / "vm-logs"
_GUEST = Path(__file__).with_name("guest")
_RUST_PROGRAMS = ("kvring", "api", "durability", "layouts")
_TEST_DISTRIBUTIONS = (
    *("pytest", "iniconfig", "packaging", "pluggy", "pytest-timeout", "pytest-xdist", "execnet"),
)
_MIB = 1 << 20
# The test matrix takes all of a bare drive.
_DRIVE_BYTES = 128 * _MIB
# Interleaved with 8 bytes of protection information for each block.
_PROTECTED_BYTES = _DRIVE_BYTES // 512 * 520
_EVERYWHERE = ("ext4", "xfs", "nvme")
# What has no file system is the same for every kernel that has it: one kernel shows it.
_NEWEST_ONLY = ("4kn", "pi", "zoned", "fdp")

# In the order in which they run.
CELLS = [
    *("/".join(one) for one in itertools.product(KERNEL_SUITES, _EVERYWHERE)),
    *(f"newest/{target}" for target in _NEWEST_ONLY),
]


@dataclass
class SuiteOutcome:
    """What a suite did in a cell.

    Attributes:
        kernel: Its version, such as 6.1.192.
        target: A file system or a drive.
        suite: The name of the suite.
        passed: How many tests.
        failed: Their names, or why the suite did not run.
        skipped: How many tests, by reason.
        seconds: How long it ran, in emulation.
        commit: What it ran on, as `git describe` tells it.
        date: When.
    """

    kernel: str
    target: str
    suite: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0
    commit: str = ""
    date: str = ""


def run(
    cells: Iterable[str], suites: list[str], cache: Path, deadline_s: float
) -> list[SuiteOutcome]:
    """Run cells, and return what their suites did. Consoles and outcomes are kept in `LOGS`.

    Args:
        cells: Of `CELLS`.
        suites: Names of suites, all if there is none.
        cache: A folder for packages, made if it is missing.
        deadline_s: When a machine is ended.

    Raises:
        subprocess.CalledProcessError: A package cannot be fetched, or a test does not build.
        RuntimeError: A package is missing.
    """
    cache.mkdir(parents=True, exist_ok=True)
    by_series = {
        series: [cell.split("/")[1] for cell in group]
        for series, group in itertools.groupby(cells, lambda cell: cell.split("/")[0])
    }
    programs = fetch_programs(cache)
    kernels = [fetch_kernel(cache, series) for series in by_series]
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with tempfile.TemporaryDirectory(dir=cache) as name:
        directory = Path(name)
        image = directory / "root.ext4"
        extra = {
            "site/tools/__init__.py": REPOSITORY / "tools" / "__init__.py",
            "site/tools/vm/__init__.py": _GUEST.parent / "__init__.py",
            "site/tools/vm/guest": _GUEST,
            "repository/pyproject.toml": REPOSITORY / "pyproject.toml",
            "repository/tests/__init__.py": REPOSITORY / "tests" / "__init__.py",
            "repository/tests/python": REPOSITORY / "tests" / "python",
            "repository/tests/support": REPOSITORY / "tests" / "support",
            **{f"rust/{one.name}": one for one in _build_rust_tests(directory)},
        }
        make_root(
            programs,
            _GUEST / "main.py",
            image,
            kernels=kernels,
            distributions=_TEST_DISTRIBUTIONS,
            extra=extra,
        )
        for kernel in kernels:
            targets = by_series[kernel.series]
            print(f"Linux {kernel.release}: {', '.join(targets)}", flush=True)
            report = directory / "report"
            report.write_bytes(b"")
            began_s = time.monotonic()
            try:
                console = boot(
                    programs,
                    kernel,
                    image,
                    _drives(directory, targets),
                    deadline_s,
                    arguments=[*targets, *(f"suite={one.replace(' ', '_')}" for one in suites)],
                    report=report,
                )
            except subprocess.TimeoutExpired as error:
                console = (error.stdout or b"").decode(errors="replace")
            (LOGS / f"{kernel.release}.log").write_text(console, encoding="utf-8")
            if "guest ended with 0" not in console:
                print(console[-2000:], flush=True)
            found = _read(report, kernel.release, targets, is_complete="ended with 0" in console)
            if not suites:
                _save(found, series=kernel.series)
            outcomes += found
            print(f"  {time.monotonic() - began_s:.0f} s, {_counts(found)}", flush=True)
    return outcomes


def last_outcomes() -> list[SuiteOutcome]:
    """Return what each cell did when it last ran in full; nothing where one never did."""
    outcomes = {series: _load(series) for series in KERNEL_SUITES}
    ran = {f"{series}/{one.target}" for series, found in outcomes.items() for one in found}
    return list(itertools.chain(*outcomes.values())) if ran == set(CELLS) else []


def _load(series: str) -> list[SuiteOutcome]:
    file = LOGS / f"{series}.json"
    return [SuiteOutcome(**one) for one in json.loads(file.read_text())] if file.exists() else []


def _save(outcomes: list[SuiteOutcome], *, series: str) -> None:
    """Put outcomes in the place of those that their targets had before."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    for one in outcomes:
        one.commit, one.date = done.stdout.strip(), today
    targets = {one.target for one in outcomes}
    kept = [one for one in _load(series) if one.target not in targets]
    order = [cell.split("/")[1] for cell in CELLS if cell.startswith(f"{series}/")]
    all_of_them = sorted([*kept, *outcomes], key=lambda one: order.index(one.target))
    text = json.dumps([asdict(one) for one in all_of_them], indent=1)
    (LOGS / f"{series}.json").write_text(text, encoding="utf-8")


def _counts(outcomes: list[SuiteOutcome]) -> str:
    passed = sum(one.passed for one in outcomes)
    failed = sum(len(one.failed) for one in outcomes)
    skipped = sum(sum(one.skipped.values()) for one in outcomes)
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def _build_rust_tests(directory: Path) -> list[Path]:
    """Build the test programs; return copies without debug information."""
    # As in the Makefile, so that nothing is built anew.
    cargo = ["cargo", "test", "--workspace", "--exclude", "kvring-python", "--locked"]
    done = subprocess.run(
        [*cargo, "--no-run", "--message-format=json"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    built = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] in _RUST_PROGRAMS:
            program = directory / message["target"]["name"]
            subprocess.run(["strip", "-o", str(program), message["executable"]], check=True)
            built.append(program)
    return built


def _drives(directory: Path, targets: list[str]) -> list[str]:
    """Return QEMU's arguments for blank drives. A target is the serial number of its drive."""
    sizes = {
        "disk": 6 << 30,
        **{target: _DRIVE_BYTES for target in targets if target not in ("ext4", "xfs")},
    }
    if "pi" in targets:
        sizes["pi"] = _PROTECTED_BYTES
    devices = {
        "4kn": ["nvme,drive=drive-4kn,serial=4kn,logical_block_size=4096,physical_block_size=4096"],
        "pi": ["nvme,id=pi,serial=pi", "nvme-ns,drive=drive-pi,bus=pi,ms=8,pi=1"],
        "zoned": [
            "nvme,id=zoned,serial=zoned",
            "nvme-ns,drive=drive-zoned,bus=zoned,zoned=on,zoned.zone_size=4M",
        ],
        # Four handles of eight; a reclaim unit is never full: what is left of it tells the bytes.
        "fdp": [
            "nvme-subsys,id=fdp-subsystem,fdp=on,fdp.nruh=8,fdp.nrg=1,fdp.runs=1G",
            "nvme,id=fdp,subsys=fdp-subsystem,serial=fdp",
            "nvme-ns,drive=drive-fdp,bus=fdp,nsid=1,fdp.ruhs=0;1;2;5",
        ],
    }
    arguments = []
    for name, size_bytes in sizes.items():
        image = directory / f"{name}.image"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        # The host need not flush: no machine is cut off here.
        options = "format=raw,if=none,discard=unmap,cache=unsafe"
        arguments += ["-drive", f"file={image},id=drive-{name},{options}"]
        for device in devices.get(name, [f"nvme,drive=drive-{name},serial={name}"]):
            arguments += ["-device", device]
    return arguments


def _read(
    report: Path, kernel: str, targets: list[str], *, is_complete: bool
) -> list[SuiteOutcome]:
    """Read what the guest reported. A target that did not end has failed."""
    lines = [json.loads(line) for line in report.read_text(errors="replace").splitlines() if line]
    ended = {line["target"] for line in lines if line.get("ended")}
    kernel = next((line["kernel"] for line in lines if "kernel" in line), kernel)
    outcomes = [SuiteOutcome(kernel, **line) for line in lines if "suite" in line]
    outcomes += [
        SuiteOutcome(kernel, target, "end", failed=["it did not end"])
        for target in targets
        if target not in ended
    ]
    if not is_complete and not outcomes:
        outcomes.append(SuiteOutcome(kernel, targets[0], "boot", failed=["it did not boot"]))
    return outcomes
