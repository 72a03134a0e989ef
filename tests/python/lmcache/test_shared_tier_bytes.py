"""What others write into a shared tier, and a tier that refuses stores: a hit has its own bytes."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import redis as redis_py
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry

from kvring.lmcache import KvringSharedL2AdapterConfig
from tests.python.conftest import HANG_DEADLINE_S, until
from tests.python.lmcache.adapter_driver import filled_memory
from tests.python.lmcache.shared_tiers import (
    ALL,
    NONE,
    NUMBERS,
    MakeNode,
    Node,
    content_of,
    keys_of,
    stored_in,
)
from tests.support.servers import Network, Redis

pytestmark = pytest.mark.lmcache

KINDS = ["resp", "fs", "fs_native"]


class Objects:
    """What lies in a shared tier, by the numbers of chunks: they themselves, or their sidecars."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._directory = Path(spec.get("base_path", ""))
        self._redis: Any = None
        if spec["type"] == "resp":
            self._redis = redis_py.Redis(port=spec["port"])

    def __getitem__(self, place: tuple[int, bool]) -> bytes:
        name = self._name(*place)
        if self._redis is None:
            return (self._directory / name).read_bytes()
        content: bytes = self._redis.get(name)
        return content

    def __setitem__(self, place: tuple[int, bool], content: bytes) -> None:
        name = self._name(*place)
        if self._redis is None:
            assert (self._directory / name).exists()
            (self._directory / name).write_bytes(content)
        else:
            assert self._redis.set(name, content, xx=True)

    def put(self, of_1: bytes, of_2: bytes, *, is_sidecar: bool = True) -> None:
        self[1, False], self[2, is_sidecar] = of_1, of_2

    def remove(self, *numbers: int) -> None:
        """Remove sidecars."""
        for name in (self._name(number, True) for number in numbers):
            if self._redis is None:
                (self._directory / name).unlink()
            else:
                assert self._redis.delete(name) == 1

    def _name(self, number: int, is_sidecar: bool) -> str:
        model = "model#crc64" if is_sidecar else "model"
        if self._redis is None:
            return f"test-SEP-{model}@0x00000000@0@{number:064x}.data"
        return f"test/{model}@00000000@0@{number:064x}"


@pytest.fixture(params=KINDS)
def spec(request: pytest.FixtureRequest, redis: Redis, tmp_path: Path) -> dict[str, Any]:
    """LMCache's specification of a shared tier."""
    if request.param == "resp":
        return {**redis.adapter, "num_workers": 2}
    return {"type": request.param, "base_path": str(tmp_path / "shared")}


def _flip(content: bytes) -> bytes:
    place = random.Random(len(content)).randrange(len(content))
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


def _swap(objects: Objects, *are_sidecars: bool) -> None:
    for is_sidecar in are_sidecars:
        first, second = (1, is_sidecar), (2, is_sidecar)
        objects[first], objects[second] = objects[second], objects[first]


