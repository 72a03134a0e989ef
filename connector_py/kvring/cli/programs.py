"""What each program is started with to use a store: LMCache's server, vLLM, SGLang."""

import json
from typing import Any, NamedTuple

__all__ = ["LMCACHE_ADAPTERS", "Start", "lmcache", "sglang", "vllm"]

LMCACHE_ADAPTERS = {
    "plugin": ("kvring.lmcache", "KvringL2Adapter"),
    "native_plugin": ("kvring", "Connector"),
}

# From what LMCache 0.5.6 says where vLLM cannot reach its server; host and port are the defaults.
# By default a step of vLLM waits 600 s for a server that is gone, and then fails.
_LMCACHE_TRANSFER = {
    "kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "lmcache.mp.host": "tcp://localhost",
        "lmcache.mp.port": 5555,
        "lmcache.mp.mq_timeout": 30,
    },
}


class Start(NamedTuple):
    """The JSON that has the store, and the commands that have the JSON, the first one's first."""

    spec: dict[str, Any]
    commands: list[list[str]]


def lmcache(
    parameters: dict[str, Any],
    memory_gb: float,
    kind: str,
    *,
    huge_pages: bool,
    shared: dict[str, Any] | None = None,
) -> Start:
    """Start LMCache's server, and vLLM with that.

    Args:
        parameters: Options of the store.
        memory_gb: Size of L1.
        kind: LMCache's type of adapter.
        huge_pages: Whether L1 is made of them.
        shared: LMCache's adapter for a tier that nodes share, behind the store.
    """
    module_path, class_name = LMCACHE_ADAPTERS[kind]
    if shared is not None:
        class_name, parameters = "KvringSharedL2Adapter", {**parameters, "shared_tier": shared}
    spec = {
        "type": kind,
        "module_path": module_path,
        "class_name": class_name,
        "adapter_params": parameters,
    }
    server = ["lmcache", "server", "--l1-size-gb", f"{memory_gb:g}", "--eviction-policy", "LRU"]
    if huge_pages:
        server += ["--l1-use-hugepages", "--no-l1-use-lazy", "--shm-name", ""]
    server += ["--l2-adapter", json.dumps(spec)]
    return Start(spec, [server, _vllm_serve(_LMCACHE_TRANSFER)])


def vllm(parameters: dict[str, Any], memory_gb: float) -> Start:
    """Start vLLM with a store as a tier of its own offloading; `memory_gb` is its primary tier."""
    tier = {"type": "KvringTier", "module_path": "kvring.vllm", **parameters}
    spec = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": round(memory_gb * (1 << 30)),
            "secondary_tiers": [tier],
        },
    }
    return Start(spec, [_vllm_serve(spec)])


def sglang(parameters: dict[str, Any], memory_gb: float) -> Start:
    """Start SGLang with a store below its host memory, which has `memory_gb` on each rank."""
    spec = {
        "backend_name": "kvring",
        "module_path": "kvring.sglang",
        "class_name": "HiCacheKvring",
        "interface_v1": 1,
        **parameters,
    }
    command = ["python", "-m", "sglang.launch_server", "--model-path", "MODEL"]
    command += ["--page-size", "64", "--enable-hierarchical-cache"]
    command += ["--hicache-size", f"{memory_gb:g}"]
    command += ["--hicache-mem-layout", "page_first", "--hicache-storage-backend", "dynamic"]
    command += ["--hicache-storage-backend-extra-config", json.dumps(spec)]
    return Start(spec, [command])


def _vllm_serve(transfer: dict[str, Any]) -> list[str]:
    return ["vllm", "serve", "MODEL", "--kv-transfer-config", json.dumps(transfer)]
