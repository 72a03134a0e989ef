"""Real tensors of torch as memory."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import Client

torch = pytest.importorskip("torch", reason="torch is not installed (make lmcache)")

pytestmark = pytest.mark.lmcache

CAPACITY_BYTES = 256 << 20
DTYPES = ["uint8", "int64", "bfloat16", "float32", "complex64", "bool", "float8_e4m3fn"]


@pytest.fixture
def client(data_directory: Path) -> Iterator[Client]:
    """Open a store."""
    with kvring.Connector(data_directory / "store", CAPACITY_BYTES) as connector:
        yield Client(connector)


def noise(dtype: str, *shape: int) -> Any:
    """Make a tensor whose bytes are random; of a bool each is 0 or 1."""
    kind = getattr(torch, dtype)
    length_bytes = torch.empty(shape, dtype=kind).nbytes
    most = 2 if dtype == "bool" else 256
    return torch.randint(0, most, (length_bytes,), dtype=torch.uint8).view(kind).view(shape)


def bytes_of(tensor: Any) -> bytes:
    """Return the bytes of a contiguous tensor."""
    return bytes(tensor.view(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype_is_stored_and_loaded(client: Client, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    stored: list[Any] = [noise(dtype, 2, 3, 501), noise(dtype, 64, 64)[3:7]]
    assert client.set(["a", "b"], stored).ok
    loaded: list[Any] = [torch.zeros_like(tensor) for tensor in stored]
    assert client.get(["a", "b"], loaded).results == [True, True]
    assert [bytes_of(tensor) for tensor in loaded] == [bytes_of(tensor) for tensor in stored]
    assert client.load("a", stored[0].nbytes) == bytes_of(stored[0])


def test_a_tensor_that_nobody_else_holds_is_stored_whole(client: Client) -> None:
    contents = []
    futures = []
    for number in range(20):
        tensor: Any = noise("bfloat16", 200_000)
        contents.append(bytes_of(tensor))
        futures.append(client.connector.submit_batch_set([str(number)], [tensor]))
        # Its memory must not go with it.
        tensor.data = torch.zeros(1, dtype=torch.bfloat16)
        del tensor
        gc.collect()
    assert all(completion.ok for completion in client.wait_all(futures))
    for number, content in enumerate(contents):
        assert client.load(str(number), len(content)) == content


def refused_tensors() -> list[Any]:
    whole = torch.zeros(64, 64)
    emptied = torch.zeros(64)
    emptied.untyped_storage().resize_(0)
    return [
        pytest.param(whole.t(), "is not contiguous", id="transposed"),
        pytest.param(whole[:, ::2], "is not contiguous", id="strided"),
        pytest.param(whole[:1].expand(64, 64), "is not contiguous", id="expanded"),
        pytest.param(torch.zeros(8, device="meta"), "on device meta", id="meta"),
        pytest.param(torch.zeros(8, dtype=torch.complex64).conj(), "resolve_conj", id="conjugate"),
        pytest.param(whole.to_sparse(), "buffer 1 is a tensor", id="sparse"),
        pytest.param(emptied, "without memory", id="emptied"),
    ]


@pytest.mark.parametrize(("tensor", "told"), refused_tensors())
@pytest.mark.parametrize("operation", ["set", "get"])
def test_other_tensors_are_refused(client: Client, operation: str, tensor: Any, told: str) -> None:
    buffers: list[Any] = [bytearray(8), tensor]
    with pytest.raises(kvring.SubmitError, match=told) as refusal:
        getattr(client.connector, f"submit_batch_{operation}")(["good", "bad"], buffers)
    assert str(refusal.value).startswith("buffer 1 ")
    assert client.exists(["good", "bad"]) == [False, False]