# What is made of the chunks, or sidecars, of 1 and 2.
DAMAGE: dict[str, Callable[[Objects], None]] = {
    "swapped": lambda objects: _swap(objects, False),
    "swapped sidecars": lambda objects: _swap(objects, True),
    "swapped both": lambda objects: _swap(objects, False, True),
    "flipped": lambda objects: objects.put(_flip(objects[1, False]), _flip(objects[2, True])),
    "longer": lambda objects: objects.put(objects[1, False] + b"x", objects[2, True] + b"x"),
    "truncated": lambda objects: objects.put(objects[1, False][:1000], b""),
    "of another version": lambda objects: objects.put(
        content_of(1, 7), content_of(2, 7), is_sidecar=False
    ),
    "without sidecar": lambda objects: objects.remove(1, 2),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_hit_has_the_bytes_of_its_key_and_the_next_store_repairs_it(
    make_node: MakeNode, spec: dict[str, Any], damage: str
) -> None:
    first, second = make_node("first", shared_tier=spec), make_node("second", shared_tier=spec)
    first.share()
    DAMAGE[damage](Objects(spec))
    assert second.fetch(NUMBERS) == [number not in (1, 2) for number in NUMBERS]
    rest = len(NUMBERS) - 2
    until("the others are promoted", lambda: second.tier["promoted"] == rest)
    assert second.adapter.report_status()["keys"] == rest
    first.share()
    assert second.fetch(NUMBERS) == ALL


def test_what_does_not_fit_its_sidecar_is_counted_and_told(
    make_node: MakeNode, spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_node("first", shared_tier=spec), make_node("second", shared_tier=spec)
    first.share()
    objects = Objects(spec)
    _swap(objects, False)
    objects.remove(3)
    assert second.fetch(NUMBERS) == [number not in (1, 2, 3) for number in NUMBERS]
    assert second.tier["mismatches"] == 2
    # The probe was asked for before it was stored, too.
    assert second.tier["unchecked"] == 1
    told = [line for line in caplog.messages if "than its checksum says" in line]
    assert len(told) == 1
    assert keys_of([1])[0].chunk_hash.hex() in told[0]


@pytest.fixture
def plain(spec: dict[str, Any]) -> "Any":
    """LMCache's own adapter of the shared tier."""
    parameters = {"path": "/x", "capacity": "1GiB", "shared_tier": spec}
    config: L2AdapterConfigBase = KvringSharedL2AdapterConfig.from_dict(
        parameters
    ).shared_options.adapter
    adapter = create_l2_adapter_from_registry(config)
    yield adapter
    adapter.close()


def test_what_lmcache_stored_is_a_miss_and_with_optional_checksums_a_hit(
    make_node: MakeNode, spec: dict[str, Any], plain: Any
) -> None:
    objects = [filled_memory(content_of(number)) for number in NUMBERS]
    task = plain.submit_store_task(keys_of(NUMBERS), objects)
    results: dict[int, Any] = {}

    def has_come() -> bool:
        results.update(plain.pop_completed_store_tasks())
        return task in results

    until("it has stored", has_come)
    assert results[task].is_successful()
    strict = make_node("strict", shared_tier=spec)
    assert strict.fetch(NUMBERS) == NONE
    assert strict.tier["unchecked"] == len(NUMBERS)
    mixed = make_node("mixed", shared_tier=spec, shared_checksums="optional")
    assert mixed.fetch(NUMBERS) == ALL
    # What has a sidecar has to fit it there, too.
    strict.share()
    Objects(spec)[5, False] = _flip(content_of(5))
    last = make_node("last", shared_tier=spec, shared_checksums="optional")
    assert last.fetch(NUMBERS) == [number != 5 for number in NUMBERS]


@pytest.mark.parametrize("kind", ["fs", "fs_native"])
def test_nodes_that_store_one_key_at_the_same_time_do_not_collide(
    make_node: MakeNode, tmp_path: Path, kind: str
) -> None:
    spec = {"type": kind, "base_path": str(tmp_path / "shared")}
    nodes = [make_node(name, shared_tier=spec) for name in ("one", "two")]
    rounds = 25
    together = threading.Barrier(len(nodes))

    def store(node: Node) -> None:
        for number in range(rounds):
            together.wait(HANG_DEADLINE_S)
            node.store([number])

    threads = [threading.Thread(target=store, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in nodes:
        until("it has stored", lambda node=node: node.tier["buffered_bytes"] == 0)  # type: ignore[misc]
        assert node.tier["failed_stores"] == 0
        assert node.tier["stores"] == rounds
    assert make_node("three", shared_tier=spec).fetch(range(rounds)) == [True] * rounds
    names = [one.name for one in (tmp_path / "shared").iterdir()]
    assert not [name for name in names if name.endswith(".tmp")]
    # Others may run as another user.
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "shared").iterdir()} == {0o644}


def test_a_full_redis_refuses_stores_and_answers_what_it_was_asked(
    make_node: MakeNode, redis: Redis
) -> None:
    """LMCache 0.5.6's `resp` takes what is left of a refusal for the reply to its next request."""
    first, second = make_node("first"), make_node("second")
    numbers = range(60)
    first.store(numbers)
    stored_in(first, len(numbers))
    redis.ask("config", "set", "maxmemory", "1")
    for number in numbers:
        # On the connections that load behind it.
        second.store([1000 + number, 2000 + number])
        assert second.fetch([number]) == [True]
    tier = second.tier
    assert tier["failed_stores"] > 0
    assert (tier["stores"], tier["mismatches"], tier["lost"]) == (0, 0, 0)
    redis.ask("config", "set", "maxmemory", "0")
    second.store([500])
    stored_in(second, 1)
    assert make_node("third").fetch([*numbers, 500]) == [True] * 61


def test_after_a_failover_stores_go_to_the_new_primary(
    make_node: MakeNode, redis: Redis, network: Network
) -> None:
    first = make_node("first", network.port)
    first.share()
    with Redis() as promoted:
        promoted.ask("replicaof", "127.0.0.1", str(redis.port))
        until("it is a replica", lambda: "master_link_status:up" in promoted.ask("info"))
        until("it has all", lambda: promoted.ask("dbsize") == redis.ask("dbsize"))
        promoted.ask("replicaof", "no", "one")
        # As of a primary that is gone: with a new one it would drop all clients, and hide the case.
        redis.ask("replicaof", "127.0.0.1", "1")
        # Whoever connects now gets to the new one. The old one answers, and refuses stores.
        network.to_port = promoted.port
        first.store([100, 101])
        until("it was refused", lambda: first.tier["failed_stores"] > 0)
        number = 200

        def has_stored() -> bool:
            nonlocal number
            number += 1
            first.store([number])
            return bool(first.tier["stores"] > len(NUMBERS))

        until("it stores", has_stored)
        assert first.tier["mismatches"] == 0
        second = make_node("second", promoted.port)
        assert second.fetch(NUMBERS) == ALL
        until("the new one has it", lambda: second.fetch([number]) == [True])
