"""`python -m tools.vm.fdp`: a virtual machine with an FDP drive shows where chunks arrive.

It needs apt-get, dpkg and mkfs.ext4, no root and no KVM, and kvring built for this Python. QEMU and
a kernel are fetched once into a folder, about 150 MB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tools.tool import OUTPUT
from tools.vm.machine import boot, make_root
from tools.vm.packages import fetch_kernel, fetch_programs

_DRIVE_BYTES = 64 << 20
# Four handles of eight; a reclaim unit is never full, so that what is left of it tells the bytes.
_SUBSYSTEM = "nvme-subsys,id=s0,fdp=on,fdp.nruh=8,fdp.nrg=1,fdp.runs=1G"
_NAMESPACE = "nvme-ns,drive=fdp,bus=n0,nsid=1,fdp.ruhs=0;1;2;5"


def main() -> int:
    """Boot it, and print what it prints. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.vm.fdp", description=__doc__)
    parser.add_argument("--cache", type=Path, default=OUTPUT / "vm", help="where packages lie")
    parser.add_argument("--deadline", type=float, default=600, metavar="SECONDS")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    programs, kernel = fetch_programs(arguments.cache), fetch_kernel(arguments.cache, "newest")
    with tempfile.TemporaryDirectory(dir=arguments.cache) as directory:
        image = Path(directory, "root.ext4")
        make_root(programs, Path(__file__).with_name("fdp_guest.py"), image)
        began = time.monotonic()
        printed = boot(programs, kernel, image, _drives(Path(directory)), arguments.deadline)
    print(printed)
    print(f"{time.monotonic() - began:.0f} s from start to power-off")
    return 0 if "guest ended with 0" in printed else 1


def _drives(directory: Path) -> list[str]:
    drives = []
    for name in ("fdp", "plain"):
        image = directory / f"{name}.image"
        with image.open("wb") as file:
            file.truncate(_DRIVE_BYTES)
        drives += ["-drive", f"file={image},format=raw,if=none,id={name}"]
    return [
        *drives,
        *("-device", _SUBSYSTEM, "-device", "nvme,id=n0,subsys=s0,serial=fdp,addr=5"),
        *("-device", _NAMESPACE, "-device", "nvme,drive=plain,serial=plain,addr=6"),
    ]


if __name__ == "__main__":
    sys.exit(main())
