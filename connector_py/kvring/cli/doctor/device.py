"""A block device without a store that can be read: what an open would make of it."""

from collections.abc import Iterator
from pathlib import Path

from kvring import InUseError, KvRingError
from kvring._native import format_device
from kvring.cli.doctor.findings import Finding, Level

__all__ = ["look_at_content", "reason_of"]

_CHECK = "store"
_REFUSALS = "docs/how-to/devices.md#what-is-refused"


def reason_of(error: Exception) -> str:
    """Return what an error says, without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def look_at_content(device: Path, why: Exception) -> Iterator[Finding]:
    """Look at what the device holds, and whether an open formats it or refuses it.

    It is claimed for that moment, as a mount does. Nothing is written.

    Args:
        device: A block device.
        why: Why no store can be read there.
    """
    contents: list[str] = []

    def refuse(content: str) -> bool:
        contents.append(content)
        return False

    try:
        format_device(device, False, refuse)
    except InUseError as error:
        yield Finding(Level.ERROR, _CHECK, str(error), "release it there, or name another device")
        return
    except PermissionError as error:
        remedy = "run as a user who may open it; a container needs --device"
        yield Finding(Level.ERROR, _CHECK, reason_of(error), remedy)
        return
    except (KvRingError, OSError) as error:
        if type(error) is KvRingError:
            # It holds a store: whoever knows its options may read more of it.
            remedy = "docs/reference/errors.md#why-an-open-fails"
            yield Finding(Level.WARNING, _CHECK, reason_of(why), remedy)
            return
        yield Finding(Level.ERROR, _CHECK, reason_of(error), _REFUSALS)
        return
    (content,) = contents
    if content.startswith("nothing"):
        yield Finding(Level.OK, _CHECK, "the device is blank; the first open formats it")
    else:
        what = f"the device holds {content}: an open refuses it, and writes nothing"
        remedy = f"use another device; to erase this one: kvring format {device}"
        yield Finding(Level.ERROR, _CHECK, what, remedy)
