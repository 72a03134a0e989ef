"""`python -m tools.vm.power_loss`: a virtual machine loses power under load, again and again.

Below the guest QEMU logs each write and flush of the drive. The machine is killed at a random
moment; further moments are chosen within the log. For each the drive is made anew: everything up to
the last flush, and of what came after it a random part, torn per sector. A machine boots with these
drives, opens the stores and reads all chunks; what it finds is compared with what had been
acknowledged. The control runs the same with flushes ignored: it must be caught.

It needs apt-get and dpkg, no root and no KVM, and kvring built for this Python. About 20 minutes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.block_devices import temporary_directory
from tests.support.write_log import Images
from tools.tool import OUTPUT, REPOSITORY
from tools.vm.cut_machine import Machines, Recording
from tools.vm.machine import make_root
from tools.vm.packages import KERNEL_SUITES, fetch_kernel, fetch_programs
from tools.vm.power_loss_oracle import Cut, Row
from tools.vm.power_loss_report import report_of

_MIB = 1 << 20
# mkfs.xfs takes no less than 300 MiB.
SIZE_BYTES = {"ext4": 160 * _MIB, "xfs": 320 * _MIB, "bare": 96 * _MIB}
_PLACES = [("ext4", "extents"), ("ext4", "files"), ("xfs", "extents"), ("xfs", "files")]
CASES = [
    (file_system, layout, durability)
    for file_system, layout in [*_PLACES, ("bare", "extents")]
    for durability in ("persistent", "best_effort")
]
# The shortest and the longest load before the kill, in seconds of the guest.
_LOAD_S = (12.0, 24.0)


def main() -> int:
    """Cut as often as is asked, print a table and write it. Returns the exit status."""
    arguments = _parse()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    programs = fetch_programs(arguments.cache)
    kernel = fetch_kernel(arguments.cache, arguments.kernel)
    cases = [case for case in CASES if "/".join(case).startswith(arguments.only)]
    if not cases:
        raise SystemExit(f"--only {arguments.only}: no case begins so; one is {'/'.join(CASES[0])}")
    cuts = [arguments.cuts // len(cases)] * len(cases)
    for at in range(arguments.cuts % len(cases)):
        cuts[at] += 1
    print(f"seed {arguments.seed}, Linux {kernel.release}", flush=True)
    rows: list[Row] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.cache) as directory:
        root = Path(directory, "root.ext4")
        guest = Path(__file__).with_name("guest") / "power_loss.py"
        make_root(programs, guest, root, kernels=[kernel])
        machines = Machines(programs, kernel, root, arguments.deadline, arguments.keep)
        for case, count in zip(cases, cuts, strict=True):
            if count:
                rows += _run_case(machines, case, count, arguments.seed)
    minutes = (time.monotonic() - began) / 60
    command = f"python -m tools.vm.power_loss --cuts {arguments.cuts} --seed {arguments.seed}"
    text = report_of(rows, command, kernel, programs, minutes)
    print(text)
    if not arguments.only:
        arguments.report.parent.mkdir(exist_ok=True)
        arguments.report.write_text(text, encoding="utf-8")
    return 0 if all(row.is_as_promised for row in rows) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.vm.power_loss", description=__doc__)
    parser.add_argument("--cache", type=Path, default=OUTPUT / "vm", help="where packages lie")
    parser.add_argument("--kernel", choices=list(KERNEL_SUITES), default="newest")
    parser.add_argument("--cuts", type=int, default=50, help="of all cases together")
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument(
        "--only", default="", metavar="CASE", help="cases that begin so: ext4/files/persistent"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=REPOSITORY / "results" / "power-loss.md",
        metavar="FILE",
        help="written where no case is left out",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="drives with a fault are kept there"
    )
    parser.add_argument(
        "--deadline", type=float, default=600, metavar="SECONDS", help="of each machine"
    )
    return parser.parse_args()


def _run_case(machines: Machines, case: tuple[str, str, str], count: int, seed: int) -> list[Row]:
    """Put a machine under load, kill it, and judge so many cuts of it."""
    file_system, _, durability = case
    title = "/".join(case)
    chance = random.Random(f"{seed} {title}")
    rows = [Row(title, is_control=False)]
    if file_system == "bare":
        rows.append(Row(f"{title}, flushes ignored", is_control=True))
    with ExitStack() as stack:
        work = temporary_directory(stack, machines.root.parent)
        recording = machines.record(
            work, [*case, str(seed)], SIZE_BYTES[file_system], chance.uniform(*_LOAD_S)
        )
        # The kill itself, and moments within the log, in order.
        samples = [*chance.sample(recording.samples[:-1], count - 1), recording.samples[-1]]
        for row in rows:
            row.kills = 1
            cuts = _make_cuts(stack, recording, sorted(samples), row, durability, chance, work)
            found = machines.survey(case, [cut.image for cut in cuts])
            for cut, told in zip(cuts, found, strict=True):
                if not cut.judge(*told) and machines.kept and not row.is_control:
                    name = f"{title.replace('/', '-')}-{len(row.faults)}.image"
                    shutil.copy(cut.image, machines.kept / name)
            print(row.summary(), flush=True)
            if not row.is_control:
                print("".join(f"    {fault}\n" for fault in row.faults[:20]), end="", flush=True)
    return rows


def _make_cuts(
    stack: ExitStack,
    recording: Recording,
    samples: list[tuple[int, int]],
    row: Row,
    durability: str,
    chance: random.Random,
    work: Path,
) -> list[Cut]:
    folder = temporary_directory(stack, work)
    # The control formats the store still with a drive that flushes.
    ignored_from = recording.samples[0][0] if row.is_control else None
    images = Images(recording.log, recording.size_bytes, folder, flushes_until_bytes=ignored_from)
    cuts: list[Cut] = []
    for log_bytes, lines in samples:
        image = folder / f"{len(cuts)}.image"
        images.make(chance, images.moment_of(log_bytes), image)
        title = f"{row.name}, cut at {log_bytes} bytes of the log"
        told = recording.told[:lines]
        cuts.append(Cut(row, title, told, durability == "persistent", image))
    return cuts


if __name__ == "__main__":
    sys.exit(main())
