"""`kvring doctor` of write streams: what a drive offers, and what it says it wrote."""

from pathlib import Path

import pytest

from kvring.cli.doctor.data_placement import PlacementStatistics, look_at_placement


@pytest.mark.parametrize(
    ("count", "file_system", "is_partition", "level", "part"),
    [
        (None, None, False, "OK", "Linux 6.16"),
        (0, None, False, "OK", "has none"),
        (2, None, False, "NOTE", "needs 3"),
        (4, None, False, "OK", "has 4, with reclaim units of 16.0 MiB"),
        (4, "ext4", False, "NOTE", "ext4 ignores them"),
        (4, None, True, "NOTE", "has 4, and a partition of it none"),
    ],
)
def test_write_streams_of_a_drive(
    tmp_path: Path,
    count: int | None,
    file_system: str | None,
    is_partition: bool,
    level: str,
    part: str,
) -> None:
    # No drive has this name: of what it wrote nothing can be read.
    drive = tmp_path / "nvme99n1"
    (drive / "queue").mkdir(parents=True)
    if count is not None:
        (drive / "queue" / "max_write_streams").write_text(f"{count}\n", encoding="ascii")
        granularity = drive / "queue" / "write_stream_granularity"
        granularity.write_text("16777216\n", encoding="ascii")
    found, *others = look_at_placement(drive, drive, file_system, is_partition=is_partition)
    assert (found.level.name, part in found.what) == (level, True), found
    assert [one.level.name for one in others] == (["NOTE"] if count and not is_partition else [])
    assert all("No such file" in one.what for one in others), others


def test_statistics_of_a_drive_are_two_long_numbers() -> None:
    host, media = 3 << 70, 9 << 69
    page = host.to_bytes(16, "little") + media.to_bytes(16, "little") + bytes(32)
    statistics = PlacementStatistics.of(page)
    assert statistics == (host, media)
    assert str(statistics).endswith("write amplification 1.50")
