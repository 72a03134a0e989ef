"""What the tier makes of its options, and of vLLM's configuration."""

from typing import Any, Final

from vllm.v1.kv_offload.base import Locality
from vllm.v1.kv_offload.file_mapper import FileMapper

from kvring import _native
from kvring.engine_store import digest_of, options_of

__all__ = [
    "WHERE",
    "layout_of",
    "locality_of",
    "options_of_replica",
    "promote_of",
    "set_queue_bytes_of",
]

WHERE: Final = "kv_connector_extra_config, secondary_tiers"


def layout_of(offloading_spec: Any, row_bytes: int) -> str:
    """Return a digest of what decides how the bytes of a row lie.

    It begins with the one by which vLLM's own file tier names its directories. That one has no
    layout of the KV cache, no length of a row, and often no parallel layout, although vLLM puts the
    parts of its workers one after the other.
    """
    config = offloading_spec.config
    mapper = FileMapper.from_offloading_spec(
        root_dir="",
        offloading_spec=offloading_spec,
        blocks_per_file=offloading_spec.blocks_per_chunk,
        parallel_agnostic=True,
    )
    parallel = config.parallel
    ranks = [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    own = {
        "row_bytes": row_bytes,
        "kv_cache_layout": config.kv_cache_layout,
        # In these vLLM's bytes are the same with any ranks, or it tells them apart by itself.
        "ranks": None if config.canonical_layout or config.replicated_layout else ranks,
    }
    return f"{mapper.base_path.rpartition('_')[2]}-{digest_of(own)}"


def locality_of(name: str | None) -> Locality | None:
    """Return a locality of vLLM's."""
    try:
        return None if name is None else Locality(name)
    except ValueError as error:
        text = (
            f"{WHERE}: Locality: 'locality' = {name!r} is not valid; it takes 'LOCAL' or 'REMOTE'"
        )
        raise ValueError(text) from error


def options_of_replica(where: str, options: dict[str, Any], parallel: Any) -> dict[str, Any]:
    """Return the options of a data-parallel replica: each is a process with its own store."""
    paths = options.get("path")
    # What is no path the store refuses.
    named = paths if isinstance(paths, list) else [paths]
    common = [path for path in named if isinstance(path, str) and "{dp_rank}" not in path]
    replica = parallel.data_parallel_index
    # Of a dense model each replica is told that it is the only one, and keeps its number.
    if common and (parallel.data_parallel_size > 1 or replica > 0):
        text = (
            f"{where}: path = {common[0]!r} would be shared by data-parallel replicas (this one is "
            f"number {replica}), and a store has one owner; write {{dp_rank}} where their paths "
            f"are to differ, such as {common[0].rstrip('/')}-{{dp_rank}}"
        )
        raise ValueError(text)
    return options_of(options, "dp_rank", parallel.data_parallel_index)


def promote_of(where: str, promote: object) -> bool:
    """Return the option `promote`."""
    if not isinstance(promote, bool):
        text = f"{where}: 'promote' = {promote!r} is not valid; it takes true or false"
        raise ValueError(text)
    return promote


def set_queue_bytes_of(options: dict[str, Any]) -> int:
    """Return the option `set_queue_bytes` of a store that has taken it."""
    default = _native.options()["set_queue_bytes"]["default"]
    size: Any = options.get("set_queue_bytes", default)
    return _native.size_bytes(size) if isinstance(size, str) else int(size)
