"""A drive that answers nothing when LMCache ends: L1 stays where the kernel still reads it."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc

from tests.python.conftest import HANG_DEADLINE_S, MIB, until
from tests.python.lmcache.adapter_driver import make_key
from tests.python.test_frozen import end, frozen, hear, tell
from tests.support.adapter_spec import adapter_spec
from tests.support.caches import CacheSession
from tests.support.devices import loop_device

pytestmark = [pytest.mark.lmcache, pytest.mark.root, pytest.mark.slow]

IMAGE_SIZE_BYTES = 512 * MIB
L1_BYTES = 64 * MIB
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([MIB])], dtypes=[torch.uint8])


def close_amid_stores(path: str) -> None:
    """End LMCache while stores are in the kernel, and look whether L1 is still mapped."""
    session = CacheSession(adapter_spec("plugin", Path(path), "64MiB", min_free=0), L1_BYTES)
    ((_, adapter),) = session.manager.l2_adapters()
    for first in (0, 4):
        keys = [make_key(number) for number in range(first, first + 4)]
        with session.write(keys, LAYOUT) as tensors:
            for number, tensor in enumerate(tensors, first):
                tensor.fill_(number)
            address = tensors[0].data_ptr()
        if first == 0:
            session.wait_until_stored(4)
            print("ready", flush=True)
            sys.stdin.readline()
    until("the stores", lambda: adapter._store.stats()["in_flight"] >= 4)
    outcome = "closed"
    try:
        session.manager.close()
    except RuntimeError as error:
        outcome = str(error)
    print("mapped," if is_mapped(address) else "not mapped,", outcome, flush=True)
    sys.stdin.readline()


def is_mapped(address: int) -> bool:
    """Say whether there is memory at an address."""
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        try:
            return len(os.pread(memory.fileno(), 1, address)) == 1
        except OSError:
            return False


def test_l1_stays_mapped_while_the_kernel_has_some_of_it(
    tmp_path: Path, start_child: Callable[..., Popen[str]]
) -> None:
    with ExitStack() as stack:
        device = stack.enter_context(loop_device(tmp_path, "ext4", IMAGE_SIZE_BYTES))
        path = device.directory / "store"
        child = start_child(close_amid_stores, str(path))
        # Before the file system is unmounted.
        stack.callback(end, child)
        with frozen(device.directory):
            tell(child)
            said = hear(child, HANG_DEADLINE_S)
        assert said.startswith(f"mapped, {path}: the drive does not answer"), said
        tell(child)
        assert child.wait(HANG_DEADLINE_S) == 0
