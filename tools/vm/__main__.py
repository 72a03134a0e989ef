"""`python -m tools.vm`: kvring's suites on several kernels, each with file systems and drives.

It needs apt-get, dpkg, mkfs.ext4 and cargo, no root and no KVM. QEMU and kernels are downloaded
once, about 250 MB. Exit status: 0, or 1 where a test failed, or was skipped for a reason not known.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.tool import OUTPUT
from tools.vm.matrix import CELLS, last_outcomes, run
from tools.vm.table import problems, summary, write_results


def main() -> int:
    """Run the cells, print the table, and write it where all ran. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.vm", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="KERNEL[/TARGET]",
        help=f"run these cells, of {', '.join(CELLS)}",
    )
    parser.add_argument("--suite", action="append", help="run these suites of each cell")
    parser.add_argument("--cache", type=Path, default=OUTPUT / "vm", help="folder for packages")
    parser.add_argument("--deadline", type=float, default=3600, metavar="SECONDS", help="per boot")
    arguments = parser.parse_args()
    chosen = [one for one in CELLS if arguments.only is None or _is_chosen(one, arguments.only)]
    if not chosen:
        parser.error(f"there is no such cell; the cells are {', '.join(CELLS)}")
    outcomes = run(chosen, arguments.suite or [], arguments.cache.resolve(), arguments.deadline)
    print(summary(outcomes))
    if complete := last_outcomes():
        print(f"written: {write_results(complete)}")
    found = problems(outcomes)
    print("\n".join(found))
    return 1 if found else 0


def _is_chosen(cell: str, only: list[str]) -> bool:
    return any(cell == one or cell.startswith(f"{one}/") for one in only)


if __name__ == "__main__":
    sys.exit(main())
