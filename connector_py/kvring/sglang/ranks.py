"""Which store a rank has: its number and its paths."""

from pathlib import Path
from typing import Any, Final

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from kvring.engine_store import options_of
from kvring.ranks import Reader

__all__ = ["WHERE", "options_of_rank", "reader_of"]

# Where SGLang's configuration has the options, for messages.
WHERE: Final = "--hicache-storage-backend-extra-config"


def options_of_rank(
    config: HiCacheStorageConfig, options: dict[str, Any], tp_rank: int
) -> dict[str, Any]:
    """Return the options of the store of a rank in this one's tensor-parallel group.

    Raises:
        ValueError: A path is a block device, and all ranks would share it.
    """
    paths = options.get("path")
    named = [_below(path) for path in (paths if isinstance(paths, list) else [paths])]
    ranks = config.tp_size * config.pp_size * config.attn_cp_size
    for path in named:
        has_peers = ranks > 1 or config.dp_rank > 0
        if isinstance(path, str) and "{rank}" not in path and has_peers:
            text = (
                f"{WHERE}: path = {path!r} would be shared by all ranks ({ranks} in a group), "
                "and a store has one owner; write {rank} in it, and give each device a name "
                "with its number"
            )
            raise ValueError(text)
    own = dict(options)
    if paths is not None:
        own["path"] = named if isinstance(paths, list) else named[0]
    rank = config.dp_rank * config.pp_size + config.pp_rank
    rank = (rank * config.attn_cp_size + config.attn_cp_rank) * config.tp_size + tp_rank
    return options_of(own, "rank", rank)


def reader_of(options: dict[str, Any]) -> Reader:
    """Read the store with these options, which another rank owns.

    Raises:
        ValueError: There is no path.
    """
    paths, index_path = options.get("path"), options.get("index_path") or "none"
    path = paths[0] if isinstance(paths, list) and paths else paths
    if not isinstance(path, str):
        text = f"{WHERE}: 'path' is needed, such as /mnt/nvme/kvring"
        raise ValueError(text)
    beside = None if index_path == "none" else Path(index_path).expanduser()
    return Reader(Path(path).expanduser(), beside)


def _below(path: Any) -> Any:
    """Give each rank a directory of its own below a path; a device has none."""
    if isinstance(path, str) and "{rank}" not in path and not Path(path).is_block_device():
        return f"{path.rstrip('/')}/rank-{{rank}}"
    return path
