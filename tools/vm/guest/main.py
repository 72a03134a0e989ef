"""In a virtual machine: run the suites of each target that the command line names.

Each suite is one line of JSON on /dev/ttyS1. `tools/vm/matrix.py` makes the machine and its drives.
"""

import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import kvring
from tools.vm.guest import placement

PYTHON = sys.executable
REPORT = Path("/dev/ttyS1")
MOUNT = Path("/mnt")
# Emulation is slow: what takes longer hangs.
DEADLINE_S = 900
FILE_SYSTEMS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
# Suite: the test programs and the tests in them.
RUST_SUITES = {
    "contract": [("api", "contract::")],
    "engines": [("kvring", "engine::"), ("api", "engines::")],
    "durability": [("durability", "")],
    "device": [("layouts", "device::")],
    "registered memory": [("api", "registered_memory::")],
}
# On simulated disks and loop devices: minutes in emulation, and little of the file system.
ON_ONE_FILE_SYSTEM = ("durability", "device")
# Tests that take a ring for one that has what later kernels added. Linux 5.10.162 has that of 5.15.
NEED_NEWER_RING = (
    "engine::tests::each_kernel_gets_",
    *(
        f"engine::registered_memory::tests::{name}"
        for name in (
            "rings_",
            "what_is_queued_",
            "memory_that_is_registered_",
            "a_ring_",
            "an_entry_",
        )
    ),
    *(f"registered_memory::{name}" for name in ("bytes_", "every_reactor_", "memory_is_unregist")),
)
OLD_RING = "the io_uring of this kernel has no registered memory that kvring can use"
HAS_OLD_RING = [int(one) for one in os.uname().release.split(".")[:2]] < [5, 19]
# It simulates 256 machines in memory: minutes in emulation, and no drive takes part.
TOO_SLOW = "power_loss::power_loss_while_a_kill_is_cleaned_up_leaves_one_of_two_records"
SIMULATED = "a simulation that is slow in emulation and uses no drive"
MATRIX_SUITES = {
    "contract": "test_contract.py",
    "durability": "test_restart.py",
    "damage": "test_damage.py",
    "capacity": "test_capacity.py",
}


@dataclass
class Outcome:
    """What a suite did."""

    target: str
    suite: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0

    def skip(self, reason: str, count: int = 1) -> None:
        """Count skipped tests."""
        if count:
            self.skipped[reason] = self.skipped.get(reason, 0) + count


