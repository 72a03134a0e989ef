"""A place for each cell of the matrix, and a store on it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring._native import StoredChunks, format_device
from tests.python.conftest import MIB, Client, bare_loop_device
from tests.python.matrix.cells import CELLS, RUNNING, Cell, Form
from tests.support.block_devices import (
    DeviceError,
    attach_loop,
    mount,
    mount_tmpfs,
    require,
    temporary_directory,
)
from tests.support.disk_usage import most_disk_bytes

FILE_SYSTEM_BYTES = 1024 * MIB
DEVICE_BYTES = 128 * MIB
CAPACITY_BYTES = 64 * MIB
# What a device is full of before it is formatted, to tell what was written.
FILLER = b"\xa5"
_MAKE_FILE_SYSTEM = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
_IN_MEMORY = Path("/dev/shm")
# By the images of two cells at a time, at most.
_TAKEN_BYTES = 4 << 30


class Store:
    """An empty place of a cell, and the stores that a test opens on it, one after the other."""

    def __init__(self, cell: Cell, path: Path) -> None:
        """Take over a directory that need not be there, or a blank device."""
        self.cell = cell
        self.path = path
        self.is_device = cell.medium == "raw"
        self.is_full = CELLS[cell] is Form.FULL
        self.options: dict[str, Any] = {"engine": cell.engine, "layout": cell.layout}
        self._clients: list[Client] = []

    def open(self, capacity_bytes: int = CAPACITY_BYTES, **options: Any) -> Client:
        """Open the store."""
        connector = kvring.Connector(self.path, capacity_bytes, **(self.options | options))
        client = Client(connector)
        self._clients.append(client)
        stats = connector.stats()
        assert stats["engine"].split()[0] == self.cell.engine
        geometry = stats["paths"][0]["geometry"]
        assert not self.is_device or geometry["logical_block_bytes"] == self.cell.block_bytes
        return client

    def close_all(self) -> None:
        """Close what is still open; whatever was, must have been sound."""
        try:
            for client in self._clients:
                with suppress(kvring.ClosedError):
                    client.assert_sound()
        finally:
            for client in self._clients:
                client.connector.close()
            self._clients.clear()

    def places(self) -> dict[str, tuple[Path, int]]:
        """Tell the file, or device, of each chunk, and where in it the chunk starts."""
        return {
            one["key"]: (self.path / one["file"], one["offset_bytes"])
            for one in StoredChunks(self.path)
        }

    def index(self) -> tuple[Path, int]:
        """Tell the file, or device, with the index, and where in it the index starts."""
        return (self.path, MIB) if self.is_device else (self.path / "index.kvring", 0)

    @contextmanager
    def most_taken_bytes(self) -> Iterator[list[int]]:
        """Look at the disk; the one number in the list is the most there ever was.

        Of a device that is all that was written to, whenever.
        """
        if not self.is_device:
            self.path.mkdir(exist_ok=True)
            with most_disk_bytes(self.path) as most:
                yield most
            return
        self.path.write_bytes(FILLER * DEVICE_BYTES)
        assert format_device(self.path, discard=False, agree=lambda _: True)
        most = [0]
        yield most
        most[0] = self._written_bytes()

    def _written_bytes(self) -> int:
        untouched = FILLER * 4096
        with self.path.open("rb") as device:
            blocks = iter(lambda: device.read(4096), b"")
            return sum(block != untouched for block in blocks) * 4096


@pytest.fixture(scope="session", params=RUNNING, ids=str)
def ground(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cell, Path]]:
    """Yield a cell and a directory on its file system; of a bare device, one to make it in."""
    cell: Cell = request.param
    with ExitStack() as stack:
        directory = temporary_directory(stack, _images() or tmp_path_factory.mktemp(str(cell)))
        _require_engine(cell.engine, directory / "probe")
        yield cell, _make_ground(stack, cell, directory)


def _images() -> Path | None:
    """Return where images are in memory, if loop devices can have direct I/O there (Linux 6.6).

    A disk that other work keeps busy may answer nothing for 4 s, and a store takes nothing then.
    """
    if not _IN_MEMORY.is_dir() or shutil.disk_usage(_IN_MEMORY).free < _TAKEN_BYTES:
        return None
    try:
        os.close(os.open(_IN_MEMORY, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return None
    return _IN_MEMORY


def _require_engine(engine: str, directory: Path) -> None:
    try:
        kvring.Connector(directory, 16 * MIB, engine=engine).close()
    except kvring.EngineError as error:
        raise DeviceError(str(error)) from error


def _make_ground(stack: ExitStack, cell: Cell, directory: Path) -> Path:
    if cell.medium == "raw":
        return directory
    if cell.medium == "tmpfs":
        if os.geteuid() == 0:
            require("mount", "umount")
            return mount_tmpfs(stack, FILE_SYSTEM_BYTES, temporary_directory(stack, directory))
        return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_IN_MEMORY)))
    make = _MAKE_FILE_SYSTEM[cell.medium]
    require("losetup", make[0], "mount", "umount")
    options = ("--sector-size", str(cell.block_bytes))
    image = directory / "file-system.image"
    block = attach_loop(stack, image, FILE_SYSTEM_BYTES, *options, is_sparse=True)
    return mount(stack, make, block, temporary_directory(stack, directory))


def _blank(drive: Path) -> Path:
    """Erase a whole drive that the environment names: a real one in place of a loop device."""
    with drive.open("r+b", buffering=0) as device:
        assert device.seek(0, os.SEEK_END) == DEVICE_BYTES, f"{drive} has another size"
        device.seek(0)
        for _ in range(DEVICE_BYTES // MIB):
            device.write(bytes(MIB))
        os.fsync(device.fileno())
    return drive


@pytest.fixture
def store(ground: tuple[Cell, Path]) -> Iterator[Store]:
    """Yield an empty place of the cell."""
    cell, directory = ground
    with ExitStack() as stack:
        if cell.medium == "raw":
            assert cell.block_bytes is not None
            if drive := os.environ.get("KVRING_TEST_DRIVE"):
                place = Store(cell, _blank(Path(drive)))
            else:
                device = bare_loop_device(directory, DEVICE_BYTES, cell.block_bytes)
                place = Store(cell, stack.enter_context(device).path)
        else:
            place = Store(cell, directory / "store")
            stack.callback(shutil.rmtree, place.path, ignore_errors=True)
        stack.callback(place.close_all)
        yield place


# Before tests are selected by their marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs root: all but tmpfs."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        cell = callspec and callspec.params.get("ground")
        if isinstance(cell, Cell) and cell.medium != "tmpfs":
            item.add_marker("root")
