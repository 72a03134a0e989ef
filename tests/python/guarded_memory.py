"""Memory between pages without access, so that whoever reads or writes beside it is stopped.

    | guard | slack | memory | slack | guard |

The slack, where the memory is no whole number of pages, has a pattern that is compared when the
memory goes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from enum import IntFlag

from typing_extensions import Self

PAGE_BYTES = mmap.PAGESIZE
_SLACK = b"\xc3"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Access(IntFlag):
    """What may be done with memory, as mprotect(2) has it."""

    NONE = 0
    READ = mmap.PROT_READ
    WRITE = mmap.PROT_WRITE


class GuardedMemory(mmap.mmap):
    """Zeroed memory with its guards, `shift_bytes` behind the start of a page."""

    def __new__(cls, length_bytes: int, shift_bytes: int = 0) -> Self:
        """Map it."""
        end_bytes = max(shift_bytes + length_bytes, 1)
        body_bytes = -(-end_bytes // PAGE_BYTES) * PAGE_BYTES
        memory = super().__new__(cls, -1, body_bytes + 2 * PAGE_BYTES)
        memory._body_bytes = body_bytes
        begin = PAGE_BYTES + shift_bytes
        memory._span = slice(begin, begin + length_bytes)
        for slack in memory._slack():
            memory[slack] = _SLACK * (slack.stop - slack.start)
        for guard in (0, PAGE_BYTES + body_bytes):
            memory._protect(guard, PAGE_BYTES, Access.NONE)
        return memory

    _body_bytes: int
    _span: slice

    @property
    def view(self) -> memoryview:
        """What kvring is given."""
        return memoryview(self)[self._span]

    def allow(self, access: Access) -> None:
        """Allow this access, to the kernel as well, and no other."""
        self._protect(PAGE_BYTES, self._body_bytes, access)

    def __del__(self) -> None:
        """Compare the slack; pytest makes an error of what is raised here."""
        self.allow(Access.READ)
        for slack in self._slack():
            found = self[slack]
            assert found == _SLACK * len(found), "written beside the memory of a batch"

    def _slack(self) -> tuple[slice, slice]:
        before = slice(PAGE_BYTES, self._span.start)
        return before, slice(self._span.stop, PAGE_BYTES + self._body_bytes)

    def _protect(self, offset_bytes: int, length_bytes: int, access: Access) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(self)) + offset_bytes
        if _libc.mprotect(start, length_bytes, access) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
