"""kvring.Store on a frozen file system: Ctrl-C and timeouts end the wait."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import kvring
from kvring.owner_requests import ask
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    until,
)
from tests.python.test_frozen import frozen, hear, tell
from tests.python.test_store_api import LONG_S, failure_of
from tests.support.devices import loop_device


def wait_on_a_frozen_file_system(path: str) -> None:
    """Put while nothing can be written, until Ctrl-C; then say what is left of the store."""
    # What a shell starts in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with kvring.open(path, 64 * MIB, min_free=0, admit="always") as store:
        store.put("kept", b"chunk")
        store.put("deleted", b"chunk")
        print("ready", flush=True)
        sys.stdin.readline()
        print(failure_of(lambda: store.put("late", b"chunk", timeout_s=0.1)), flush=True)
        print(failure_of(lambda: store.delete("deleted", timeout_s=0.1)), flush=True)
        try:
            store.put("interrupted", b"chunk", timeout_s=LONG_S)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(store.get("kept"), flush=True)
        sys.stdin.readline()
        store.put("after", b"chunk", timeout_s=HANG_DEADLINE_S)
        print(store.get("after"), store.close()["shutdown_clean"], flush=True)


def sets_of(path: Path) -> int:
    """Ask the owner of a store how many SETs it was given."""
    answer = ask(path, None, {"ask": "stats"})
    assert answer is not None
    return int(answer["stats"]["set_queued"])


@pytest.mark.root
def test_ctrl_c_and_timeouts_end_what_a_frozen_file_system_holds_up(
    tmp_path: Path, start_child: Callable[..., "subprocess.Popen[str]"]
) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(loop_device(tmp_path, "ext4", 512 * MIB)).directory
        path = directory / "store"
        child = start_child(wait_on_a_frozen_file_system, str(path))
        # Before the file system is unmounted.
        stack.callback(child.communicate)
        stack.callback(child.kill)
        with frozen(directory):
            tell(child)
            for key, verb in (("late", "stored"), ("deleted", "deleted")):
                reason = f"'{key}': not {verb} within 0.1 s"
                assert hear(child, HANG_DEADLINE_S).startswith(f"ChunkTimeoutError {reason}")

            until("the put", lambda: sets_of(path) == 4)
            child.send_signal(signal.SIGINT)
            assert hear(child, HANG_DEADLINE_S) == "interrupted\n"
            assert hear(child, HANG_DEADLINE_S) == "bytearray(b'chunk')\n"
        tell(child)
        assert hear(child, HANG_DEADLINE_S) == "bytearray(b'chunk') True\n"
