"""The L2 adapter specifications that LMCache is given as JSON."""

from pathlib import Path
from typing import Any

AdapterSpec = dict[str, Any]

DEFAULT_CAPACITY = "4GiB"
ADAPTER_NAMES = ("kvring", "fs_native")


def adapter_spec(
    name: str, path: Path, capacity: str = DEFAULT_CAPACITY, **options: object
) -> AdapterSpec:
    """Return the specification of the L2 adapter ``name`` with its data under ``path``.

    ``fs_native`` is LMCache's own file adapter. It is the control: what fails with it too is not
    a fault of kvring. It knows neither a capacity nor kvring's ``options``.
    """
    if name == "kvring":
        return {
            "type": "native_plugin",
            "module_path": "kvring",
            "class_name": "Connector",
            "adapter_params": {"path": str(path), "capacity": capacity, **options},
        }
    if name == "fs_native":
        return {"type": "fs_native", "base_path": str(path)}
    raise ValueError(f"unknown L2 adapter {name!r}: choose one of {', '.join(ADAPTER_NAMES)}")
