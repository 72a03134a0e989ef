"""Virtual machines that are killed under load, and others that look at what is left."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support.write_log import WriteLog
from tools.vm.machine import boot, start
from tools.vm.packages import Kernel

# Why a store is not usable or was made anew, and by key the version of its chunk.
DriveContent = tuple[str | None, list[int | str | None]]

# Slots of PCI that a machine has left.
_FIRST_SLOT = 5
_MOST_DRIVES = 24
# How often the length of the log is looked at while the guest says nothing.
_SAMPLE_S = 0.002
# What QEMU has under way is in the log when it ends.
_END_S = 60.0


class GuestLine(NamedTuple):
    """A line of the guest: a batch before and after it, or what time it is."""

    verb: str
    version: int
    numbers: list[int]
    at_ms: int


@dataclass
class Recording:
    """What a machine did until it was killed.

    Attributes:
        log: Its drive's writes and flushes.
        size_bytes: The size of this drive.
        told: What the guest said, in order.
        samples: Moments at which nothing that the guest had said was unread, since its store was
            open: the length of the log, and how many lines there were. The last one is the kill.
    """

    log: WriteLog
    size_bytes: int
    told: list[GuestLine] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)

    def loaded_s(self) -> float:
        """Return for how long the guest has been under load, by its own clock."""
        times = [line.at_ms for line in self.told]
        return (max(times) - times[0]) / 1000 if times else 0.0


@dataclass(frozen=True)
class Machines:
    """What all of them boot from.

    Attributes:
        programs: What `fetch_programs` returned.
        kernel: What `fetch_kernel` returned.
        root: What `make_root` made.
        deadline_s: A machine that takes longer is broken.
        kept: A folder for drives with a fault.
    """

    programs: Path
    kernel: Kernel
    root: Path
    deadline_s: float
    kept: Path | None = None

    def record(self, work: Path, case: Sequence[str], size_bytes: int, load_s: float) -> Recording:
        """Boot with a blank drive, and kill the machine after so many seconds under load.

        Raises:
            RuntimeError: The machine ended before, or took too long.
        """
        image, log = work / "drive", WriteLog(work / "log")
        log.path.touch()
        with image.open("wb") as file:
            file.truncate(size_bytes)
        recording = Recording(log, size_bytes)
        with tempfile.TemporaryDirectory() as directory, _listening(directory) as listener:
            node = "driver=file,cache.no-flush=on"
            process = start(
                self.programs,
                self.kernel,
                self.root,
                [
                    *("-chardev", f"socket,id=told,path={directory}/told"),
                    *("-serial", "chardev:told"),
                    *("-blockdev", f"{node},node-name=image,filename={image},discard=unmap"),
                    *("-blockdev", f"{node},node-name=log,filename={log.path}"),
                    *("-blockdev", "driver=blklogwrites,node-name=top,file=image,log=log"),
                    *("-device", "nvme,drive=top,serial=load,addr=8"),
                ],
                arguments=case,
            )
            try:
                _listen(listener, recording, load_s, self.deadline_s)
                process.terminate()
                process.communicate(timeout=_END_S)
            except (OSError, RuntimeError) as error:
                process.kill()
                output, _ = process.communicate()
                raise RuntimeError(
                    f"{' '.join(case)}: {error}\n{output.decode(errors='replace')}"
                ) from None
            finally:
                process.kill()
                process.wait()
        return recording

    def survey(self, case: Sequence[str], images: Sequence[Path]) -> list[DriveContent]:
        """Boot with these drives; return what is told of each: why it is unusable, and versions.

        Raises:
            RuntimeError: The machine says nothing of one.
        """
        found: list[DriveContent] = []
        for first in range(0, len(images), _MOST_DRIVES):
            found += self._survey(case, images[first : first + _MOST_DRIVES])
        return found

    def _survey(self, case: Sequence[str], images: Sequence[Path]) -> list[DriveContent]:
        report = self.root.with_name("survey")
        report.write_bytes(b"")
        options = []
        for at, image in enumerate(images):
            file = f"file={image},format=raw,if=none,cache=unsafe,discard=unmap"
            options += ["-drive", f"{file},id=drive{at}"]
            options += ["-device", f"nvme,drive=drive{at},serial={at},addr={_FIRST_SLOT + at:#x}"]
        try:
            printed = boot(
                self.programs,
                self.kernel,
                self.root,
                options,
                self.deadline_s,
                arguments=case,
                report=report,
            )
        except subprocess.TimeoutExpired as error:
            printed = str(error)
        told: dict[str, DriveContent] = {}
        for line in report.read_text(encoding="ascii").splitlines():
            serial, failure, found = json.loads(line)
            told[serial] = (failure, found)
        if len(told) != len(images):
            raise RuntimeError(f"{len(told)} of {len(images)} drives are told of\n{printed}")
        return [told[str(at)] for at in range(len(images))]


@contextmanager
def _listening(directory: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/told")
        listener.listen(1)
        listener.settimeout(30)
        yield listener


def _listen(
    listener: socket.socket, recording: Recording, load_s: float, deadline_s: float
) -> None:
    """Take down what is said, and the length of the log meanwhile, until the load was so long."""
    deadline = time.monotonic() + deadline_s
    connection, _ = listener.accept()
    rest = b""
    with connection:
        while True:
            # Before it is known that there is no more to read: all of this was written before
            # whatever the guest says next.
            log_bytes = recording.log.length_bytes()
            if not rest and not select.select([connection], [], [], 0)[0]:
                if recording.told:
                    recording.samples.append((log_bytes, len(recording.told)))
                    if recording.loaded_s() >= load_s:
                        return
                select.select([connection], [], [], _SAMPLE_S)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"it took longer than {deadline_s:.0f} s")
                continue
            received = connection.recv(1 << 16)
            if not received:
                raise RuntimeError("the machine ended by itself")
            *lines, rest = (rest + received).split(b"\n")
            recording.told += [GuestLine(*json.loads(line)) for line in lines]
