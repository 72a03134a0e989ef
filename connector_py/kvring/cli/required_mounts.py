"""`require_mount` of what `kvring config` prints: no store begins below a missing mount."""

import errno
from pathlib import Path
from typing import Any

import click

from kvring.cli.deployment import is_device
from kvring.cli.failure import WrongArguments
from kvring.mounts import mount_of

__all__ = ["with_required_mounts"]

_ROOT = Path("/")


def with_required_mounts(parameters: dict[str, Any], *, in_container: bool) -> dict[str, Any]:
    """Add the option where directories lie on other file systems than the root's.

    Args:
        parameters: Options of the store; a `require_mount` among them stays as it is.
        in_container: Whether each directory is a volume of a container, and so a mount point there.
    """
    paths = parameters["path"]
    directories = [Path(path) for path in (paths if isinstance(paths, list) else [paths])]
    index_path = parameters.get("index_path", "none")
    if index_path != "none" and not in_container:
        directories.append(Path(index_path))
    # The name of a block device leads to no other disk.
    directories = [one.expanduser() for one in directories if not is_device(one)]
    for one in directories:
        _refuse_circle(one)
    if "require_mount" in parameters:
        return parameters
    if in_container:
        for one in directories:
            if _mount_point(one) == one:
                message = (
                    f"kvring config: {one} is a mount point: a container starts without its drive "
                    f"all the same; name a directory on the drive, such as {one / 'kvring'}"
                )
                click.echo(message, err=True)
    found = directories if in_container else [_mount_point(one) for one in directories]
    mounts = [str(one) for one in dict.fromkeys(found) if one != _ROOT]
    if not mounts:
        return parameters
    return {**parameters, "require_mount": mounts if len(mounts) > 1 else mounts[0]}


def _refuse_circle(directory: Path) -> None:
    try:
        directory.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = f"{directory} leads nowhere: {error.strerror}; name another directory"
            raise WrongArguments(text) from error


def _mount_point(directory: Path) -> Path:
    mount = mount_of(directory)
    return _ROOT if mount is None else mount.mount_point
