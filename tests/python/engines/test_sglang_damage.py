"""Backends on a device that fails, and an owner of readers on one."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.conftest import MIB
from tests.python.faulty_device import FaultyDevice, faulty_device

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

from tests.python.engines.sglang_host import BOTH_INTERFACES, KEYS, OpenRank

pytestmark = pytest.mark.root

DEVICE_BYTES = 128 * MIB
# The whole device is one store's: a rank has one of its own.
OPTIONS = {"capacity": "all"}
NONE = [False] * len(KEYS)
ALL = [True] * len(KEYS)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FaultyDevice]:
    """A block device that fails when it is told to."""
    with faulty_device(tmp_path, DEVICE_BYTES) as device:
        yield device


@BOTH_INTERFACES
@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_what_cannot_be_read_is_a_miss_and_comes_back(
    device: FaultyDevice, open_rank: OpenRank, kind: str, v1: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rank = open_rank(kind, path=device.path, v1=v1, options=OPTIONS)
    try:
        assert rank.store(KEYS) == ALL
        device.fail("read")
        with caplog.at_level(logging.WARNING):
            assert rank.load(KEYS) == NONE
        assert any("Input/output error" in line for line in caplog.messages)
        device.mend()
        assert rank.load(KEYS) == ALL
    finally:
        device.mend()


def test_readers_of_an_owner_whose_device_fails_have_misses(
    device: FaultyDevice, open_rank: OpenRank, tmp_path: Path
) -> None:
    (tmp_path / "kv-0").symlink_to(device.path)
    ranks = {"path": tmp_path / "kv-{rank}", "options": OPTIONS, "tp_size": 2}
    owner = open_rank("mla", tp_rank=0, **ranks)
    reader = open_rank("mla", tp_rank=1, **ranks)
    try:
        assert owner.store(KEYS) == ALL
        assert reader.load(KEYS[:1]) == [True]
        device.fail("read")
        assert reader.load(KEYS[1:]) == NONE[1:]
        device.mend()
        assert reader.load(KEYS) == ALL
    finally:
        device.mend()
