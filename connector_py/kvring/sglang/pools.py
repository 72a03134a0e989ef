"""Pages of SGLang's host pools as chunks of a store: under which keys, and where in memory."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from kvring._native import engine_namespace, rank_prefix
from kvring.engine_store import digest_of
from kvring.sglang.settings import server_facts

__all__ = ["Form", "Pages", "Pool", "memory_of"]

_logger = logging.getLogger(__name__)

# Where pools have their memory.
_BUFFERS: Final = (
    "kv_buffer",
    "k_buffer",
    "v_buffer",
    "index_k_buffer",
    "index_k_with_scale_buffer",
    "temporal_buffer",
    "conv_buffer",
    "slot_state_buffers",
)


@dataclass(frozen=True)
class Form:
    """How pages of a pool are stored."""

    namespace: str
    # Of their keys; see `MemoryTasks`.
    prefix: str
    # Chunks of a page.
    parts: int


@dataclass
class Pages:
    """Pages that are to be stored or loaded, and their memory."""

    form: Form
    keys: list[str]
    addresses: list[int]
    lengths_bytes: list[int]
    # Pages that are copied on their way; they are kept until the answers are there.
    copies: Sequence[torch.Tensor] = ()

    @property
    def request(self) -> tuple[str, list[str], list[int], list[int]]:
        """What a task takes of it."""
        return self.form.prefix, self.keys, self.addresses, self.lengths_bytes


class Pool:
    """A host pool: its pages are stored from where they lie, or by copies without addresses."""

    def __init__(
        self, name: str, host_pool: Any, config: Any, *, is_replicated: bool, in_place: bool
    ) -> None:
        """Find out how the pages lie.

        Args:
            name: SGLang's name of the pool.
            host_pool: SGLang's host pool.
            config: SGLang's HiCacheStorageConfig.
            is_replicated: Whether all ranks have the same bytes in it.
            in_place: Whether its pages may be addressed; SGLang asks for flat copies otherwise.

        Raises:
            ValueError: Its pages can neither be addressed nor copied.
        """
        self.name = name
        self.is_replicated = is_replicated
        self.page_size: int = getattr(host_pool, "page_size", 1) or 1
        # It counts pages, and has no memory.
        self.is_logical: bool = getattr(host_pool, "size_per_token", None) == 0
        self._host_pool = host_pool
        self._layout = {
            "model": config.model_name,
            "pool": [name, type(host_pool).__name__],
            "layout": str(getattr(host_pool, "layout", "")),
            "dtype": str(getattr(host_pool, "dtype", "")),
            "buffers": _buffers_of(host_pool),
            "server": server_facts(),
            "page_size": self.page_size,
            "layers": [getattr(host_pool, one, None) for one in ("start_layer", "end_layer")],
            "pipeline": [config.pp_rank, config.pp_size],
            "context": [config.attn_cp_rank, config.attn_cp_size],
            "tensor": None if is_replicated else config.tp_size,
        }
        self._rank = 0 if is_replicated else config.tp_rank
        self.flat_form = self._form("flat")
        sizes = self._part_sizes() if in_place and not self.is_logical else None
        # Of all calls but those with a tensor.
        self.form = self.flat_form if sizes is None else self._form(sizes)
        self._sizes = sizes
        if sizes is None and not self.is_logical:
            self._check_copies()

    @property
    def forms(self) -> tuple[Form, Form]:
        """All forms that its pages may have."""
        return self.form, self.flat_form

    def part_lengths_bytes(self) -> list[int]:
        """Return the lengths of the parts of a page."""
        return self._sizes or [self._host_pool.get_dummy_flat_data_page().nbytes]

    def to_store(self, keys: list[str], host_indices: Any) -> Pages:
        """Describe pages that are to be stored."""
        if self.is_logical:
            return Pages(self.form, keys, [], [])
        if self._sizes is not None:
            return self._addressed(keys, host_indices)
        starts = self._starts(keys, host_indices)
        pages = [self._host_pool.get_data_page(start, flat=True).contiguous() for start in starts]
        return self.flat(keys, pages)

    def to_load(self, keys: list[str], host_indices: Any) -> Pages:
        """Describe pages that are to be loaded; `take_in()` follows."""
        if self.is_logical:
            return Pages(self.form, keys, [], [])
        if self._sizes is not None:
            return self._addressed(keys, host_indices)
        self.check(keys, host_indices)
        return self.flat(keys, [self._host_pool.get_dummy_flat_data_page() for _ in keys])

    def take_in(self, pages: Pages, host_indices: Any, results: list[bool]) -> None:
        """Put pages that were loaded into copies where they belong."""
        if pages.copies:
            starts = self._starts(pages.keys, host_indices)
            for start, copy, ok in zip(starts, pages.copies, results, strict=True):
                if ok:
                    self._host_pool.set_from_flat_data_page(start, copy)

    def flat(self, keys: list[str], tensors: Sequence[torch.Tensor]) -> Pages:
        """Describe pages that lie in tensors."""
        if self.is_logical:
            return Pages(self.form, keys, [], [])
        if len(keys) != len(tensors):
            text = f"{len(keys)} keys with {len(tensors)} tensors; each key takes one"
            raise ValueError(text)
        for position, tensor in enumerate(tensors):
            if (
                not isinstance(tensor, torch.Tensor)
                or tensor.device.type != "cpu"
                or not tensor.is_contiguous()
            ):
                text = f"tensor {position} has no memory here; pass a dense tensor on the CPU"
                raise ValueError(text)
        addresses = [tensor.data_ptr() for tensor in tensors]
        lengths_bytes = [tensor.nbytes for tensor in tensors]
        return Pages(self.flat_form, keys, addresses, lengths_bytes, tensors)

    def _addressed(self, keys: list[str], host_indices: Any) -> Pages:
        self.check(keys, host_indices)
        addresses, lengths_bytes = self._host_pool.get_page_buffer_meta(host_indices)
        return Pages(self.form, keys, list(addresses), list(lengths_bytes))

    def _starts(self, keys: list[str], host_indices: Any) -> list[int]:
        self.check(keys, host_indices)
        starts: list[int] = host_indices[:: self.page_size].tolist()
        return starts

    def check(self, keys: list[str], host_indices: Any) -> None:
        """Refuse host indices of another number of pages, and those outside the pool.

        SGLang's pools compute addresses from host indices and check none.

        Raises:
            ValueError: The message names the pool.
        """
        count = 0 if host_indices is None else len(host_indices)
        if count != len(keys) * self.page_size:
            text = (
                f"{len(keys)} pages of pool '{self.name}' with {count} host indices; "
                f"each page has {self.page_size}"
            )
            raise ValueError(text)
        if not count:
            return
        starts = host_indices[:: self.page_size]
        first, last = int(starts.min()), int(starts.max())
        if first < 0 or last + self.page_size > self._host_pool.size:
            text = (
                f"pages of pool '{self.name}' begin at host indices {first} to {last}, "
                f"and it has {self._host_pool.size} with {self.page_size} for each page"
            )
            raise ValueError(text)

    def _part_sizes(self) -> list[int] | None:
        """Return the lengths of the parts of a page; None if it has no addresses."""
        try:
            first = torch.arange(self.page_size, dtype=torch.int64)
            _, sizes = self._host_pool.get_page_buffer_meta(first)
        except (AttributeError, NotImplementedError, ValueError) as error:
            _logger.warning(
                "pages of SGLang's pool '%s' have no addresses (%s): each transfer copies them; "
                "--hicache-mem-layout page_first avoids that for most pools",
                self.name,
                error,
            )
            return None
        return [int(size) for size in sizes]

    def _check_copies(self) -> None:
        """Refuse a pool whose pages cannot be copied: each store and load would fail."""
        try:
            self._host_pool.get_dummy_flat_data_page()
        except (AttributeError, NotImplementedError) as error:
            text = (
                f"SGLang's pool '{self.name}' ({type(self._host_pool).__name__}) gives no pages to "
                f"a storage backend: {error}; leave out --hicache-storage-backend for this model"
            )
            raise ValueError(text) from error

    def _form(self, sizes: Any) -> Form:
        digest = digest_of({**self._layout, "sizes": sizes})
        engine = "sglang" if self.name == "kv" else f"sglang-{self.name}"
        namespace = engine_namespace(engine, digest, str(self._layout["model"] or "model"))
        parts = len(sizes) if isinstance(sizes, list) else 1
        return Form(namespace, rank_prefix(namespace, self._rank), parts)


def memory_of(host_pool: Any) -> Iterator[tuple[int, int]]:
    """Find the memory of a host pool: address and length of each piece, once."""
    seen = set()
    for _, buffer in _tensors_of(host_pool):
        storage = buffer.untyped_storage()
        if buffer.device.type == "cpu" and storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.data_ptr(), storage.nbytes()


def _tensors_of(host_pool: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name in _BUFFERS:
        buffers = getattr(host_pool, name, None)
        for buffer in buffers if isinstance(buffers, (list, tuple)) else [buffers]:
            if isinstance(buffer, torch.Tensor):
                yield name, buffer


def _buffers_of(host_pool: Any) -> list[tuple[str, str, list[int]]]:
    """Return the name, dtype and shape of a host pool's buffers, whatever the pool's size."""
    sizes = {getattr(host_pool, one, None) for one in ("size", "page_num")}
    return [
        (name, str(buffer.dtype), [-1 if length in sizes else length for length in buffer.shape])
        for name, buffer in _tensors_of(host_pool)
    ]
