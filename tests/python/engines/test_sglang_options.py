"""The options of a rank's store, its directories, and what is refused."""

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha_mxfp8 import MHATokenToKVPoolMXFP8Host

import kvring
from kvring.sglang.ranks import options_of_rank
from tests.python.conftest import CAPACITY_BYTES, MIB, bare_loop_device
from tests.python.engines.sglang_host import (
    BOTH_INTERFACES,
    KEYS,
    KINDS,
    OpenRank,
    Rank,
    device_pool,
    kvring_options,
)
from tests.support.sglang_pools import host_pool, make_backend, storage_config

WHERE = "--hicache-storage-backend-extra-config"


def test_no_two_ranks_have_the_same_directory(store_path: Path) -> None:
    sizes = {"dp_rank": 2, "pp_rank": 2, "attn_cp_rank": 3, "tp_rank": 4}
    options = kvring_options(store_path)
    paths = set()
    for numbers in itertools.product(*map(range, sizes.values())):
        fields: dict[str, Any] = dict(zip(sizes, numbers, strict=True))
        config = storage_config({}, pp_size=2, attn_cp_size=3, tp_size=4, **fields)
        paths.add(options_of_rank(config, options, fields["tp_rank"])["path"])
    assert paths == {f"{store_path}/rank-{number}" for number in range(48)}


@pytest.mark.root
def test_a_device_that_ranks_would_share_is_refused(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        several: list[dict[str, Any]] = [{"tp_size": 2}, {"pp_size": 2}, {"attn_cp_size": 2}]
        for sizes in several:
            with pytest.raises(ValueError, match=r"\{rank\}") as raised:
                Rank(device.path, options={"capacity": "all"}, **sizes)
            assert str(device.path) in str(raised.value)
            assert WHERE in str(raised.value)
        rank = Rank(device.path, options={"capacity": "all"})
        assert rank.store(KEYS) == [True] * len(KEYS)
        assert rank.load(KEYS) == [True] * len(KEYS)
        rank.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"capcity": "1GiB"}, "capcity"),
        ({"capacity": "much"}, "capacity"),
        ({"engine": "none"}, "engine"),
        ({"lease_s": -1}, "lease_s"),
        ({"path": 5}, "path"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    store_path: Path, kind: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named) as raised:
        Rank(store_path, kind, options=options)
    assert str(raised.value).startswith(WHERE)


@pytest.mark.parametrize("name", ["path", "capacity"])
def test_an_option_that_is_needed_is_asked_for_by_name(store_path: Path, name: str) -> None:
    options = kvring_options(store_path)
    del options[name]
    pool = host_pool(device_pool("mha"))
    with pytest.raises((ValueError, TypeError), match=name) as raised:
        make_backend("dynamic", storage_config(options), pool)
    assert str(raised.value).startswith(WHERE)


def test_a_store_in_use_is_refused_by_its_path(open_rank: OpenRank, store_path: Path) -> None:
    rank = open_rank()
    with pytest.raises(kvring.InUseError, match=str(store_path)) as raised:
        open_rank()
    assert str(raised.value).startswith(WHERE)
    assert rank.store(KEYS) == [True] * len(KEYS)


@BOTH_INTERFACES
def test_a_pool_whose_pages_sglang_gives_to_no_backend_is_refused(
    store_path: Path, v1: bool
) -> None:
    pool = host_pool(device_pool("mha"))
    # Its own constructor needs a GPU; this takes the place of its pages.
    pool.__class__ = MHATokenToKVPoolMXFP8Host
    with pytest.raises(ValueError, match="MXFP8") as raised:
        make_backend("dynamic", storage_config(kvring_options(store_path, v1=v1)), pool)
    assert str(raised.value).startswith("SGLang's pool 'kv' (MHATokenToKVPoolMXFP8Host)")
    # The store is closed.
    kvring.Connector(store_path / "rank-0", CAPACITY_BYTES).close()


def test_an_sglang_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5.20 to 0.5.22 have all that is imported, and cannot say which rank writes."""
    monkeypatch.delitem(sys.modules, "kvring.sglang")
    monkeypatch.delattr(HiCacheStorageConfig, "is_storage_writer")
    with pytest.raises(ImportError, match=r"needs SGLang 0\.5\.23 or newer") as raised:
        importlib.import_module("kvring.sglang")
    assert "is_storage_writer" in str(raised.value)


def test_sglangs_own_names_are_no_options_of_a_store(open_rank: OpenRank) -> None:
    rank = open_rank(options={"file_storage_path": "/nowhere", "allocator": "default"})
    assert rank.store(KEYS) == [True] * len(KEYS)
