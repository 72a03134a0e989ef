"""kvring in vLLM's real TieringOffloadingManager, with its primary tier and its own file tier."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvring._native import StoredChunks
from kvring.cli import main
from tests.python.conftest import (
    BLOCK_BYTES,
    CAPACITY_BYTES,
    HANG_DEADLINE_S,
    MIB,
    disk_bytes,
    most_disk_bytes,
)
from tests.python.engines.vllm_lives import Lives

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadKey,
    TierFilter,
    TierMatcher,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.backpressure import DropStorePolicy, EMABackpressureDetector
from vllm.v1.kv_offload.tiering.base import TIER_LABEL, TieringOffloadingMetrics
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import kvring
from kvring.vllm import KvringTier
from tests.python.engines.vllm_engine import (
    MODEL,
    ROW_BYTES,
    ROWS,
    Engine,
    key_of,
    kvring_tier,
    make_config,
    number_of,
    shared_memory,
)

MakeEngine = Callable[..., Engine]

FEW = range(4)
SMALL_BYTES = 16 * MIB


@pytest.fixture
def make_engine(store_path: Path) -> Iterator[MakeEngine]:
    """Make engines over the test's store, or over other tiers; they are shut down at the end."""
    with ExitStack() as stack:

        def make(tiers: Any = None, **options: Any) -> Engine:
            tiers = [kvring_tier(store_path)] if tiers is None else tiers
            return stack.enter_context(Engine(make_config(tiers, **options)))

        yield make


def file_tier(path: Path) -> dict[str, Any]:
    """Return what a user writes for vLLM's own file tier."""
    return {"type": "fs", "root_dir": str(path), "n_read_threads": 2, "n_write_threads": 2}


def namespace_of(engine: Engine) -> str:
    """Return the namespace of an engine: it begins as vLLM's file tier names directories."""
    mapper = FileMapper.from_offloading_spec(
        "root", engine.spec, engine.spec.blocks_per_chunk, parallel_agnostic=True
    )
    digest = Path(mapper.base_path).name.rpartition("_")[2]
    assert re.fullmatch(r"[0-9a-f]{12}", digest)
    namespace: str = engine.tier.config_info()["kvring_namespace"]
    model = re.escape(engine.spec.config.model.name)
    assert re.fullmatch(rf"((one|two)#)?vllm-{digest}-[0-9a-f]{{12}}#{model}", namespace)
    return namespace


