"""The L2 adapter specifications that LMCache is given as JSON."""

from pathlib import Path
from typing import Any

AdapterSpec = dict[str, Any]

DEFAULT_CAPACITY = "4GiB"
ADAPTER_NAMES = ("plugin", "native_plugin", "fs_native")


def adapter_spec(
    name: str, path: Path, capacity: str = DEFAULT_CAPACITY, **options: object
) -> AdapterSpec:
    """Return the specification of an L2 adapter with its data under ``path``.

    ``plugin`` and ``native_plugin`` are kvring, by two types of LMCache's. ``fs_native`` is
    LMCache's own file adapter, the control: what fails with it too is not a fault of kvring. It
    knows neither a capacity nor kvring's ``options``.
    """
    modules = {
        "plugin": ("kvring.lmcache", "KvringL2Adapter"),
        "native_plugin": ("kvring", "Connector"),
    }
    if name == "fs_native":
        return {"type": name, "base_path": str(path)}
    if name not in modules:
        raise ValueError(f"unknown L2 adapter {name!r}: choose one of {', '.join(ADAPTER_NAMES)}")
    module_path, class_name = modules[name]
    return {
        "type": name,
        "module_path": module_path,
        "class_name": class_name,
        "adapter_params": {"path": str(path), "capacity": capacity, **options},
    }
