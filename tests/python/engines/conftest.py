"""Fixtures for the tests that run kvring under the real vLLM and SGLang."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Only where a fixture is asked for: the tests are collected without vLLM and SGLang, too.
if TYPE_CHECKING:
    from tests.python.engines.sglang_host import OpenRank, Rank
    from tests.python.engines.vllm_engine import Engine, MakeEngine
    from tests.python.engines.vllm_lone_tier import LoneTier, MakeTier


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    """A directory for one store, gone as soon as the test is over: pytest would keep it."""
    path = tmp_path / "store"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_engine(store_path: Path) -> "Iterator[MakeEngine]":
    """Make engines over the test's store, or over other tiers; they are shut down at the end."""
    from tests.python.engines.vllm_engine import Engine, kvring_tier, make_config

    with ExitStack() as stack:

        def make(tiers: Any = None, **options: Any) -> "Engine":
            tiers = [kvring_tier(store_path)] if tiers is None else tiers
            return stack.enter_context(Engine(make_config(tiers, **options)))

        yield make


@pytest.fixture
def make_tier(store_path: Path) -> "Iterator[MakeTier]":
    """Make lone tiers over the test's store; they are closed at the end."""
    from tests.python.engines.vllm_engine import kvring_tier, make_config
    from tests.python.engines.vllm_lone_tier import LoneTier

    with ExitStack() as stack:

        def make(**options: Any) -> "LoneTier":
            sizes = {name: options.pop(name) for name in ("rows", "row_bytes") if name in options}
            config = make_config([kvring_tier(store_path, **options)], **sizes)
            return stack.enter_context(LoneTier(config))

        yield make


@pytest.fixture
def open_rank(store_path: Path) -> "Iterator[OpenRank]":
    """Open ranks of a model of SGLang in the test's store; they are closed at the end."""
    from tests.python.engines.sglang_host import Rank

    with ExitStack() as stack:

        def build(*shape: str, path: Path = store_path, **more: Any) -> "Rank":
            rank = Rank(path, *shape, **more)
            stack.callback(rank.close)
            return rank

        yield build
