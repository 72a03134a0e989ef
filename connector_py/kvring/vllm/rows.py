"""The rows of the primary tier's memory: where each is, and whether the workers have written it."""

import ctypes
from typing import Any, Final

import numpy as np

from kvring._native import SubmitError

__all__ = ["Rows"]

# KV of the first tokens of a cell: where that is all zeros, the rest is looked at too.
_FIRST_BYTES: Final = 4096


class Rows:
    """Addresses of rows, and the cells that workers write into them.

    A row is `W0 | W1 | ... | padding`, a cell for each worker (`kv_offload/cpu/spec.py` of vLLM
    0.33.0). A replicated layout has one cell; a canonical one has no cells of workers. A stage of
    a pipeline may have no layer of a group, and then leaves its cell as it is.
    """

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview) -> None:
        """Look at the primary tier's memory, and keep nothing of it but its address.

        Args:
            offloading_spec: vLLM's.
            primary_kv_view: Of shape (rows, bytes of a row).
        """
        # Whoever holds an array of it keeps the memory mapped.
        memory = np.asarray(primary_kv_view)
        self.first: int = memory.ctypes.data
        self.count, self.row_bytes = memory.shape
        config = offloading_spec.config
        is_whole = (
            config.canonical_layout
            or offloading_spec.replicated_layout
            or config.parallel.pp_size > 1
        )
        self._cells: int = 1 if is_whole else config.parallel.world_size
        self._cell_bytes: int = (
            self.row_bytes if is_whole else offloading_spec.cpu_page_size_per_worker
        )

    def addresses(self, rows: np.ndarray[Any, Any]) -> list[int]:
        """Return the addresses of rows.

        Raises:
            SubmitError: There is no such row.
        """
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.count:
            text = f"a job names row {rows.min()} or {rows.max()} of {self.count}"
            raise SubmitError(text)
        addresses: list[int] = (rows * self.row_bytes + self.first).tolist()
        return addresses

    def is_written(self, address: int) -> bool:
        """Tell whether each worker has written anything but zeros into a row."""
        return all(
            _has_content(address + cell * self._cell_bytes, self._cell_bytes)
            for cell in range(self._cells)
        )


def _has_content(address: int, length_bytes: int) -> bool:
    return any(
        np.frombuffer((ctypes.c_uint8 * part_bytes).from_address(start), np.uint8).any()
        for start, part_bytes in (
            (address, min(length_bytes, _FIRST_BYTES)),
            (address + _FIRST_BYTES, max(0, length_bytes - _FIRST_BYTES)),
        )
        if part_bytes
    )