class Suite:
    """Times a suite and reports its outcome; an exception fails it."""

    def __init__(self, target: str, name: str) -> None:
        """Begin it."""
        self.outcome = Outcome(target, name)
        self._began_s = time.monotonic()

    def __enter__(self) -> Outcome:
        """Return the outcome, to be filled in."""
        print(f"== {self.outcome.target}: {self.outcome.suite}", flush=True)
        return self.outcome

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Report it."""
        if error is not None:
            self.outcome.failed.append(f"{type(error).__name__}: {error}")
        if not self.outcome.passed and not self.outcome.failed and not self.outcome.skipped:
            self.outcome.failed.append("no test ran")
        self.outcome.seconds = round(time.monotonic() - self._began_s, 1)
        report(asdict(self.outcome))
        print(self.outcome, flush=True)
        return isinstance(error, Exception)


SUITES = {one.removeprefix("suite=").replace("_", " ") for one in sys.argv if "suite=" in one}


def is_chosen(suite: str) -> bool:
    """Tell whether the command line names a suite, or none."""
    return not SUITES or suite in SUITES


def report(line: dict[str, object]) -> None:
    """Send a line to the host."""
    with REPORT.open("w") as file:
        file.write(json.dumps(line) + "\n")


def call(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what hangs is killed, and its output shown."""
    try:
        return subprocess.run(
            command,
            env=os.environ | environment,
            cwd="/repository",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        print((error.stdout or b"").decode(errors="replace"), flush=True)
        raise


def check(command: list[str]) -> str:
    """Run a command that must work; return what it printed."""
    done = call(command)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def drive(serial: str) -> Path:
    """Return the drive with this serial number; their order differs from boot to boot."""
    for one in Path("/sys/block").iterdir():
        is_drive = re.fullmatch(r"nvme\d+n\d+", one.name)
        if is_drive and (one / "device" / "serial").read_text().strip() == serial:
            return Path("/dev") / one.name
    raise RuntimeError(f"there is no drive {serial}")


def run_rust(outcome: Outcome, program: str, tests: str, directory: Path) -> None:
    """Run tests of a Rust program whose stores lie below a directory."""
    command = [f"/rust/{program}", "--show-output", "--test-threads=2", *filter(None, [tests])]
    if program == "durability":
        command += ["--skip", TOO_SLOW]
        listed = check([*command[:1], "--list"])
        outcome.skip(SIMULATED, listed.count(f"{TOO_SLOW}: test"))
    if HAS_OLD_RING:
        command += [f"--skip={one}" for one in NEED_NEWER_RING]
        names = check([*command[:1], "--list", *filter(None, [tests])]).splitlines()
        outcome.skip(OLD_RING, sum(any(one in name for one in NEED_NEWER_RING) for name in names))
    done = call(command, TMPDIR=str(directory))
    results = re.findall(r"^test (\S+).* \.\.\. (ok|FAILED|ignored)", done.stdout, re.MULTILINE)
    printed = re.split(r"^---- (\S+) stdout ----$", done.stdout, flags=re.MULTILINE)
    reasons = {}
    for test, text in zip(printed[1::2], printed[2::2], strict=True):
        if found := re.search(r"^skipped\b.*?: (.+)$", text, re.MULTILINE):
            reasons[test] = found[1]
    for test, result in results:
        if result == "FAILED":
            outcome.failed.append(test)
        elif result == "ignored" or test in reasons:
            outcome.skip(reasons.get(test, "ignored"))
        else:
            outcome.passed += 1
    if done.returncode and not outcome.failed:
        outcome.failed.append(f"{program} ended with {done.returncode}")
    if done.returncode:
        print(done.stdout, done.stderr, flush=True)


def run_matrix(outcome: Outcome, file: str, device: Path, block_bytes: int) -> None:
    """Run a file of the test matrix on a bare drive."""
    results = Path("/tmp/results.xml")
    results.unlink(missing_ok=True)
    done = call(
        [
            *(PYTHON, "-m", "pytest", f"tests/python/matrix/{file}", "-k", f"raw-{block_bytes}"),
            *("-p", "no:cacheprovider", "-o", f"timeout={DEADLINE_S}", f"--junitxml={results}"),
        ],
        KVRING_TEST_DRIVE=str(device),
        TMPDIR="/var/tmp",
    )
    for case in ElementTree.parse(results).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(str(case.get("name")))
        elif skipped is not None:
            outcome.skip(str(skipped.get("message")))
        else:
            outcome.passed += 1
    if done.returncode and not outcome.failed:
        outcome.failed.append(f"pytest ended with {done.returncode}")
    if done.returncode:
        print(done.stdout, done.stderr, flush=True)


def run_commands(target: str, path: Path, *options: str) -> None:
    """Run doctor and a bench that compares each byte."""
    if is_chosen("doctor"):
        with Suite(target, "doctor") as outcome:
            run_doctor(outcome, path)
    if is_chosen("bench"):
        workload = ("--rw", "randrw", "--bs", "4k-1m", "--size", "48m", "--registered", "on")
        bench = [PYTHON, "-m", "kvring", "bench", "--path", str(path), *workload, *options]
        with Suite(target, "bench") as outcome:
            print(check([*bench, "--verify", "on"]), flush=True)
            outcome.passed += 1


def run_doctor(outcome: Outcome, path: Path) -> None:
    """Run doctor; an error that it finds is a failure."""
    done = call([PYTHON, "-m", "kvring", "doctor", str(path), "--json"])
    findings = json.loads(done.stdout)
    for one in findings:
        if one["level"] != "ok":
            print(one["level"], one["check"], one["what"], flush=True)
    outcome.failed += [one["what"] for one in findings if one["level"] == "error"]
    # 3: warnings, as of a machine of 1.5 GB.
    if done.returncode not in (0, 3) and not outcome.failed:
        outcome.failed.append(f"doctor ended with {done.returncode}: {done.stderr}")
    outcome.passed += not outcome.failed


def file_system(target: str) -> None:
    """Run the Rust suites in a directory on a file system of its own."""
    device = drive("disk")
    check([*FILE_SYSTEMS[target], str(device)])
    check(["mount", str(device), str(MOUNT)])
    suites = {name: found for name, found in RUST_SUITES.items() if is_chosen(name)}
    for name, programs in suites.items():
        if target != "ext4" and name in ON_ONE_FILE_SYSTEM:
            continue
        with Suite(target, name) as outcome:
            for program, tests in programs:
                run_rust(outcome, program, tests, MOUNT)
    run_commands(target, MOUNT)
    check(["umount", str(MOUNT)])


def bare_drive(target: str, block_bytes: int) -> None:
    """Run the test matrix on a bare drive."""
    device = drive(target)
    found = Path("/sys/block", device.name, "queue", "logical_block_size").read_text()
    if int(found) != block_bytes:
        raise RuntimeError(f"{device} has blocks of {found.strip()} bytes")
    for name, file in filter(lambda one: is_chosen(one[0]), MATRIX_SUITES.items()):
        with Suite(target, name) as outcome:
            run_matrix(outcome, file, device, block_bytes)
    # A bench refuses a device that holds a store.
    placement.make_blank(device)
    run_commands(target, device, "--erase-devices")


def protected(target: str) -> None:
    """Run the test matrix on a drive with protection information, if the kernel uses it."""
    profile = Path("/sys/block", drive(target).name, "integrity", "format").read_text().strip()
    if profile != "T10-DIF-TYPE1-CRC":
        raise RuntimeError(f"the drive has no protection information of type 1, but {profile!r}")
    bare_drive(target, 512)


def zoned(target: str) -> None:
    """An open refuses a zoned drive with the reason, before it writes; doctor says the same."""
    device = drive(target)
    with Suite(target, "refused") as outcome:
        message = "it was opened"
        try:
            kvring.Connector(device, "all").close()
        except kvring.ConfigError as error:
            message = str(error)
        print(message, flush=True)
        assert "host-managed zoned device" in message, message
        outcome.passed += 1
        done = call([PYTHON, "-m", "kvring", "doctor", str(device), "--json"])
        errors = [one for one in json.loads(done.stdout) if one["level"] == "error"]
        assert done.returncode == 1, done
        assert any("host-managed zones" in one["what"] for one in errors), errors
        outcome.passed += 1
        written_sectors = int(Path("/sys/block", device.name, "stat").read_text().split()[6])
        assert written_sectors == 0, f"{written_sectors} sectors are written"
        outcome.passed += 1


def write_streams(target: str) -> None:
    """Each class of chunks arrives at its own reclaim unit handle, by the drive's own log page."""
    for name, show in placement.CASES.items():
        with Suite(target, name) as outcome:
            show(drive(target), drive("disk"))
            outcome.passed += 1


TARGETS: dict[str, Callable[[str], None]] = {
    "ext4": file_system,
    "xfs": file_system,
    "nvme": lambda target: bare_drive(target, 512),
    "4kn": lambda target: bare_drive(target, 4096),
    "pi": protected,
    "zoned": zoned,
    "fdp": write_streams,
}


def main() -> None:
    """Run them, one after the other."""
    version = re.search(r"Debian (\d[\d.]*\d)", os.uname().version)
    kernel = version[1] if version else os.uname().release
    print(f"Linux {kernel}", flush=True)
    report({"kernel": kernel})
    for module in ("xfs", "loop"):
        check(["modprobe", module])
    for target in (one for one in sys.argv[1:] if "suite=" not in one):
        try:
            TARGETS[target](target)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            traceback.print_exc()
            report(asdict(Outcome(target, "set up", failed=[f"{type(error).__name__}: {error}"])))
        report({"target": target, "ended": True})


main()
