"""kvring: a local-NVMe tier for LMCache.

Programs of their own call `kvring.open()`. LMCache loads it by name::

    {"type": "native_plugin", "module_path": "kvring", "class_name": "Connector",
     "adapter_params": {"path": "/mnt/nvme/kvring", "capacity": "500GiB"}}
"""

from kvring import logs as logs
from kvring._native import (
    FAILURE_CODES,
    ClosedError,
    ConfigError,
    EngineError,
    FormatError,
    InUseError,
    KvRingError,
    NotFormattedError,
    SubmitError,
    __version__,
    build_info,
    options,
)
from kvring.connector import Connector
from kvring.epochs import set_epoch
from kvring.store import ChunkError, ChunkTimeoutError, Store

# Not in __all__: who imports all names means the open() of Python.
from kvring.store import open as open  # noqa: A004

__all__ = [
    "FAILURE_CODES",
    "ChunkError",
    "ChunkTimeoutError",
    "ClosedError",
    "ConfigError",
    "Connector",
    "EngineError",
    "FormatError",
    "InUseError",
    "KvRingError",
    "NotFormattedError",
    "Store",
    "SubmitError",
    "__version__",
    "build_info",
    "options",
    "set_epoch",
]
