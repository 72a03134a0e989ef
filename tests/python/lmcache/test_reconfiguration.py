"""Limits changed, and adapters added and removed, while LMCache's StorageManager runs."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.adapter_spec import AdapterSpec, adapter_spec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.l2_adapters.reconfiguration import L2ReconfigureError

import kvring
from tests.python.conftest import until
from tests.python.lmcache.adapter_driver import make_key
from tests.support.caches import CacheSession

pytestmark = pytest.mark.lmcache

MIB = 1 << 20
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([MIB])], dtypes=[torch.uint8])
L1_BYTES = 256 * MIB
BATCH = 16


@pytest.fixture
def adapter_name() -> str:
    """The one adapter that has limits which can be changed."""
    return "plugin"


def store(session: CacheSession, keys: list[ObjectKey], stored: int) -> None:
    """Store chunks through LMCache, beside as many as are stored."""
    for first in range(0, len(keys), BATCH):
        with session.write(keys[first : first + BATCH], LAYOUT) as tensors:
            for number, tensor in enumerate(tensors, first):
                tensor.fill_(number % 251)
        session.wait_until_stored(stored + first + BATCH)
    session.manager.delete_l1_keys(keys)


def figures_of(session: CacheSession) -> dict[str, Any]:
    status = session.manager.get_l2_adapter_reconfigure_status()
    json.dumps(status)
    (one,) = status["adapters"]
    assert one["supported_operations"] == ["resize", "ttl", "quotas", "status"]
    figures: dict[str, Any] = one["status"]
    return figures


def test_limits_change_while_it_serves(make_spec: Callable[..., AdapterSpec]) -> None:
    keys = [make_key(number, salt="tenant" if number % 2 else "") for number in range(96)]
    with CacheSession(make_spec("256MiB", lease_s=0), L1_BYTES) as session:
        manager = session.manager
        store(session, keys, 0)
        ((_, adapter),) = manager.l2_adapters()
        (path,) = figures_of(session)["capacity_bytes"]
        done = manager.reconfigure_l2_adapter(0, "resize", {"capacity": "64MiB"})
        assert done["status"]["capacity_bytes"] == {path: 64 * MIB}
        assert adapter.get_usage().total_capacity_bytes == 64 * MIB
        until("the smaller store", lambda: figures_of(session)["is_within_capacity"])
        found = session.prefetch(keys, LAYOUT)
        kept = sum(found)
        assert 32 <= kept < 64
        with session.read([key for key, hit in zip(keys, found, strict=True) if hit]):
            pass
        # Its books follow.
        until("the usage", lambda: adapter.get_usage().total_bytes_used == kept * MIB)
        (namespace,) = (name for name in adapter._store.usage() if name.endswith("@tenant"))
        manager.reconfigure_l2_adapter(0, "quotas", {"quotas": {namespace: "4MiB"}})
        assert figures_of(session)["quota_bytes"] == {namespace: 4 * MIB}
        until("the quota", lambda: adapter._store.usage()[namespace]["keys"] == 4)
        manager.reconfigure_l2_adapter(0, "quotas", {"quotas": {namespace: "none"}})
        manager.reconfigure_l2_adapter(0, "ttl", {"ttl": 1})
        until("their expiry", lambda: adapter.get_usage().total_bytes_used == 0)
        done = manager.reconfigure_l2_adapter(0, "status", {})
        assert (done["status"]["ttl_s"], done["status"]["quota_bytes"]) == (1.0, {})


@pytest.mark.parametrize(
    ("operation", "payload", "message"),
    [
        ("shrink", {}, "there are resize, ttl, quotas, status"),
        ("resize", {"size": "1GiB"}, "takes 'capacity' alone, not size"),
        ("resize", {}, "takes 'capacity' alone, not nothing"),
        ("resize", {"capacity": "1KiB"}, "1 KiB is less than 16 MiB"),
        ("resize", {"capacity": "1PiB"}, "free space there, or take less"),
        ("ttl", {"ttl": "soon"}, "'ttl'"),
        ("quotas", {"quotas": "1GiB"}, "no mapping"),
        ("quotas", {"quotas": {"a": 1}}, "'a'"),
    ],
)
def test_what_does_not_fit_is_refused(
    make_spec: Callable[..., AdapterSpec],
    operation: str,
    payload: dict[str, object],
    message: str,
) -> None:
    with CacheSession(make_spec("64MiB"), L1_BYTES) as session:
        before = figures_of(session)
        with pytest.raises(L2ReconfigureError, match=re.escape(message)) as refusal:
            session.manager.reconfigure_l2_adapter(0, operation, payload)
        assert refusal.value.status_code == 400
        assert figures_of(session) == before


def test_adapters_come_and_go_at_run_time(
    make_spec: Callable[..., AdapterSpec], data_directory: Path
) -> None:
    further = adapter_spec("plugin", data_directory / "further", "64MiB")
    (config,) = parse_args_to_l2_adapters_config(
        argparse.Namespace(l2_adapter=[json.dumps(further)])
    ).adapters
    keys = [make_key(number) for number in range(BATCH)]
    with CacheSession(make_spec("64MiB"), L1_BYTES) as session:
        manager = session.manager
        for round_number in range(3):
            adapter_id = manager.add_l2_adapter(config)
            adapters = {one.index: adapter for one, adapter in manager.l2_adapters()}
            further_store = cast("Any", adapters[adapter_id])._store
            assert further_store.stats()["keys"] == (BATCH if round_number else 0)
            if round_number == 0:
                with session.write(keys, LAYOUT) as tensors:
                    for tensor in tensors:
                        tensor.fill_(7)
                # In both.
                session.wait_until_stored(2 * BATCH)
                manager.delete_l1_keys(keys)
            assert session.prefetch(keys, LAYOUT) == [True] * BATCH
            with session.read(keys):
                pass
            manager.delete_l1_keys(keys)
            manager.delete_l2_adapter(adapter_id)
            # Closed in order, and free for the next one.
            with kvring.Connector(data_directory / "further", "64MiB") as again:
                assert again.recovery["clean_shutdown"]
                assert again.recovery["kept"] == BATCH
        assert session.prefetch(keys, LAYOUT) == [True] * BATCH
        with session.read(keys):
            pass
