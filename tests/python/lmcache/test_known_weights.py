"""What a server knows of weights, whatever becomes of their files."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from kvring.lmcache import known_weights
from kvring.lmcache.known_weights import KnownWeights
from kvring.weights import look_at_weights
from tests.python.conftest import until

pytestmark = pytest.mark.lmcache


@pytest.fixture
def epoch() -> Mock:
    return Mock(return_value=0)


@pytest.fixture
def known(epoch: Mock, monkeypatch: pytest.MonkeyPatch) -> Iterator[KnownWeights]:
    monkeypatch.setattr(known_weights, "_LOOK_S", 0.01)
    known = KnownWeights(epoch)
    yield known
    known.close()


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    return str(file)


def change(model: str) -> None:
    os.utime(model, (1, 1))


def test_a_change_is_one_for_both_forms_whichever_is_asked_for_first(
    known: KnownWeights, epoch: Mock, model: str
) -> None:
    other = f"{model}.other.gguf"
    Path(other).write_bytes(b"other")
    before = known.of(model), known.of(other)
    change(model)
    until("it is seen", lambda: known.of(model) is None)
    assert known.of(model, is_portable=True) is None
    assert known.of(other) == before[1]
    # As it was, and still nobody knows.
    assert known.of(model) is None
    epoch.return_value = 1
    assert known.of(model) not in (None, before[0])
    assert known.of(model, is_portable=True) is not None


def test_a_portable_form_is_that_of_what_was_seen(known: KnownWeights, model: str) -> None:
    assert known.of(model) is not None
    change(model)
    # Whether that is seen by now or not.
    assert known.of(model, is_portable=True) is None


def test_files_that_cannot_be_looked_at_for_a_while_have_not_changed(
    known: KnownWeights, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*arguments: Any, **options: Any) -> str:
        looks.append(1)
        if is_stale:
            raise OSError(errno.ESTALE, "stale")
        return look_at_weights(*arguments, **options)

    looks: list[int] = []
    is_stale = True
    monkeypatch.setattr(known_weights, "look_at_weights", look)
    assert known.of(model) is None
    is_stale = False
    until("they can be", lambda: known.of(model) is not None)
    before = known.of(model)
    is_stale = True
    looks.clear()
    until("it was looked again", lambda: len(looks) > 2)
    assert known.of(model) == before
