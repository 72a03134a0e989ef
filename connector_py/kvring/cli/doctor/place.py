"""The path of a store: its file system, its owner, and a store that is made there to see."""

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvring import ConfigError, Connector, EngineError, FormatError, KvRingError
from kvring._native import StoredChunks
from kvring.cli.doctor.device import look_at_content, reason_of
from kvring.cli.doctor.findings import Finding, Level
from kvring.cli.doctor.space import TRIAL_BYTES, has_room_for_trial, look_at_space
from kvring.cli.health import HealthLook
from kvring.cli.places import PlaceError, own_directory
from kvring.cli.users import as_user
from kvring.mounts import Mount, mount_of
from kvring.owner_requests import ask

__all__ = ["existing_part", "file_system_of", "look_at_disk", "look_at_path", "try_a_store"]

_TRIAL_KEY = "kvring-doctor@00000000@0@00"

_GOOD = ("ext4", "xfs", "none")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.sshfs", "9p", "virtiofs", "lustre")


def existing_part(path: Path) -> Path:
    """Return the path, or the nearest directory above it that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system_of(there: Path) -> str:
    """Return the kind of file system that a directory is on."""
    mount = mount_of(there)
    return "the file system" if mount is None else mount.file_system


def look_at_disk(path: Path) -> Iterator[Finding]:
    """Look whether the disk below a path answers; find nothing if it does."""
    health = HealthLook(path, None).result()
    if health.state not in ("dead disk", "stuck disk", "frozen"):
        return
    yield Finding(Level.ERROR, "disk", f"{health.state}: {health.why}", health.remedy)
    if health.owner:
        remedy = "its loads miss until the disk works: repair it, or configure another path"
        if health.state == "frozen":
            remedy = "it loads, and stores nothing until the file system takes changes again"
        yield Finding(Level.WARNING, "store", health.owner, remedy)
    else:
        yield Finding(Level.NOTE, "store", "no owner answers for it")


def look_at_path(path: Path, capacity_bytes: int | None) -> Iterator[Finding]:
    """Look at what holds a path, and at who has it."""
    there = existing_part(path)
    try:
        facts: dict[str, Any] | Exception = StoredChunks(path).facts()
    except ConfigError as error:
        remedy = "name a directory or a block device"
        yield Finding(Level.ERROR, "path", str(error), remedy)
        return
    except (KvRingError, OSError) as error:
        facts = error
    is_open = isinstance(facts, dict) and facts["holder"] is not None
    owner = _ask_owner(path) if is_open else []
    if there.is_block_device():
        yield Finding(Level.OK, "path", f"{path} is a block device")
    elif not there.is_dir():
        remedy = "name a directory or a block device"
        yield Finding(Level.ERROR, "path", f"{there} is neither", remedy)
        return
    else:
        yield from _look_at_file_system(there)
        yield from look_at_space(path, there, capacity_bytes, _own_part(owner, path))
    yield from _look_at_rights(path, there)
    if isinstance(facts, Exception):
        yield from _look_at_refusal(path, there, facts)
    else:
        yield from _look_at_owner(facts)
    yield from _look_at_state(owner)


def _look_at_file_system(there: Path) -> Iterator[Finding]:
    mount = mount_of(there)
    if mount is None:
        yield Finding(Level.NOTE, "file system", "what is mounted there is not told")
        return
    kind = mount.file_system
    what = f"{kind} on {mount.mount_point}"
    if "ro" in mount.options:
        remedy = f"mount -o remount,rw {mount.mount_point}"
        yield Finding(Level.ERROR, "file system", f"{what} is mounted read-only", remedy)
    elif _is_in_memory(mount):
        remedy = "name a directory on a drive: LMCache's L1 is memory already"
        yield Finding(
            Level.ERROR,
            "file system",
            f"{what} is in memory: no restart of the machine leaves anything of it",
            remedy,
        )
    elif kind in _REMOTE:
        remedy = "a local drive; what many nodes share belongs into another L2 adapter"
        yield Finding(Level.WARNING, "file system", f"{what} is not local", remedy)
    elif kind == "overlay":
        remedy = "mount a directory of the host: --mount of Docker, hostPath of Kubernetes"
        what += " is not ext4 or XFS: a container's layer goes with the container"
        yield Finding(Level.WARNING, "file system", what, remedy)
    elif kind not in _GOOD:
        remedy = "ext4 or XFS, or a bare device"
        yield Finding(Level.WARNING, "file system", f"{what} is not ext4 or XFS", remedy)
    else:
        yield Finding(Level.OK, "file system", what)
    if "discard" in mount.options:
        remedy = "mount without `discard`, and run fstrim now and then"
        what = "discards at once what is removed, which holds others up on some drives"
        yield Finding(Level.NOTE, "file system", what, remedy)


def _is_in_memory(mount: Mount) -> bool:
    """Tell it of a file system, and of an overlay by what its writes go to, if that is visible."""
    if mount.file_system != "overlay":
        return mount.file_system in _IN_MEMORY
    upper = [one.partition("=")[2] for one in mount.options if one.startswith("upperdir=")]
    below = mount_of(Path(upper[0])) if upper and Path(upper[0]).exists() else None
    return below is not None and below.file_system in _IN_MEMORY


def _look_at_rights(path: Path, there: Path) -> Iterator[Finding]:
    needed = os.R_OK | os.W_OK | (0 if there.is_block_device() else os.X_OK)
    if not os.access(there, needed, effective_ids=True):
        owner = there.stat().st_uid
        what = f"user {os.geteuid()} may not write to {there}, which is user {owner}'s"
        remedy = f"run as the user of the server, {as_user(owner)}; or chown it to that one"
        yield Finding(Level.ERROR, "rights", what, remedy)
        return
    others = [
        file
        for file in (path, *(sorted(path.glob("*.kvring")) if path.is_dir() else []))
        if file.exists() and os.geteuid() != 0 and file.stat().st_uid != os.geteuid()
    ]
    if others:
        what = f"{others[0]} belongs to user {others[0].stat().st_uid}"
        remedy = "one user has a store: run as that one, or chown all of it"
        yield Finding(Level.WARNING, "rights", what, remedy)
    else:
        yield Finding(Level.OK, "rights", "this user may read and write there")


def _look_at_refusal(path: Path, there: Path, why: Exception) -> Iterator[Finding]:
    """Look at a path where no store can be read."""
    remedy = "docs/reference/errors.md#why-an-open-fails"
    if there.is_block_device():
        yield from look_at_content(path, why)
    elif isinstance(why, FileNotFoundError):
        yield Finding(Level.OK, "store", "there is none yet; the first open makes it")
    elif isinstance(why, FormatError | OSError):
        yield Finding(Level.ERROR, "store", reason_of(why), remedy)
    else:
        yield Finding(Level.WARNING, "store", str(why), remedy)


def _look_at_owner(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["holder"] is not None:
        remedy = "well, if that is the server; a second one is refused: give it a path of its own"
        yield Finding(Level.WARNING, "store", f"{facts['holder']} has it open", remedy)
    elif facts["is_closed_in_order"]:
        yield Finding(Level.OK, "store", "there is one, which was closed in order")
    else:
        what = "there is one, which was not closed in order: what it holds is found all the same"
        yield Finding(Level.NOTE, "store", what)


def _ask_owner(path: Path) -> list[dict[str, Any]] | Exception:
    """Return what an owner says of its paths; none if it does not listen."""
    try:
        answer = ask(path, None, {"ask": "stats"})
    except (KvRingError, OSError) as error:
        return error
    return list(answer["stats"]["paths"]) if answer is not None else []


def _own_part(owner: list[dict[str, Any]] | Exception, path: Path) -> dict[str, Any] | None:
    """Return what an owner says of one path: of the only one whatever it calls that."""
    if isinstance(owner, Exception):
        return None
    own = [one for one in owner if len(owner) == 1 or Path(one["path"]).resolve() == path.resolve()]
    return own[0] if own else None


def _look_at_state(owner: list[dict[str, Any]] | Exception) -> Iterator[Finding]:
    if isinstance(owner, Exception):
        yield Finding(Level.NOTE, "store", f"its owner does not tell how it is: {owner}")
        return
    for one in owner:
        if what := one["trouble"] or one["note"]:
            remedy = "docs/reference/errors.md#a-line-in-the-log, docs/how-to/operations.md"
            yield Finding(Level.WARNING, "store", f"{one['path']}: {what}", remedy)


def try_a_store(path: Path) -> Iterator[Finding]:
    """Make a small store below a directory, write to it, read from it, and remove it."""
    there = existing_part(path)
    if not there.is_dir():
        return
    parent = _beside_a_store(there)
    if not has_room_for_trial(parent):
        yield Finding(Level.NOTE, "trial", "left out: there is no room for it beside the store")
        return
    try:
        with own_directory(parent) as directory:
            yield from _try_engine(directory)
    except PlaceError as error:
        yield Finding(Level.ERROR, "trial", str(error), "look at the findings before this one")
    except (KvRingError, OSError) as error:
        yield Finding(Level.ERROR, "trial", f"no store can be made: {error}")


def _beside_a_store(there: Path) -> Path:
    """Return the directory above that of a store, if that is of the same file system."""
    above = there.parent
    has_store = (there / "index.kvring").exists()
    is_same = above.stat().st_dev == there.stat().st_dev and os.access(above, os.W_OK)
    return above if has_store and is_same else there


def _try_engine(directory: Path) -> Iterator[Finding]:
    try:
        yield from _try_options(directory / "io_uring", engine="io_uring")
        return
    except EngineError as error:
        cause, _, remedy = str(error).removeprefix("io_uring is not available: ").partition("; ")
        remedy = remedy.partition("; or let engine")[0]
        what = f"refused: {cause}. Threads take its place, which costs small chunks their speed"
        yield Finding(Level.WARNING, "io_uring", what, remedy)
    yield from _try_options(directory / "posix", engine="posix")


def _try_options(directory: Path, **options: Any) -> Iterator[Finding]:
    # It is gone in a moment: what others are to keep free it may take.
    with Connector(directory, TRIAL_BYTES, min_free=0, **options) as connector:
        stats = connector.stats()
        written = bytes(range(256)) * 256
        loaded = bytearray(len(written))
        _wait(connector, connector.submit_batch_set([_TRIAL_KEY], [memoryview(written)]))
        _wait(connector, connector.submit_batch_get([_TRIAL_KEY], [memoryview(loaded)]))
    if options["engine"] == "io_uring":
        yield Finding(Level.OK, "io_uring", stats["engine"])
    if bytes(loaded) != written:
        remedy = "look at the kernel's log, and at the drive"
        yield Finding(Level.ERROR, "trial", "a chunk did not come back", remedy)
    else:
        yield Finding(Level.OK, "trial", "a small store was made, and its chunk came back")
    geometry = stats["paths"][0]["geometry"]
    if not stats["direct_io"]:
        what = "the file system takes none: transfers go through the page cache"
        yield Finding(Level.WARNING, "O_DIRECT", what, "ext4 or XFS on a drive")
        return
    memory_bytes, offset_bytes = (
        geometry[name] for name in ("memory_alignment_bytes", "offset_alignment_bytes")
    )
    what = f"memory aligned to {memory_bytes} bytes, offsets to {offset_bytes}"
    yield Finding(Level.OK, "O_DIRECT", what)


def _wait(connector: Connector, _future: int) -> None:
    # Not select(): a process may have descriptors above 1023.
    poll = select.poll()
    poll.register(connector.event_fd(), select.POLLIN)
    while not connector.drain_completions():
        poll.poll()
