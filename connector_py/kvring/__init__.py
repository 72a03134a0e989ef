"""kvring: a local-NVMe tier for LMCache.

LMCache loads it by name::

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

__all__ = [
    "FAILURE_CODES",
    "ClosedError",
    "ConfigError",
    "Connector",
    "EngineError",
    "FormatError",
    "InUseError",
    "KvRingError",
    "NotFormattedError",
    "SubmitError",
    "__version__",
    "build_info",
    "options",
    "set_epoch",
]
