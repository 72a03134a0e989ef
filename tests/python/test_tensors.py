"""Tensors as memory, by a stand-in with what kvring asks of torch's; the real ones are in lmcache/.

Like them it exports no buffer and is known by the module of its class.
"""

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

import kvring
from tests.python.conftest import Client, filled_memory, make_memory, pattern


class Storage:
    """The memory of some tensors."""

    def __init__(self, content: bytes) -> None:
        """Copy it."""
        self.memory = bytearray(content)

    def data_ptr(self) -> int:
        """Return its address."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) if self.memory else 0

    def nbytes(self) -> int:
        """Return its length."""
        return len(self.memory)


class Device(SimpleNamespace):
    """Where a tensor is."""

    def __init__(self, name: str) -> None:
        """Note it, as "cuda:0" or "cpu"."""
        super().__init__(name=name, type=name.split(":")[0])

    def __str__(self) -> str:
        """Return its name."""
        return str(self.name)


class Tensor:
    """A view of a storage."""

    def __init__(self, content: bytes, offset: int = 0) -> None:
        """Make a storage for it, which is longer."""
        self.storage = Storage(bytes(offset) + content + b"behind")
        self.offset = offset
        self.length_bytes = len(content)
        self.name = "cpu"
        self.contiguous = True
        self.conjugate = False

    @property
    def device(self) -> Device:
        """Return where it is."""
        return Device(self.name)

    @property
    def nbytes(self) -> int:
        """Return its length."""
        return self.length_bytes

    def data_ptr(self) -> int:
        """Return its address."""
        return self.storage.data_ptr() + self.offset

    def is_contiguous(self) -> bool:
        """Tell whether it is."""
        return self.contiguous

    def is_conj(self) -> bool:
        """Tell whether it is a conjugate view."""
        return self.conjugate

    def untyped_storage(self) -> Storage:
        """Return it."""
        return self.storage

    def content(self) -> bytes:
        """Return its bytes."""
        return bytes(self.storage.memory[self.offset : self.offset + self.nbytes])


Tensor.__module__ = "torch"


class Parameter(Tensor):
    """A class of others may be a tensor's subclass."""


@pytest.mark.parametrize("kind", [Tensor, Parameter])
@pytest.mark.parametrize("offset", [0, 6])
def test_a_tensor_is_stored_and_filled(client: Client, kind: type[Tensor], offset: int) -> None:
    stored: list[Any] = [kind(pattern(5000, number), offset) for number in range(3)]
    keys = ["a", "b", "c"]
    assert client.set(keys, stored).ok
    assert client.load("b", 5000) == pattern(5000, 1)
    filled: list[Any] = [kind(bytes(5000), offset), make_memory(5000), kind(bytes(5000))]
    assert client.get(keys, filled).results == [True] * 3
    assert [filled[0].content(), bytes(filled[1]), filled[2].content()] == [
        pattern(5000, number) for number in range(3)
    ]
    assert filled[0].storage.memory[offset + 5000 :] == b"behind"


def test_the_memory_of_a_tensor_is_held_until_its_completion_is_drained(client: Client) -> None:
    tensor = Tensor(pattern(5000, 1))
    storage = weakref.ref(tensor.storage)
    memory: list[Any] = [tensor]
    future_id = client.connector.submit_batch_set(["key"], memory)
    del tensor, memory
    gc.collect()
    assert storage() is not None
    assert client.wait(future_id).ok
    gc.collect()
    assert storage() is None
    assert client.load("key", 5000) == pattern(5000, 1)


def refused_tensors() -> dict[str, tuple[Tensor, dict[str, str]]]:
    on_gpu, strided, conjugate, emptied = (Tensor(bytes(4096)) for _ in range(4))
    on_gpu.name = "cuda:0"
    strided.contiguous = False
    conjugate.conjugate = True
    emptied.storage = Storage(b"")
    far = Tensor(bytes(4096))
    far.offset = 100
    both = {"set", "get"}
    gone = dict.fromkeys(both, "is a tensor without memory of its own")
    return {
        "on a device": (
            on_gpu,
            {
                "set": "is a tensor on device cuda:0; pass a copy on the CPU: tensor.cpu()",
                "get": "is a tensor on device cuda:0; load into a tensor on the CPU",
            },
        ),
        "not contiguous": (
            strided,
            {
                "set": "is a tensor that is not contiguous; pass tensor.contiguous()",
                "get": "is a tensor that is not contiguous; load into a contiguous tensor",
            },
        ),
        "conjugate": (conjugate, dict.fromkeys(both, "pass tensor.resolve_conj().resolve_neg()")),
        "emptied": (emptied, gone),
        "beyond its storage": (far, gone),
    }


@pytest.mark.parametrize("operation", ["set", "get"])
@pytest.mark.parametrize("name", refused_tensors())
def test_other_tensors_are_refused(client: Client, operation: str, name: str) -> None:
    tensor, told = refused_tensors()[name]
    memory: list[Any] = [filled_memory(bytes(4096)), tensor]
    with pytest.raises(kvring.SubmitError) as refusal:
        getattr(client.connector, f"submit_batch_{operation}")(["good", "bad"], memory)
    assert str(refusal.value).startswith("buffer 1 ")
    assert told[operation] in str(refusal.value)
    assert client.exists(["good", "bad"]) == [False, False]


def test_an_error_of_the_tensor_is_told(client: Client) -> None:
    class Sparse(Tensor):
        def data_ptr(self) -> int:
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    memory: list[Any] = [Sparse(bytes(8))]
    with pytest.raises(kvring.SubmitError, match="buffer 0 is a tensor whose memory") as refusal:
        client.connector.submit_batch_set(["key"], memory)
    assert "doesn't have storage" in str(refusal.value)
    assert isinstance(refusal.value.__cause__, RuntimeError)


def test_what_only_looks_like_a_tensor_is_none(client: Client) -> None:
    class Other:
        data_ptr = device = is_contiguous = nbytes = untyped_storage = None

    class Partial:
        data_ptr = nbytes = None

    Partial.__module__ = "torch"
    for memory in (Other(), Partial()):
        buffers: list[Any] = [memory]
        with pytest.raises(kvring.SubmitError, match="which has no memory to share"):
            client.connector.submit_batch_set(["key"], buffers)