def test_what_left_the_primary_tier_comes_back(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with engine.request() as request:
        prepared = engine.offer(request, FEW)
        assert prepared.keys_to_store == [key_of(number) for number in FEW]
        engine.settle()
    engine.evict()
    with engine.request() as request:
        answers = engine.lookup(request, FEW)
        # vLLM's own file tier answers RETRY here, and knows it a step later.
        assert answers[0] == [LookupResult.HIT_PENDING] * len(FEW)
        assert answers[-1] == [LookupResult.HIT] * len(FEW)
        assert not any(LookupResult.RETRY in step for step in answers)
        sources = {engine.manager.get_load_source(key_of(number), request) for number in FEW}
        assert sources == {CacheHitSource.DISK}
        assert engine.lookup(request, [9999]) == [[LookupResult.MISS]]
    assert engine.found([*FEW, 9999]) == [True] * len(FEW) + [False]
    engine.settle()
    assert not engine.manager._req_state
    assert not engine.manager._jobs


@pytest.mark.parametrize(
    ("pages", "blocks_per_chunk", "tp_size"),
    [(1, 1, 1), (5, 1, 1), (33, 1, 1), (6, 3, 1), (7, 7, 1), (20, 5, 4)],
)
def test_rows_may_have_any_number_of_pages(
    make_engine: MakeEngine, pages: int, blocks_per_chunk: int, tp_size: int
) -> None:
    sizes = {"blocks_per_chunk": blocks_per_chunk, "tp_size": tp_size}
    engine = make_engine(row_bytes=pages * BLOCK_BYTES, **sizes)
    assert engine.row_bytes == pages * BLOCK_BYTES
    engine.put(range(20))
    engine.evict()
    assert engine.found(range(20)) == [True] * 20
    assert set(engine.store.usage()) == {namespace_of(engine)}


def test_a_row_may_be_longer_than_64_mib(make_engine: MakeEngine, store_path: Path) -> None:
    row_bytes = 65 * MIB + 3 * BLOCK_BYTES
    engine = make_engine([kvring_tier(store_path, "600MiB")], rows=2, row_bytes=row_bytes)
    engine.put([1, 2])
    engine.evict()
    assert engine.found([1, 2]) == [True, True]


@pytest.mark.parametrize("is_killed", [False, True], ids=["ends", "is killed"])
def test_a_new_process_finds_what_another_has_stored(
    store_path: Path, vllm_lives: Lives, is_killed: bool
) -> None:
    engine_ids = ["kvring-test-first", "kvring-test-second"]
    count = 3 * ROWS
    vllm_lives.begin("store", str(store_path), engine_ids[0], count, is_killed)
    assert vllm_lives.wait_for("stored") == [str(count)]
    if is_killed:
        vllm_lives.kill()
        # vLLM names it anew in each process; nobody else removes it.
        shared_memory(engine_ids[0]).unlink()
    else:
        assert list(vllm_lives.told()) == []
        assert vllm_lives.status == 0
    told = vllm_lives.run("find", str(store_path), engine_ids[1], count)
    assert told == [["answers", "HIT_PENDING"], ["found", str(count)]]
    assert not any(shared_memory(engine_id).exists() for engine_id in engine_ids)


OTHER_LAYOUTS = [
    {"model": "org/other"},
    {"dtype": "float16"},
    {"tokens_per_block": 32},
    {"blocks_per_chunk": 2},
    {"tp_size": 2},
    {"layers": ["layer.0"]},
    {"layers": ["layer.1", "layer.0"]},
    {"row_bytes": ROW_BYTES + BLOCK_BYTES},
    # What vLLM's file tier does not tell apart.
    {"kv_cache_layout": "NHD"},
    {"tp_size": 2, "is_portable": True},
    {"tp_size": 4, "is_portable": True},
]


@pytest.mark.parametrize("layout", OTHER_LAYOUTS, ids=str)
def test_a_wrong_layout_misses(
    make_engine: MakeEngine,
    store_path: Path,
    capsys: pytest.CaptureFixture[str],
    layout: dict[str, Any],
) -> None:
    base = {"is_portable": layout.get("is_portable", False)}
    engine = make_engine(**base)
    engine.put(FEW)
    namespaces = {namespace_of(engine)}
    engine.shutdown()
    other = make_engine(**layout)
    assert other.found(FEW) == [False] * len(FEW)
    other.put(FEW)
    other.evict()
    assert other.found(FEW) == [True] * len(FEW)
    namespaces.add(namespace_of(other))
    assert len(namespaces) == 2
    assert set(other.store.usage()) == namespaces
    capsys.readouterr()
    assert main(["usage", "--json", str(store_path)]) == 0
    assert set(json.loads(capsys.readouterr().out)) == namespaces
    other.shutdown()
    assert make_engine(**base).found(FEW) == [True] * len(FEW)


def test_the_namespace_has_the_digest_of_vllms_own_file_tier(
    make_engine: MakeEngine, store_path: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    engine = make_engine([kvring_tier(store_path), file_tier(files)])
    engine.put(FEW)
    (directory,) = [path for path in files.iterdir() if (path / "config.json").exists()]
    digest = directory.name.rpartition("_")[2]
    (namespace,) = engine.store.usage()
    assert namespace.startswith(f"vllm-{digest}-")
    assert namespace.endswith(f"#{MODEL}")
    # It has one rank: the scheduler stores whole rows.
    keys, _ = engine.store.keys(namespace_of(engine))
    assert {key.split("@")[1] for key, _ in keys} == {"00000000"}


def test_a_model_whose_name_has_an_at_sign_is_stored(make_engine: MakeEngine) -> None:
    engine = make_engine(model="org/model@v2")
    engine.put(FEW)
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)
    (namespace,) = engine.store.usage()
    assert namespace.endswith("#org/model_v2")


def test_the_option_identity_keeps_engines_apart(make_engine: MakeEngine, store_path: Path) -> None:
    namespaces = set()
    for identity in ("one", "two"):
        engine = make_engine([kvring_tier(store_path, identity=identity)], events=True)
        assert engine.found(FEW) == [False] * len(FEW)
        assert engine.events() == []
        engine.put(FEW)
        assert stored_by(engine.events()) == set(FEW)
        namespaces.add(namespace_of(engine))
        assert namespace_of(engine).startswith(f"{identity}#")
        assert set(engine.store.usage()) == namespaces
        engine.shutdown()
    engine = make_engine([kvring_tier(store_path, identity="one")], events=True)
    assert stored_by(engine.events()) == set(FEW)
    assert engine.found(FEW) == [True] * len(FEW)


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_what_is_touched_stays(make_engine: MakeEngine, store_path: Path, eviction: str) -> None:
    """The chunks are used in the tiers above, which alone know of it."""
    tier = kvring_tier(store_path, SMALL_BYTES, eviction=eviction, lease_s=0)
    engine = make_engine([tier])
    hot, cold = range(8), range(100, 108)
    engine.put([*hot, *cold])
    for first in range(1000, 1000 + 2 * SMALL_BYTES // ROW_BYTES, ROWS):
        with engine.request() as request, engine.manager.lock:
            engine.manager.touch([key_of(number) for number in hot], request)
        engine.put(range(first, first + ROWS))
    assert engine.store.stats()["evicted"] > SMALL_BYTES // ROW_BYTES // 2
    assert engine.found(hot) == [True] * len(hot)
    assert engine.found(cold) == [False] * len(cold)


def number_in(stored: str) -> int:
    """Return the number of a chunk, from the key that the store has."""
    return number_of(OffloadKey(bytes.fromhex(stored.split("@")[3])))


def stored_by(events: list[Any]) -> set[int]:
    """Return the chunks that are there after events, which must be told in a row that fits."""
    there: set[int] = set()
    for event in events:
        assert event.medium is Medium.STORAGE
        assert event.ownership == "kvring"
        assert event.locality is Locality.LOCAL
        assert event.keys
        numbers = {number_of(key) for key in event.keys}
        assert len(numbers) == len(event.keys)
        # Nothing is told twice, and nothing goes that did not come.
        assert there >= numbers if event.removed else not there & numbers
        there = there - numbers if event.removed else there | numbers
    return there


def all_told(engine: Engine, events: list[Any]) -> set[int]:
    """Take events until they tell what the store has, which goes on to make room by itself."""
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while True:
        events += engine.events()
        there = stored_by(events)
        if len(there) == engine.store.stats()["keys"]:
            return there
        assert time.monotonic() < deadline_s, "something is not told"
        time.sleep(0.01)


def test_the_capacity_holds_and_events_tell_what_is_there(
    make_engine: MakeEngine, store_path: Path
) -> None:
    tiers = [kvring_tier(store_path, SMALL_BYTES, lease_s=0)]
    engine = make_engine(tiers, events=True)
    numbers = range(5 * SMALL_BYTES // ROW_BYTES)
    events: list[Any] = []
    with most_disk_bytes(store_path) as most:
        for first in range(0, len(numbers), ROWS):
            engine.put(numbers[first : first + ROWS])
            events += engine.events()
    assert most[0] <= SMALL_BYTES
    there = all_told(engine, events)
    assert len(there) > SMALL_BYTES // ROW_BYTES // 2
    removed = sum(len(event.keys) for event in events if event.removed)
    assert removed == len(numbers) - len(there) > 3 * SMALL_BYTES // ROW_BYTES
    engine.shutdown()
    on_disk = {number_in(chunk["key"]) for chunk in StoredChunks(store_path)}
    assert on_disk <= there
    # A new process is told what there is before anything else.
    engine = make_engine(tiers, events=True)
    engine.put([1 << 20])
    events = engine.events()
    assert not events[0].removed
    told_first = {number_of(key) for key in events[0].keys}
    assert on_disk - told_first == set() or engine.store.stats()["evicted"] > 0
    assert told_first <= on_disk
    before = all_told(engine, events)
    assert before - on_disk == {1 << 20}
    found = engine.found(numbers)
    after = all_told(engine, events) - {1 << 20}
    assert after <= {number for number in numbers if found[number]} <= before
    assert disk_bytes(store_path) <= SMALL_BYTES


def test_events_come_in_pieces(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no step of the scheduler takes long after a start with millions of chunks."""
    monkeypatch.setattr("kvring.vllm.tier._MOST_EVENTS", 3)
    engine = make_engine(events=True)
    engine.put(range(8))
    engine.shutdown()
    engine = make_engine(events=True)
    engine.put([100])
    steps = []
    while step := engine.events():
        steps.append(step)
    assert all(sum(len(event.keys) for event in step) <= 2 * 3 for step in steps)
    assert stored_by([event for step in steps for event in step]) == {*range(8), 100}
    assert {number_of(key) for key in steps[-1][-1].keys} == {100}


def test_without_events_nothing_is_told(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.put(FEW)
    assert engine.events() == []


def test_what_is_stored_again_is_told_once(make_engine: MakeEngine) -> None:
    engine = make_engine(events=True)
    for _ in range(3):
        engine.put(FEW)
        engine.evict()
    told = [number_of(key) for event in engine.events() for key in event.keys]
    assert sorted(number for number in told if number in FEW) == list(FEW)


def test_all_figures_are_defined(make_engine: MakeEngine, store_path: Path) -> None:
    tiers = [kvring_tier(store_path), {"type": "example"}]
    engine = make_engine(tiers)
    engine.put(FEW)
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)
    with engine.manager.lock:
        stats = engine.manager.get_stats()
    extra = engine.spec.extra_config
    defined = TieringOffloadingSpec.build_metric_definitions(extra)
    types, values = stats.metric_sections()
    for name, of_labels in values.items():
        assert name in defined, name
        kind = type(defined[name]).__name__
        assert kind == f"Offloading{types[name].capitalize()}Metadata", name
        assert {len(labels) for labels in of_labels} == {len(defined[name].labelnames)}, name
    own = KvringTier.build_metric_definitions(tiers[0])
    assert own.keys() <= values.keys()
    assert own.items() <= defined.items()
    assert all(name.startswith("vllm:kvring_") for name in own)
    count = len(FEW) + ROWS
    assert values["vllm:kvring_chunks"] == {(str(store_path),): count}
    assert values["vllm:kvring_capacity_bytes"] == {(str(store_path),): CAPACITY_BYTES}
    assert values["vllm:kvring_healthy"] == {(str(store_path),): 1}
    for name, moved in (("READ_BYTES", len(FEW)), ("WRITE_BYTES", count)):
        moved_bytes = values[getattr(TieringOffloadingMetrics, name)][("1:KvringTier",)]
        assert moved_bytes == moved * ROW_BYTES
    for metadata in own.values():
        assert isinstance(metadata, OffloadingCounterMetadata | OffloadingGaugeMetadata)
        assert metadata.labelnames == ("path",)
        assert metadata.documentation.endswith(".")


def test_counters_tell_what_came_since_the_last_time(
    make_engine: MakeEngine, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvring.vllm.figures._PAUSE_S", HANG_DEADLINE_S)
    engine = make_engine([kvring_tier(store_path, SMALL_BYTES, lease_s=0)])
    told = 0

    def evicted() -> int:
        stats = engine.tier.get_stats()
        # It is asked in every step, and looks once a second.
        assert engine.tier.get_stats() is None
        engine.tier._figures._next_s = 0.0
        values = stats.metric_sections()[1]
        count: int = values["vllm:kvring_evicted_chunks"][(str(store_path),)]
        return count

    for first in range(0, 2 * SMALL_BYTES // ROW_BYTES, 4 * ROWS):
        engine.put(range(first, first + 4 * ROWS))
        told += evicted()
        assert told <= engine.store.stats()["evicted"]
    assert told > 0
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    # It goes on to make room by itself.
    while told < engine.store.stats()["evicted"]:
        assert time.monotonic() < deadline_s
        told += evicted()


def test_the_configuration_is_told(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine()
    keys = TieringOffloadingSpec.config_info_keys(engine.spec.extra_config)
    primary, own = engine.manager.config_info()
    assert own.keys() <= set(keys)
    assert primary.keys() <= set(keys)
    assert own == {
        TIER_LABEL: "1:KvringTier",
        "kvring_path": str(store_path),
        "kvring_capacity_bytes": CAPACITY_BYTES,
        "kvring_engine": engine.store.stats()["engine"],
        "kvring_namespace": namespace_of(engine),
        "kvring_version": kvring.__version__,
    }


def test_a_reset_waits_for_what_is_under_way(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine([kvring_tier(store_path)], rows=24, row_bytes=MIB)
    engine.put(range(8))
    engine.evict()
    with engine.request() as request:
        with engine.manager.lock:
            answers = [engine.manager.lookup(key_of(number), request) for number in range(8)]
        assert answers == [LookupResult.HIT_PENDING] * 8
        engine.offer(request, range(100, 112))
        engine.end_step()
        with engine.manager.lock:
            assert engine.manager._jobs
            engine.manager.reset_cache()
            assert not engine.manager._jobs
        # Nothing moves any more: vLLM gives this memory to others.
        poison = b"\xa5" * MIB
        for row in range(engine.rows):
            engine._row(row)[:] = poison
        assert engine.store.stats()["in_flight"] == 0
        engine.settle()
        assert all(engine._row(row) == poison for row in range(engine.rows))
        assert engine.lookup(request, [0, 100]) == [[LookupResult.MISS] * 2]
        with engine.manager.lock:
            engine.manager.on_reset_flushed()
        assert engine.lookup(request, [0, 100])[0] == [LookupResult.HIT_PENDING] * 2
    assert engine.found([*range(8), *range(100, 112)]) == [True] * 20


def test_two_tiers_store_all_and_the_first_is_asked_first(
    make_engine: MakeEngine, store_path: Path, tmp_path: Path
) -> None:
    engine = make_engine([kvring_tier(store_path), file_tier(tmp_path / "files")])
    _, files = engine.manager.secondary_tiers
    engine.put(FEW)
    engine.evict()
    paths = [Path(files.file_mapper.get_file_name(key_of(number))) for number in FEW]
    assert all(path.stat().st_size == ROW_BYTES for path in paths)
    assert engine.store.stats()["keys"] == len(FEW) + ROWS
    hits = engine.store.stats()["get_hits"]
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["get_hits"] == hits + len(FEW)
    engine.store.purge(namespace_of(engine))
    engine.evict()
    # What one of them has lost the other one has.
    with engine.request() as request:
        answers = engine.lookup(request, FEW)
        assert answers[0] == [LookupResult.RETRY] * len(FEW)
        assert answers[-1] == [LookupResult.HIT] * len(FEW)
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["get_hits"] == hits + len(FEW)


def test_kvring_below_the_file_tier_stores_all(
    make_engine: MakeEngine, store_path: Path, tmp_path: Path
) -> None:
    engine = make_engine([file_tier(tmp_path / "files"), kvring_tier(store_path)])
    files, own = engine.manager.secondary_tiers
    engine.put(FEW)
    engine.evict()
    for number in FEW:
        Path(files.file_mapper.get_file_name(key_of(number))).unlink()
    assert engine.found(FEW) == [True] * len(FEW)
    assert own._store.connector.stats()["get_hits"] == len(FEW)


def test_two_stores_may_be_two_tiers(make_engine: MakeEngine, store_path: Path) -> None:
    paths = [store_path / name for name in ("one", "two")]
    engine = make_engine([kvring_tier(path) for path in paths], events=True)
    engine.put(FEW)
    events = engine.events()
    assert [{number_of(key) for key in event.keys} for event in events] == [set(FEW)] * 2
    values = engine.manager.get_stats().metric_sections()[1]
    assert values["vllm:kvring_chunks"] == {(str(path),): len(FEW) for path in paths}
    assert [info.get("kvring_path") for info in engine.manager.config_info()] == [
        None,
        *map(str, paths),
    ]
    engine.evict()
    engine.store.purge(namespace_of(engine))
    assert engine.found(FEW) == [True] * len(FEW)


def test_a_chunk_that_goes_before_it_is_loaded_is_a_miss(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.put(FEW)
    engine.evict()
    with engine.request() as request, engine.request() as other:
        with engine.manager.lock:
            answers = [engine.manager.lookup(key_of(number), request) for number in FEW]
        assert answers == [LookupResult.HIT_PENDING] * len(FEW)
        deleted = engine.store.purge(namespace_of(engine))["keys"]
        assert deleted == len(FEW) + ROWS
        # It does not ask again and again, and computes.
        assert engine.lookup(request, FEW)[-1] == [LookupResult.MISS] * len(FEW)
        engine.offer(other, FEW)
        engine.settle()
        assert engine.lookup(other, FEW) == [[LookupResult.HIT] * len(FEW)]
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)


def test_a_request_that_could_not_load_computes(make_engine: MakeEngine) -> None:
    """Others still find the chunk: perhaps the drive works again by then."""
    engine = make_engine()
    engine.put(FEW)
    engine.evict()
    with engine.request() as request:
        with engine.manager.lock:
            answers = [engine.manager.lookup(key_of(number), request) for number in FEW]
        assert answers == [LookupResult.HIT_PENDING] * len(FEW)
        # As if the drive did not answer: the loads go where nothing is stored.
        prefix, engine.tier._prefix = engine.tier._prefix, "elsewhere@00000000"
        engine.settle()
        engine.tier._prefix = prefix
        assert engine.lookup(request, FEW) == [[LookupResult.MISS] * len(FEW)]
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.tier._requests == {}


def test_requests_for_the_same_chunk_share_a_load(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.put(FEW)
    engine.evict()
    with engine.request() as one, engine.request() as two, engine.manager.lock:
        for request in (one, two):
            for number in FEW:
                answer = engine.manager.lookup(key_of(number), request)
                assert answer is LookupResult.HIT_PENDING
    engine.end_step()
    jobs = [job.transfer_job for job in engine.manager._jobs.values()]
    assert [(len(job.keys), job.is_promotion) for job in jobs] == [(len(FEW), True)]
    engine.settle()
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["get_hits"] == len(FEW)


@pytest.mark.parametrize("locality", ["LOCAL", "REMOTE"])
def test_a_request_may_leave_the_tier_out(
    make_engine: MakeEngine, store_path: Path, locality: str
) -> None:
    engine = make_engine([kvring_tier(store_path, locality=locality)])
    engine.put(FEW)
    engine.evict()
    for medium, place in (
        (Medium.CPU, None),
        (None, Locality.LOCAL),
        (None, Locality.REMOTE),
        (Medium.STORAGE, Locality[locality]),
    ):
        only = TierFilter(matchers=(TierMatcher(medium, place),))
        is_meant = medium is not Medium.CPU and (place is None or place.name == locality)
        with engine.request(load_tier_filter=only) as request:
            answer = engine.lookup(request, FEW)[-1][0]
        assert answer is (LookupResult.HIT if is_meant else LookupResult.MISS)
        engine.evict()


def test_vllm_measures_how_fast_the_tier_stores(make_engine: MakeEngine, store_path: Path) -> None:
    measure = {"backpressure_cls": "EMABackpressureDetector", "high_water_s": 1e9}
    engine = make_engine([kvring_tier(store_path, backpressure=measure)])
    detector = engine.tier.bp_detector
    assert isinstance(detector, EMABackpressureDetector)
    engine.put(range(200))
    assert detector._completions >= detector._warmup_completions
    assert 0 < detector.store_latency_ema < 60
    assert not detector.is_under_pressure()


def test_vllm_drops_stores_when_the_tier_is_too_slow(
    make_engine: MakeEngine, store_path: Path
) -> None:
    measure = {
        "backpressure_cls": "EMABackpressureDetector",
        "policy_cls": "DropStorePolicy",
        "high_water_s": 1e-12,
        "low_water_s": 1e-13,
        "warmup_completions": 1,
    }
    engine = make_engine([kvring_tier(store_path)], backpressure=measure)
    assert isinstance(engine.tier.bp_detector.policy, DropStorePolicy)
    engine.put(range(200))
    assert 0 < engine.store.stats()["set_stored"] < 100
    with engine.manager.lock:
        values = engine.manager.get_stats().metric_sections()[1]
    dropped = values[TieringOffloadingMetrics.BACKPRESSURE_BLOCKS_DROPPED]
    assert dropped == {("1:KvringTier",): 200 - engine.store.stats()["set_stored"]}


def test_each_data_parallel_replica_has_its_own_store(
    make_engine: MakeEngine, store_path: Path
) -> None:
    tier = kvring_tier(store_path / "replica-{dp_rank}")
    engines = [make_engine([tier], dp_size=2, dp_index=index) for index in range(2)]
    for index, engine in enumerate(engines):
        engine.put([index])
        engine.evict()
    assert [engine.found([0, 1]) for engine in engines] == [[True, False], [False, True]]
    assert sorted(path.name for path in store_path.iterdir()) == ["replica-0", "replica-1"]
    # Several paths, each with a number of its own.
    paths = [str(store_path / f"{name}-{{dp_rank}}") for name in ("a", "b")]
    several = make_engine([{**kvring_tier(""), "path": paths}], dp_size=2, dp_index=1)
    stored = [one["path"] for one in several.store.stats()["paths"]]
    assert stored == [str(store_path / f"{name}-1") for name in ("a", "b")]


def test_one_replica_may_have_the_name_in_its_path(
    make_engine: MakeEngine, store_path: Path
) -> None:
    engine = make_engine([kvring_tier(store_path / "{dp_rank}")])
    assert engine.store.stats()["paths"][0]["path"] == str(store_path / "0")


@pytest.mark.parametrize("is_list", [False, True], ids=["path", "list"])
@pytest.mark.parametrize(("dp_size", "dp_index"), [(2, 0), (2, 1), (1, 1)])
def test_replicas_do_not_share_a_path(
    make_engine: MakeEngine, store_path: Path, dp_size: int, dp_index: int, is_list: bool
) -> None:
    """Of a dense model each replica is told that it is the only one, and has a number."""
    tier = kvring_tier(store_path)
    if is_list:
        tier["path"] = [f"{store_path}-{{dp_rank}}", str(store_path)]
    with pytest.raises(ValueError, match=re.escape("{dp_rank}")) as raised:
        make_engine([tier], dp_size=dp_size, dp_index=dp_index)
    message = str(raised.value)
    assert "secondary_tiers" in message
    assert f"path = {str(store_path)!r}" in message
    assert f"such as {store_path}-{{dp_rank}}" in message
    assert not store_path.exists()


def test_replicas_have_metrics_ports_of_their_own(
    make_engine: MakeEngine, store_path: Path, port: int
) -> None:
    tier = kvring_tier(store_path / "{dp_rank}", metrics_port=port)
    engines = [make_engine([tier], dp_size=2, dp_index=index) for index in range(2)]
    assert [engine.store.metrics_port for engine in engines] == [port, port + 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evict": "lru"}, ["unknown option 'evict'", "eviction"]),
        ({"root_dir": "/tmp"}, ["unknown option 'root_dir'"]),
        ({"capacity": "1MiB"}, ["'capacity' = '1MiB'", "16 MiB"]),
        ({"capacity": "all"}, ["'capacity'"]),
        ({"capacity": None}, ["'capacity'"]),
        ({"path": 5}, ["'path' = 5"]),
        ({"path": []}, ["'path' = []"]),
        ({"eviction": "belady"}, ["'eviction' = 'belady'", "'lru'"]),
        ({"checksum": True}, ["'checksum' = "]),
        ({"identity": "a#b"}, ["'identity' = 'a#b'"]),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(
    make_engine: MakeEngine, store_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError, match="secondary_tiers") as raised:
        make_engine([kvring_tier(store_path) | options])
    message = str(raised.value)
    assert "kv_connector_extra_config" in message
    assert "'KvringTier'" in message
    assert all(word in message for word in words), message
    assert not (store_path / "index.kvring").exists()


@pytest.mark.parametrize("missing", ["path", "capacity"])
def test_a_missing_option_is_named(make_engine: MakeEngine, store_path: Path, missing: str) -> None:
    tier = kvring_tier(store_path)
    del tier[missing]
    with pytest.raises(ValueError, match=f"required and not given: '{missing}'") as raised:
        make_engine([tier])
    assert "secondary_tiers" in str(raised.value)


def test_a_store_has_one_tier(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine()
    engine.put(FEW)
    with pytest.raises(kvring.InUseError, match="secondary_tiers") as raised:
        make_engine([kvring_tier(store_path.parent / "fine"), kvring_tier(store_path)])
    assert str(store_path) in str(raised.value)
    # The one that was made before it was let go of.
    make_engine([kvring_tier(store_path.parent / "fine")])
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)


def test_a_row_that_is_longer_than_the_store_takes_is_refused(
    make_engine: MakeEngine, store_path: Path
) -> None:
    row_bytes = 65 * MIB
    with pytest.raises(ValueError, match="secondary_tiers") as raised:
        make_engine([kvring_tier(store_path, "512MiB")], rows=1, row_bytes=row_bytes)
    message = str(raised.value)
    assert f"a chunk has {row_bytes} bytes" in message
    assert f"has {64 * MIB}" in message
    assert "raise 'capacity'" in message
    assert "block_size" in message
    # The store was let go of.
    make_engine([kvring_tier(store_path, "512MiB")])


@pytest.mark.parametrize("options", [{"evict": "lru"}, {}], ids=["option", "row"])
def test_a_refusal_leaves_no_memory_behind(
    store_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    """Nobody holds a buffer of it, with which vLLM would leave the memory mapped."""
    tier = kvring_tier(store_path, SMALL_BYTES, **options)
    config = make_config([tier], rows=1, row_bytes=65 * MIB)
    memory = shared_memory(config.engine_id)
    with pytest.raises(ValueError, match="secondary_tiers"):
        TieringOffloadingSpec(config).get_manager()
    assert not memory.exists()
    assert str(memory) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_drive_that_does_not_answer_keeps_the_memory_mapped(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    close = engine.store.close
    left = {"shutdown_clean": False, "abandoned": 0, "memory_held": True}
    with monkeypatch.context() as patch:
        patch.setattr("kvring.connector.Connector.close", lambda connector: left)
        with pytest.raises(RuntimeError, match="does not answer"):
            engine.shutdown()
    assert shared_memory(engine.engine_id).exists()
    close()


def test_a_shutdown_leaves_nothing_behind(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine(rows=32, row_bytes=MIB)
    memory = shared_memory(engine.engine_id)
    assert memory.exists()
    with engine.request() as request:
        engine.offer(request, range(16))
    engine.shutdown()
    assert not memory.exists()
    assert str(memory) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    engine.tier.shutdown()
    engine.tier.shutdown()
    # Closed in order: all that was queued is there.
    engine = make_engine(rows=32, row_bytes=MIB)
    assert engine.store.recovery["clean_shutdown"]
    assert engine.found(range(16)) == [True] * 16


def test_the_primary_tiers_memory_is_registered(make_engine: MakeEngine) -> None:
    engine = make_engine()
    if not engine.store.stats()["engine"].startswith("io_uring"):
        pytest.skip("only io_uring has fixed buffers")
    assert engine.store.stats()["registered_bytes"] >= ROWS * ROW_BYTES
    engine.put(FEW)
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["transfers_fixed"] > 0
    assert engine.store.stats()["bounced_bytes"] == 0


def test_a_primary_tier_may_have_many_rows(make_engine: MakeEngine) -> None:
    engine = make_engine(rows=512, row_bytes=BLOCK_BYTES)
    engine.put(range(2000))
    engine.evict()
    assert engine.found(range(2000)) == [True] * 2000
