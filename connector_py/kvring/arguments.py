"""Types of what callers pass: paths, capacities, options, memory."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypedDict

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Buffer  # noqa: F401 - in the text of a type

__all__ = ["Array", "Capacities", "Memory", "Paths", "StoreOptions", "Tensor"]


class Tensor(Protocol):
    """A tensor of torch."""

    @property
    def device(self) -> Any:
        """The device that has its memory: the CPU."""

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""

    def data_ptr(self) -> int:
        """Return the address of its memory."""

    def is_contiguous(self) -> bool:
        """Tell whether its memory is one span."""

    def untyped_storage(self) -> Any:
        """Return what owns its memory."""


class Array(Protocol):
    """An array of numpy, whose stubs say only from Python 3.12 on that it is a buffer."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Its memory, as numpy describes it."""

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""


Memory: "TypeAlias" = "Buffer | Tensor | Array"
Paths: "TypeAlias" = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# Of `kvring.options()`: a number of bytes, or a text such as "500GiB".
_Size: "TypeAlias" = SupportsIndex | float | str
Capacities: "TypeAlias" = _Size | Sequence[_Size]


class StoreOptions(TypedDict, total=False):
    """The options of a store; `help(kvring.Store)` has their meaning."""

    index_path: str | os.PathLike[str]
    require_mount: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    layout: Literal["extents", "files"]
    engine: Literal["auto", "io_uring", "posix"]
    checksum: Literal["crc64nvme", "off"]
    durability: Literal["best_effort", "persistent"]
    eviction: Literal["adaptive", "lru", "lfu", "fifo", "mru"]
    ttl: float | str
    lease_s: int
    load_deadline_ms: int | Literal["off"]
    identity: str
    quotas: Mapping[str, _Size] | Literal["none"]
    admit: Literal["adaptive", "always", "second_use"]
    write_budget: _Size
    min_free: _Size
    discard: Literal["never", "format", "free"]
    write_streams: Literal["off", "lifetime", "namespace"]
    io_threads: int | Literal["auto"]
    set_queue_bytes: _Size
    metrics_port: int | Literal["off"]
