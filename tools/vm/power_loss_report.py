"""The table of a run of `tools.vm.power_loss`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from tools.tool import REPOSITORY
from tools.vm.packages import Kernel, library_environment
from tools.vm.power_loss_oracle import Row

_HEAD = (
    "| file system / layout / durability | cuts (kills) | acknowledged | promised | "
    "lost in bound | oldest lost | lost beyond | wrong bytes | failed opens | "
    "longest flush | result |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def report_of(
    rows: Sequence[Row], command: str, kernel: Kernel, programs: Path, minutes: float
) -> str:
    """Return a page with the table, and under which conditions it came about."""
    qemu = subprocess.run(
        [str(programs / "usr" / "bin" / "qemu-system-x86_64"), "--version"],
        env=library_environment(programs),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[0]
    commit = subprocess.run(
        ["git", "-C", str(REPOSITORY), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    tested = [row for row in rows if not row.is_control]
    return (
        "# Power loss in a virtual machine\n\n"
        f"Written by `{command}` on {datetime.now(timezone.utc):%Y-%m-%d}, commit {commit}, in "
        f"{minutes:.0f} minutes. Linux {kernel.release}, {qemu}, TCG, 2 virtual CPUs on "
        f"{os.cpu_count()} CPUs of the host, emulated NVMe drive with a volatile write cache.\n\n"
        f"{sum(row.cuts for row in tested)} cuts: {sum(row.kills for row in tested)} kills of QEMU "
        "under load, the others at random points of the same write logs. Each drive keeps what was "
        "flushed; each later write is kept, dropped or torn per 512-byte sector, at random. "
        "A write that completed during a flush counts as flushed. "
        "A second virtual machine boots with the drives, opens the stores and reads every chunk."
        "\n\n"
        f"{_HEAD}{''.join(map(_line, rows))}\n"
        "- Acknowledged: chunks that were stored and acknowledged, summed over all cuts, without "
        "those that may have been evicted. Promised: those of them that power loss must not take. "
        f"{sum(row.batches for row in tested):,} SETs and DELETEs were acknowledged.\n"
        "- Bound: `persistent` may lose nothing; `best_effort` the last 2 s, if a flush takes less "
        "than 1 s, else three times the longest flush, by the clock of the guest. An older chunk "
        "may go where another one of its key was acknowledged since.\n"
        "- Flushes ignored: the control. The same log, replayed as by a drive that ignores flushes,"
        " must show losses.\n"
    )


def _line(row: Row) -> str:
    is_good = row.is_as_promised
    good, bad = ("caught", "NOT CAUGHT") if row.is_control else ("as promised", "FAILED")
    cells = [
        row.name.replace("/", " / "),
        f"{row.cuts} ({row.kills})",
        f"{row.acknowledged:,}",
        f"{row.promised:,}",
        f"{row.lost_within:,}",
        f"{row.oldest_lost_s:.1f} s" if row.lost_within else "-",
        f"{row.lost_beyond:,}",
        f"{row.wrong:,}",
        f"{row.failed_opens:,}",
        f"{row.longest_flush_s:.1f} s" if row.longest_flush_s else "-",
        good if is_good else bad,
    ]
    return f"| {' | '.join(cells)} |\n"
