"""The comparison: statistics, what is read from other programs, and small parts for real."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvring
from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import NativeClient
from benches.compare.harness.fio import parse_fio
from benches.compare.harness.peers import (
    BARE,
    FS_NATIVE,
    FS_NATIVE_32,
    KVRING,
    Place,
    bare_kvring_peer,
    build_peer,
)
from benches.compare.harness.samples import CPU, P99, RATE, Sample, Spread, ratio
from benches.compare.harness.scale import MIB, MixedPlan
from benches.compare.harness.workload import chunk_names, timed, timed_get, timed_set
from benches.compare.parts import deletes
from benches.compare.parts.mixed import MixedSetting
from benches.compare.report import table_of
from tests.python.conftest import bare_loop_device

BLOCK = 4096


def samples_of(rates: dict[str, list[float]], metric: str = RATE) -> list[Sample]:
    return [
        Sample("put 1 MiB", peer, number, {metric: rate})
        for peer, ones in rates.items()
        for number, rate in enumerate(ones)
    ]


def test_ratios_are_taken_round_by_round_to_the_best_of_the_round() -> None:
    rates = {KVRING: [10.0, 40.0], FS_NATIVE: [10.0, 10.0], FS_NATIVE_32: [5.0, 20.0]}
    both = [FS_NATIVE, FS_NATIVE_32]
    assert ratio(samples_of(rates), "put 1 MiB", KVRING, both, RATE) == Spread(1.5, 1.0, 2.0)
    # Of times the shortest one is the best.
    of_times = ratio(samples_of(rates, P99), "put 1 MiB", KVRING, both, P99)
    assert of_times == Spread(3.0, 2.0, 4.0)
    assert ratio(samples_of(rates), "put 1 MiB", KVRING, ["nobody"], RATE) is None


def test_a_table_has_a_row_for_each_peer_and_a_column_for_each_metric() -> None:
    samples = samples_of({KVRING: [20.0], FS_NATIVE: [10.0]})
    table = table_of("Title", samples)
    cells = [list(column.cells) for column in table.columns]
    assert [column.header for column in table.columns][2:] == ["MB/s", "ratio"]
    assert cells == [["put 1 MiB"] * 2, [KVRING, FS_NATIVE], ["20.0", "10.0"], ["2.00", ""]]


def test_fio_json_after_a_warning() -> None:
    side = {"io_bytes": 2_000_000_000, "runtime": 1000}
    job = {"write": side, "usr_cpu": 5.0, "sys_cpu": 15.0, "job_runtime": 1000}
    values = parse_fio("fio: a warning\n" + json.dumps({"jobs": [job]}), "put")
    assert values == pytest.approx({RATE: 2000.0, CPU: 0.1})


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


def test_another_build_runs_beside_the_installed_one(tmp_path: Path) -> None:
    library = Path(str(kvring._native.__file__))
    place = place_on(tmp_path, tmp_path / "store")
    client = build_peer("other", library, checksum="off").open(place)
    try:
        timed_set(client, ["key"], place.arena.to_store(BLOCK, 1), 1)
        timed_get(client, ["key"], place.arena.to_load(BLOCK, 1), 1)
    finally:
        client.close()
    assert place.arena.differing_chunks(BLOCK, 1) == []


def test_loads_among_stores_and_a_delete_of_many_keys(tmp_path: Path) -> None:
    plan = MixedPlan(
        *(BLOCK, 4, 2, 4),
        get_batches=8,
        loadable_chunks=32,
        kept_chunks=32,
        lead_s=0.0,
    )
    connector: Any = kvring.Connector(str(tmp_path / "store"), 256 * MIB)
    client, arena = NativeClient(connector), Arena(64 * MIB, huge_pages=False)
    try:
        setting = MixedSetting(client, arena, plan)
        run = setting.measure(0, with_sets=True)
        setting.remove_loadable()
        values = deletes.measure(client, arena, 1000, 0)
        keys_left = connector.stats()["keys"]
    finally:
        client.close()
    assert len(run.latencies_ms) == plan.get_batches
    assert run.set_mb_per_s > 0
    assert values["duration_s"] > 0
    assert values[P99] > 0
    assert keys_left == 0
