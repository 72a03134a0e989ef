"""`require_mount`: a store does not begin on the disk below a mount point."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli import main
from kvring.cli.required_mounts import with_required_mounts
from kvring.engine_store import options_of
from tests.python.conftest import KIB, MIB, Client, bare_loop_device, make_key, pattern
from tests.support.block_devices import DeviceError, attach_loop, run

CHUNK_BYTES = 64 * KIB
CHUNKS = {make_key(number): pattern(CHUNK_BYTES, number) for number in range(60)}


class Drive:
    """A file system on a loop device, mounted and unmounted at one place."""

    def __init__(self, stack: ExitStack, directory: Path, name: str) -> None:
        """Make it, until the stack ends, and mount it."""
        self.block = attach_loop(stack, directory / f"{name}.image", 96 * MIB, is_sparse=True)
        run("mkfs.ext4", "-q", "-F", str(self.block))
        self.mount_point = directory / name
        self.mount_point.mkdir()
        self.store = self.mount_point / "store"
        stack.callback(self._clean_up)
        self.mount()

    def mount(self) -> None:
        """Mount it."""
        run("mount", str(self.block), str(self.mount_point))

    def unmount(self) -> None:
        """Unmount it: what is below is the disk of its directory."""
        run("umount", str(self.mount_point))

    def _clean_up(self) -> None:
        with suppress(DeviceError):
            self.unmount()


@pytest.fixture
def add_drive(tmp_path: Path) -> Iterator[Callable[[str], Drive]]:
    """Make drives, which are gone at the end."""
    with ExitStack() as stack:
        yield lambda name: Drive(stack, tmp_path, name)


def opened(path: Path | list[str], mounts: Path | list[Path], **options: Any) -> kvring.Connector:
    """Open a store that requires mounts."""
    required = [str(one) for one in (mounts if isinstance(mounts, list) else [mounts])]
    return kvring.Connector(path, "32MiB", min_free=0, require_mount=required, **options)


def store_and_close(connector: kvring.Connector) -> None:
    with connector:
        Client(connector).store(CHUNKS)


def held(connector: kvring.Connector) -> int:
    """Count what an open found; it must be right."""
    with connector:
        found = [Client(connector).load(key, CHUNK_BYTES) for key in CHUNKS]
    pairs = zip(found, CHUNKS.values(), strict=True)
    assert all(content in (None, expected) for content, expected in pairs)
    return sum(content is not None for content in found)


@pytest.mark.root
def test_a_store_does_not_begin_where_its_drive_is_missing(
    add_drive: Callable[[str], Drive],
) -> None:
    drive = add_drive("nvme")
    store_and_close(opened(drive.store, drive.mount_point))
    drive.unmount()
    with pytest.raises(kvring.ConfigError) as refused:
        opened(drive.store, drive.mount_point)
    said = str(refused.value)
    assert f"nothing is mounted at {drive.mount_point} (require_mount), so it would" in said
    assert "so it would lie on /" in said
    assert "mount its drive there, or leave require_mount out" in said
    assert list(drive.mount_point.iterdir()) == [], "nothing is made"
    # Whoever wants it there leaves the option out; what is hidden below stays hidden.
    kvring.Connector(drive.store, "32MiB", min_free=0).close()
    with pytest.raises(kvring.ConfigError, match="nothing is mounted at"):
        opened(drive.store, drive.mount_point)
    drive.mount()
    assert held(opened(drive.store, drive.mount_point)) == len(CHUNKS)


@pytest.mark.root
def test_of_several_drives_one_that_is_missing_is_left_out(
    add_drive: Callable[[str], Drive], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = add_drive("nvme0"), add_drive("nvme1")
    paths = [str(drive.store) for drive in (first, second)]
    mounts = [first.mount_point, second.mount_point]
    second.unmount()
    # No path knows of the other one yet, so that it may be a wrong name.
    with pytest.raises(kvring.ConfigError, match=f"nothing is mounted at {second.mount_point}"):
        opened(paths, mounts)
    assert [path for drive in (first, second) for path in drive.mount_point.glob("store")] == []
    second.mount()
    store_and_close(opened(paths, mounts))
    second.unmount()
    with opened(paths, mounts) as connector:
        stats = connector.stats()["paths"]
        assert [path["in_use"] for path in stats] == [True, False]
        assert f"nothing is mounted at {second.mount_point}" in stats[1]["reason"]
    assert f"{second.store} is left out" in caplog.text
    assert list(second.mount_point.iterdir()) == []
    first.unmount()
    with pytest.raises(kvring.ConfigError, match="nothing is mounted at"):
        opened(paths, mounts)
    first.mount()
    second.mount()
    with opened(paths, mounts) as connector:
        assert [path["in_use"] for path in connector.stats()["paths"]] == [True, True]


@pytest.mark.root
def test_a_bind_mount_and_a_link_to_a_mount_count(
    add_drive: Callable[[str], Drive], tmp_path: Path
) -> None:
    """A volume of a container is a bind mount."""
    drive = add_drive("nvme")
    (source := drive.mount_point / "of-container").mkdir()
    (volume := tmp_path / "volume of a container").mkdir()
    run("mount", "--bind", str(source), str(volume))
    try:
        store_and_close(opened(volume, volume))
    finally:
        run("umount", str(volume))
    with pytest.raises(kvring.ConfigError, match=f"at {volume} "):
        opened(volume, volume)
    (link := tmp_path / "link").symlink_to(drive.mount_point)
    assert held(opened(link / "of-container", drive.mount_point)) == len(CHUNKS)
    assert held(opened(source, link)) == len(CHUNKS)
    drive.unmount()
    with pytest.raises(kvring.ConfigError, match="nothing is mounted at"):
        opened(link / "of-container", drive.mount_point)


@pytest.mark.root
def test_the_index_of_a_device_may_need_a_mount(
    add_drive: Callable[[str], Drive], tmp_path: Path
) -> None:
    drive = add_drive("nvme")
    with bare_loop_device(tmp_path, 96 * MIB) as device:
        options = {"index_path": drive.mount_point / "index"}
        store_and_close(opened(device.path, drive.mount_point, **options))
        drive.unmount()
        with pytest.raises(kvring.ConfigError, match=f"nothing is mounted at {drive.mount_point}"):
            opened(device.path, drive.mount_point, **options)
        drive.mount()
        assert held(opened(device.path, drive.mount_point, **options)) == len(CHUNKS)


def test_a_required_mount_has_something_of_the_store(store_directory: Path) -> None:
    with pytest.raises(kvring.ConfigError) as refused:
        opened(store_directory, [Path("/proc"), Path("/")])
    assert "'require_mount' = '/proc' is not valid: neither a path nor" in str(refused.value)
    assert not store_directory.exists()
    # The root is mounted wherever there is a process.
    opened(store_directory, Path("/")).close()


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """Return the options in the JSON that `kvring config` prints."""
    capsys.readouterr()
    assert main(["config", *map(str, arguments), "--json"]) == 0
    parameters: dict[str, Any] = json.loads(capsys.readouterr().out)["adapter_params"]
    return parameters


@pytest.mark.root
def test_config_requires_the_mount_of_the_path(
    add_drive: Callable[[str], Drive], capsys: pytest.CaptureFixture[str]
) -> None:
    drive, other = add_drive("nvme"), add_drive("other")
    parameters = printed(capsys, drive.store, "32MiB")
    assert parameters["require_mount"] == str(drive.mount_point)
    kvring.Connector(**parameters, min_free=0).close()
    mine = printed(capsys, drive.store, "32MiB", "--option", "require_mount=none")
    assert mine["require_mount"] == "none"
    paths = [str(one) for one in (drive.store, other.store, "/root-disk-on-purpose")]
    both = with_required_mounts({"path": paths}, in_container=False)
    assert both["require_mount"] == [str(drive.mount_point), str(other.mount_point)]
    # The file system of /dev is none that a device lies on.
    assert "require_mount" not in printed(capsys, drive.block, "all")
    index = f"index_path={other.mount_point}/index"
    on_device = printed(capsys, drive.block, "all", "--option", index)
    assert on_device["require_mount"] == str(other.mount_point)


def test_ranks_with_a_drive_each_require_its_mount() -> None:
    options = {"path": ["/mnt/nvme{rank}/kv"], "require_mount": "/mnt/nvme{rank}"}
    own = options_of(options, "rank", 3)
    assert own == {"path": ["/mnt/nvme3/kv"], "require_mount": "/mnt/nvme3"}


@pytest.mark.parametrize("form", ["--docker", "--kubernetes"])
def test_in_a_container_the_path_is_the_mount_point(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Where the volume is forgotten, the store would lie in the layer of the container."""
    assert main(["config", "/mnt/nvme/kvring", "500GiB", form]) == 0
    text = capsys.readouterr().out.replace('\\"', '"')
    assert '"require_mount": "/mnt/nvme/kvring"' in text


def test_config_requires_no_mount_on_the_root_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert "require_mount" not in printed(capsys, "/no-mount/kvring", "1GiB")
