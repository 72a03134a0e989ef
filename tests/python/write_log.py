"""A block device below which every write and flush is logged."""

from contextlib import ExitStack
from pathlib import Path

from tests.python.faulty_device import export_over_fuse
from tests.support.block_devices import attach_loop_over, temporary_directory
from tests.support.write_log import WriteLog


class LoggedDevice:
    """A blank block device whose writes are logged."""

    def __init__(self, stack: ExitStack, parent: Path, size_bytes: int) -> None:
        """Start the daemon and put a loop device over what it exports, until the stack ends."""
        work = temporary_directory(stack, parent)
        self.size_bytes = size_bytes
        self.log = WriteLog(work / "log")
        self.log.path.touch()
        image = work / "image"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        nodes = [
            {"driver": "file", "node-name": "image", "filename": str(image), "discard": "unmap"},
            {"driver": "file", "node-name": "log", "filename": str(self.log.path)},
            {"driver": "blklogwrites", "node-name": "top", "file": "image", "log": "log"},
        ]
        exported = export_over_fuse(stack, work, size_bytes, nodes).path
        self.path = attach_loop_over(stack, exported)
