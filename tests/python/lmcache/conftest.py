"""Fixtures for the tests that run kvring under the real LMCache."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.lmcache_command import DeploymentError
from tests.support.servers import Network, Redis

if TYPE_CHECKING:
    # It imports LMCache, which may be missing.
    from tests.python.lmcache.shared_tiers import MakeNode

# With LMCACHE_TEST_ADAPTER=fs_native these tests run LMCache's own adapter instead: what fails
# there too is a fault of the test or of LMCache. Some of kvring's promises it does not make.
ADAPTER_NAME = os.environ.get("LMCACHE_TEST_ADAPTER", "native_plugin")


@pytest.fixture(scope="session", autouse=True)
def _quiet_lmcache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMCACHE_TRACK_USAGE", "false")
        patch.setenv("LMCACHE_DISABLE_BANNER", "1")
        yield


@pytest.fixture
def data_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for kvring's data, gone as soon as the test is over: pytest would keep it."""
    directory = tmp_path / "data"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def adapter_name() -> str:
    """The adapter that a test runs; modules of tests for both of kvring's have their own."""
    return ADAPTER_NAME


@pytest.fixture
def make_spec(data_directory: Path, adapter_name: str) -> Callable[..., AdapterSpec]:
    """Build the JSON that LMCache gets, for data below this test's directory."""

    def build(capacity: str = "4GiB", **options: object) -> AdapterSpec:
        return adapter_spec(adapter_name, data_directory / "store", capacity, **options)

    return build


@pytest.fixture
def spec(make_spec: Callable[..., AdapterSpec]) -> AdapterSpec:
    """The JSON of one adapter with room for all that a test stores."""
    return make_spec()


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis server."""
    try:
        server = Redis()
    except DeploymentError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def network(redis: Redis) -> Iterator[Network]:
    """A way to it."""
    network = Network(redis.port)
    yield network
    network.close()


@pytest.fixture
def make_node(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "Iterator[MakeNode]":
    """Open nodes by name that reach it, and wait until they do; they are closed at the end."""
    from tests.python.lmcache.shared_tiers import PATIENT, Node

    # They would wait for seconds, and so would the tests.
    monkeypatch.setattr("kvring.shared_tier.link._RECONNECT_PAUSE_S", 0.2)
    monkeypatch.setattr("kvring.shared_tier.link._PROBE_PAUSE_S", 0.3)
    with ExitStack() as stack:

        def make(name: str, port: int = redis.port, **options: Any) -> Node:
            node = stack.enter_context(Node(tmp_path / name, port, **{**PATIENT, **options}))
            node.wait_answering()
            return node

        yield make
