"""What differs between the versions of LMCache that kvring runs under: 0.5.6 and 0.5.7rc2."""

from typing import Any

from lmcache.v1.distributed import api


def local_storage_tags() -> Any:
    """Return the tags of memory on a disk of this host.

    Returns:
        LMCache's MemoryTags; None in 0.5.6, which has none.
    """
    tags = getattr(api, "MemoryTags", None)
    if tags is None:
        return None
    return tags(api.MemorySegment.STORAGE, api.MemoryResidency.LOCAL)
