"""The comparison: statistics, goals, what is read from other programs, and the devices it makes."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benches.compare import sections
from benches.compare.arena import Arena
from benches.compare.checksum import allowed_rates, costs
from benches.compare.document import merge, published_without, read, samples_by_section, write
from benches.compare.drawing import COLOURS
from benches.compare.failing import ALONE, BEFORE, FAILING, PHASE_TIME, SURVIVING_RATE
from benches.compare.fio import parse_fio
from benches.compare.goals import MISSED, NOT_MEASURED, REACHED, Goal, goals
from benches.compare.lmcache_bench import parse_bench_l2
from benches.compare.markdown import write_markdown
from benches.compare.memory import MEMORY_READ, ONE_CORE, MemoryReader
from benches.compare.peers import (
    BARE,
    FIO,
    FS,
    FS_NATIVE,
    FS_NATIVE_2,
    KVRING,
    KVRING_OFF,
    PEERS,
    RAW_BLOCK,
    REGISTERED,
    Place,
    UnavailableError,
    bare_kvring_peer,
    io_threads_name,
)
from benches.compare.reasons import REASONS, UNEXPLAINED, read_reasons, reason_lines
from benches.compare.samples import (
    CPU,
    RATE,
    Cell,
    Sample,
    Samples,
    Spread,
    figure,
    percentile,
    ratio_of,
    size_text,
)
from benches.compare.session import SectionResult
from benches.compare.tables import section_tables
from benches.compare.workload import (
    TransferError,
    chunk_names,
    timed,
    timed_get,
    timed_set,
)
from tests.python.conftest import bare_loop_device
from tests.support.devices import failing_disk

MIB = 1 << 20
PUT = Cell("put", MIB)


def samples_of(rates: dict[str, list[float]], size_bytes: int = MIB) -> Samples:
    return Samples(
        Sample("put", "", size_bytes, peer, number, {RATE: rate})
        for peer, ones in rates.items()
        for number, rate in enumerate(ones)
    )


def test_spread_of_values() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread(2.0, 1.0, 3.0).text() == "2.00 (1.00-3.00)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (0.0123456, "0.0123"), (1.25, "1.25"), (123.4, "123"), (1e6, "1,000,000")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert figure(value) == text


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 201)]
    assert percentile(values, 50) == 100.0
    assert percentile(values, 99) == 198.0
    assert percentile([7.0], 99) == 7.0


def test_ratios_are_taken_round_by_round() -> None:
    samples = samples_of({KVRING: [10.0, 40.0, 30.0], FS_NATIVE: [10.0, 10.0, 10.0]})
    assert samples.ratio(PUT, KVRING, FS_NATIVE, RATE) == Spread(3.0, 1.0, 4.0)
    assert samples.ratio(PUT, KVRING, FS, RATE) is None


def test_a_single_round_is_compared_with_every_round() -> None:
    assert ratio_of({0: 2.0, 1: 4.0}, {0: 2.0}) == Spread(1.5, 1.0, 2.0)


def test_best_peer_has_the_greatest_median() -> None:
    samples = samples_of({FS_NATIVE: [10.0, 11.0, 12.0], FS: [1.0, 1.0, 99.0]})
    assert samples.best(PUT, [FS_NATIVE, FS], RATE) == FS_NATIVE
    assert samples.best(PUT, [FS_NATIVE, FS], CPU) is None


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(4096, "4 KiB"), (32 * MIB, "32 MiB"), (100, "100 B")]
)
def test_sizes_are_named(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_verdicts() -> None:
    measured = Spread(0.9, 0.5, 1.5)
    assert Goal("", "", 1.0, measured).verdict == MISSED
    assert Goal("", "", 1.0, measured, at_least=False).verdict == REACHED
    assert Goal("", "", 0.9, measured, at_least=False).verdict == REACHED
    assert Goal("", "", 1.0, None).verdict == NOT_MEASURED


def goal_of(listed: list[Goal], what: str) -> Goal:
    return next(goal for goal in listed if goal.what == what)


def test_goals_without_measurements_are_still_listed() -> None:
    listed = goals({})
    assert len(listed) > 40
    assert {goal.verdict for goal in listed} == {NOT_MEASURED}


def test_goal_against_the_best_peer_with_its_best_number_of_workers() -> None:
    samples = samples_of({KVRING: [24.0], FS_NATIVE: [18.0], FS_NATIVE_2: [20.0], FS: [5.0]})
    goal = goal_of(goals({sections.ZRAM: samples}), "put 1 MiB, zram")
    assert (goal.compared_with, goal.target, goal.verdict) == (FS_NATIVE_2, 1.3, MISSED)


@pytest.mark.parametrize(("part", "what"), [("bare", "bare device"), ("disk", "disk")])
def test_goal_against_raw_block(part: str, what: str) -> None:
    rates = {BARE if part == "bare" else KVRING: [80.0], RAW_BLOCK: [10.0], FS_NATIVE: [99.0]}
    samples = samples_of(rates, 4096)
    goal = goal_of(goals({part: samples}), f"put 4 KiB, {what}")
    assert (goal.compared_with, goal.target, goal.verdict) == (RAW_BLOCK, 8.0, REACHED)


def test_defaults_are_compared_with_the_best_fixed_number_of_threads() -> None:
    def sample(peer: str, rate: float, cpu: float) -> Sample:
        return Sample("put", "", MIB, peer, 0, {RATE: rate, CPU: cpu})

    samples = Samples(
        [
            sample(KVRING, 9.0, 0.375),
            sample(io_threads_name(1), 8.0, 0.1),
            sample(io_threads_name(2), 10.0, 0.25),
            sample(f"{KVRING_OFF}, io_threads 1", 99.0, 9.0),
        ]
    )
    listed = goals({sections.THREADS_DISK: samples})
    rate = goal_of(listed, "put 1 MiB, defaults, disk")
    cpu = goal_of(listed, "CPU of put 1 MiB, defaults, disk")
    assert (rate.compared_with, rate.measured) == (io_threads_name(2), Spread(0.9, 0.9, 0.9))
    assert (cpu.compared_with, cpu.measured) == (io_threads_name(2), Spread(1.5, 1.5, 1.5))
    assert (rate.verdict, cpu.verdict) == (MISSED, MISSED)


def sample_with_checksum(
    peer: str, rate: float, cpu: float, operation: str = "get", **more: float
) -> Sample:
    return Sample(operation, "", MIB, peer, 0, {RATE: rate, CPU: cpu, **more})


def samples_with_checksum(cpu: float, cpu_off: float) -> Samples:
    return Samples(
        [
            sample_with_checksum(KVRING, 7000.0, cpu),
            sample_with_checksum(KVRING_OFF, 9000.0, cpu_off),
            sample_with_checksum(FS_NATIVE, 10000.0, 0.2),
            sample_with_checksum(ONE_CORE, 20000.0, 0.05, MEMORY_READ, processor_count=2.0),
        ]
    )


def test_peers_rate_and_cost_of_the_checksum_together() -> None:
    samples = samples_with_checksum(0.25, 0.15)
    cell = Cell("get", MIB)
    assert costs(samples, cell, (KVRING, KVRING_OFF)) == {0: pytest.approx(0.1)}
    # 0.1 s a gigabyte for the peer, and half of 0.1 s for the checksum: it has two processors.
    assert allowed_rates(samples, cell) == {0: pytest.approx(1e3 / 0.15)}
    goal = goal_of(goals({sections.ZRAM: samples}), "get 1 MiB, zram")
    assert goal.measured is not None
    assert goal.measured.median == pytest.approx(1.05)
    titles = [table.title.rpartition(": ")[2] for table in section_tables(sections.ZRAM, samples)]
    assert titles == [
        *("MB/s", "CPU s/GB"),
        "the checksum's share, CPU s/GB",
        "what the checksum allows, MB/s",
    ]


def test_nobody_is_credited_for_a_checksum_that_costs_less_than_nothing() -> None:
    samples = samples_with_checksum(0.1, 0.2)
    assert allowed_rates(samples, Cell("get", MIB)) == {0: pytest.approx(10000.0)}


def test_reading_memory_gives_a_rate_and_the_processors() -> None:
    values = MemoryReader(MIB).measure()
    assert values[RATE] > 0
    assert values["processor_count"] >= 1


def test_goals_that_are_missed_say_why() -> None:
    reasons = read_reasons("# Head\nText.\n### put; open\nA lock.\n\n### get\nThe disk.\n")
    assert reasons == {"put": "A lock.", "open": "A lock.", "get": "The disk."}
    missed = [Goal(what, "", 1.0, Spread(0.5, 0.5, 0.5)) for what in ("put", "other")]
    reached = Goal("get", "", 1.0, Spread(2.0, 2.0, 2.0))
    lines = list(reason_lines([*missed, reached], reasons))
    assert lines[1:] == ["- put: A lock.", f"- other: {UNEXPLAINED}"]
    assert list(reason_lines([reached], reasons)) == []


def test_each_reason_belongs_to_a_goal() -> None:
    known = {goal.what for goal in goals({})}
    assert read_reasons(REASONS.read_text(encoding="utf-8")).keys() <= known


def test_each_system_has_a_colour_of_its_own() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert {*PEERS, FIO, KVRING, KVRING_OFF, REGISTERED} <= COLOURS.keys()


def test_table_of_a_disk_that_dies() -> None:
    rates = {BEFORE: 100.0, ALONE: 80.0}
    samples = Samples(
        Sample(FAILING, "", MIB, phase, 0, {SURVIVING_RATE: rate, PHASE_TIME: 3.0})
        for phase, rate in rates.items()
    )
    (table,) = section_tables(sections.FAILING, samples)
    assert table.header == ["", "keys of the surviving path, MB/s", "time, s"]
    assert table.rows == [[BEFORE, "100", "3.00"], [ALONE, "80.0", "3.00"]]


def test_fio_json_after_a_warning() -> None:
    side = {"io_bytes": 2_000_000_000, "runtime": 1000}
    job = {"write": side, "usr_cpu": 5.0, "sys_cpu": 15.0, "job_runtime": 1000}
    values = parse_fio("fio: a warning\n" + json.dumps({"jobs": [job]}), "put")
    assert values == pytest.approx({RATE: 2000.0, CPU: 0.1})


def bench_l2_section(operation: str, **changed: Any) -> dict[str, Any]:
    return {
        "operation": operation,
        "total_keys": 8,
        "total_success": 8,
        "rounds_timed_out": 0,
        "ops_per_sec_avg": 50.0,
        "throughput_avg_mbps": 100.0,
        **changed,
    }


def test_bench_l2_json() -> None:
    metrics = {
        "config": {},
        "op_0": bench_l2_section("Store"),
        "op_1": bench_l2_section("Lookup", throughput_avg_mbps=0.0),
    }
    rates = parse_bench_l2({"metrics": metrics})
    assert rates["store"][RATE] == pytest.approx(104.8576)
    assert RATE not in rates["lookup"]
    metrics["op_2"] = bench_l2_section("Load", total_success=7)
    with pytest.raises(TransferError, match="load succeeded for 7 of 8"):
        parse_bench_l2({"metrics": metrics})


def place_on(raw_device: Path, directory: Path) -> Place:
    arena = Arena(MIB, huge_pages=False)
    return Place(directory, raw_device, arena, MIB, 64 * MIB)


@pytest.mark.root
def test_bare_device_is_taken_over_from_whoever_had_it(tmp_path: Path) -> None:
    peer = bare_kvring_peer(BARE)
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        place = place_on(device.path, tmp_path)
        names = chunk_names("kept", 4)
        # A blank device, a store of the round before, and what another has written over that.
        for stranger in (b"", b"", b"\xa5" * (8 * MIB)):
            with device.path.open("r+b", buffering=0) as file:
                file.write(stranger)
            client = peer.open(place)
            try:
                timing = timed(client, [partial(client.submit_exists, names)], all_true=False)
                assert timing.results == [[False] * 4], "an earlier store is no part of it"
                timed_set(client, names, place.arena.to_store(MIB, 1) * 4, 2)
                timed_get(client, names, place.arena.to_load(MIB, 1) * 4, 1)
                assert place.arena.differing_chunks(MIB, 1) == []
            finally:
                client.close()


@pytest.mark.root
def test_bare_peer_without_a_device_is_left_out(tmp_path: Path) -> None:
    place = replace(place_on(tmp_path, tmp_path), raw_device=None)
    with pytest.raises(UnavailableError, match="block device of its own"):
        bare_kvring_peer(BARE).open(place)


@pytest.mark.root
def test_a_failing_disk_fails_when_it_is_told_to(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as below:
        with (
            failing_disk(below.path, tmp_path, 16 * MIB) as disk,
            disk.raw_device.open("r+b", buffering=0) as file,
        ):
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            disk.fail()
            file.write(b"y" * 4096)
            with pytest.raises(OSError, match="Input/output"):
                os.fsync(file.fileno())
        # All that was made is gone: another one can be made in its place.
        with failing_disk(below.path, tmp_path, 16 * MIB) as disk:
            assert disk.raw_device.is_block_device()


def test_parts_are_merged_into_one_document_and_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (make bench-quick)")
    path = tmp_path / "compare.json"
    context: dict[str, Any] = {
        "measured_at": "2026-01-01T00:00:00+00:00",
        "machine": {"kernel": "6.18", "load_average_1min": 0.0},
        "versions": {"kvring": "0.1.0"},
        "settings": {"quick": True, "rounds": 1},
        "commands": {},
        "elapsed_s": 1,
    }
    device = {"name": "ext4-loop", "file_system": "ext4", "mount_options": "rw"}
    bare = {"name": "bare", "over": "a loop device"}
    for rate in (1.0, 2.0):
        document = read(path)
        merge(document, sections.ZRAM, SectionResult(samples_of({KVRING: [5.0]}), device), context)
        merge(document, sections.DISK, SectionResult(samples_of({KVRING: [rate]}), device), context)
        merge(document, sections.BARE, SectionResult(samples_of({BARE: [7.0]}), bare), context)
        write(document, path)
    document = read(path)
    assert list(document["sections"]) == [sections.DISK, sections.ZRAM, sections.BARE]
    assert samples_by_section(document)[sections.DISK].series(PUT, KVRING, RATE) == {0: 2.0}
    packed = tmp_path / "benchmarks.json.gz"
    write(document, packed)
    assert read(tmp_path / "none.json", packed) == document
    assert packed.stat().st_size < path.stat().st_size
    write_markdown(document, tmp_path / "benchmarks.md", tmp_path / "images")
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| put 1 MiB | 2.00 |" in page
    assert "| put 1 MiB | 7.00 |" in page
    assert "On bare: a loop device." in page
    assert "images/disk-rate.png" in page
    assert page.index("images/overview-rate.png") < page.index("## Put, get and delete on ext4")
    assert page.index("| put 1 MiB | 7.00 |") < page.index("## Goals")
    assert published_without(document, tmp_path / "benchmarks.md") == []
    del document["sections"][sections.BARE]
    assert published_without(document, tmp_path / "benchmarks.md") == [sections.BARE]
    assert published_without(document, tmp_path / "none.md") == []
