"""SGLang's own controllers, with all their threads, over stores of kvring."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")


from kvring.sglang import HiCacheKvring
from tests.python.engines.sglang_controller import Scheduler, lone_process
from tests.python.engines.sglang_host import (
    BOTH_INTERFACES,
    KINDS,
    LAYOUTS,
    PAGE_TOKENS,
    kvring_options,
)

PROMPT = [70_000 + number for number in range(5 * PAGE_TOKENS)]
# A page more than is stored.
LONGER = [*PROMPT, *[5] * PAGE_TOKENS]


@pytest.fixture(scope="module", autouse=True)
def _lone_process() -> Iterator[None]:
    with lone_process():
        yield


@contextlib.contextmanager
def scheduler(options: dict[str, Any], *shape: str, **more: Any) -> Iterator[Scheduler]:
    one = Scheduler(options, *shape, **more)
    try:
        yield one
    finally:
        one.close()


@BOTH_INTERFACES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_fetched(store_path: Path, kind: str, layout: str, v1: bool) -> None:
    options = kvring_options(store_path, v1=v1)
    with scheduler(options, kind, layout) as one:
        controller = one.controller
        backend = one.backend
        assert type(backend) is HiCacheKvring
        is_direct = controller.page_get_func == controller._page_get_zero_copy
        assert is_direct == v1
        assert one.fetch("before", LONGER).found_tokens == 0
        assert one.write(PROMPT).completed_tokens == len(PROMPT)
        fetched = one.fetch("whole", LONGER)
        assert (fetched.found_tokens, fetched.tokens) == (len(PROMPT), len(PROMPT))
        assert fetched.operation.hash_value == one.hashes(PROMPT)
        # Its threads are others afterwards.
        controller.reset()
        assert one.fetch("reset", PROMPT).tokens == len(PROMPT)
        one.close()
        assert one.backend is None
        assert not backend.exists(one.hashes(PROMPT)[0])
        one.attach()
        assert one.backend is not backend
        assert one.fetch("attached", LONGER).tokens == len(PROMPT)
    with scheduler(options, kind, layout) as one:
        assert one.fetch("opened anew", LONGER).tokens == len(PROMPT)
        assert one.fetch("other", [*LONGER[:PAGE_TOKENS], *PROMPT]).tokens == PAGE_TOKENS
    with scheduler(options, kind, layout) as one:
        assert one.write(LONGER).completed_tokens == len(LONGER)
        assert one.fetch("longer", LONGER).tokens == len(LONGER)


@BOTH_INTERFACES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hybrid_model_has_its_states_back(
    store_path: Path, kind: str, layout: str, v1: bool
) -> None:
    options = kvring_options(store_path, v1=v1)
    with scheduler(options, kind, layout, is_hybrid=True) as one:
        assert [str(name) for name in one.backend.registered_pools] == ["kv", "mamba"]
        assert one.fetch("before", LONGER).found_tokens == 0
        written = one.write(PROMPT)
        assert written.completed_tokens == len(PROMPT)
        assert written.pool_storage_result.extra_pool_hit_pages == {"mamba": 1}
        fetched = one.fetch("whole", LONGER)
        assert (fetched.tokens, fetched.pool_hits["mamba"]) == (len(PROMPT), 1)
        one.controller.reset()
        assert one.fetch("reset", LONGER).tokens == len(PROMPT)
    with scheduler(options, kind, layout, is_hybrid=True) as one:
        fetched = one.fetch("opened anew", LONGER)
        assert (fetched.tokens, fetched.pool_hits["mamba"]) == (len(PROMPT), 1)
        # Only where a state was stored a prompt can be taken up.
        assert one.fetch("in between", PROMPT[: 3 * PAGE_TOKENS]).found_tokens == 0
        assert one.controller.clear_storage_backend()
        assert one.fetch("cleared", LONGER).found_tokens == 0
        assert one.backend._store._own.connector.usage() == {}
        assert one.write(PROMPT).completed_tokens == len(PROMPT)
        assert one.fetch("written again", LONGER).tokens == len(PROMPT)


def test_a_hybrid_rank_that_does_not_write_kv_writes_its_states(store_path: Path) -> None:
    options = kvring_options(store_path)
    first = {"tp_rank": 0, "tp_size": 2}
    second = {"tp_rank": 1, "tp_size": 2}
    with (
        scheduler(options, "mla", is_hybrid=True, parallel=first) as writer,
        scheduler(options, "mla", is_hybrid=True, parallel=second) as reader,
    ):
        assert writer.write(PROMPT).completed_tokens == len(PROMPT)
        assert reader.fetch("no state", LONGER).found_tokens == 0
        assert reader.write(PROMPT).completed_tokens == len(PROMPT)
        for one in (writer, reader):
            fetched = one.fetch("both", LONGER)
            assert (fetched.tokens, fetched.pool_hits["mamba"]) == (len(PROMPT), 1)
    assert sorted(one.name for one in store_path.iterdir()) == ["rank-0", "rank-1"]
