"""A virtual machine: its root file system, and a run of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tools.tool import REPOSITORY

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What the command line of kvring imports, beside Python's own.
_DISTRIBUTIONS = (
    *("click", "rich", "pygments", "markdown-it-py", "mdurl", "prometheus-client"),
    "typing-extensions",
)
_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "test", "idlelib", "tkinter", "ensurepip", "__pycache__", "config-*")
)
_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev 2>/dev/null
/bin/busybox mount -t tmpfs none /tmp
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/tmp PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=/lib PYTHONHOME=/python PYTHONPATH=/site COLUMNS=120
/python/bin/python3 /guest.py
echo "guest ended with $?"
/bin/busybox poweroff -f
"""


def make_root(packages: Path, guest: Path, image: Path) -> None:
    """Make an ext4 image that boots into a program of Python, with kvring and nvme beside it.

    Args:
        packages: What `unpack` returned.
        guest: The program.
        image: The file that the image is to be; it is overwritten.

    Raises:
        subprocess.CalledProcessError: It cannot be made.
    """
    root = image.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    for part in ("bin", "sbin", "lib", "lib64", "proc", "sys", "dev", "tmp", "run", "python/bin"):
        (root / part).mkdir(parents=True)
    _copy_python(root)
    shutil.copy(packages / "bin" / "busybox", root / "bin" / "busybox")
    shutil.copy(packages / "usr" / "sbin" / "nvme", root / "sbin" / "nvme")
    shutil.copy(guest, root / "guest.py")
    programs = [root / "sbin" / "nvme", root / "python" / "bin" / "python3"]
    modules = [*(root / "python").rglob("*.so"), *(root / "site").rglob("*.so")]
    for library in _libraries([*programs, *modules], packages):
        place = root / ("lib64" if library.name.startswith("ld-linux") else "lib")
        shutil.copy(library, place / library.name)
    (root / "init").write_text(_INIT, encoding="ascii")
    (root / "init").chmod(0o755)
    image.unlink(missing_ok=True)
    command = ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(root), str(image), "400M"]
    subprocess.run(command, check=True)
    shutil.rmtree(root)


def _copy_python(root: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(Path(sys.executable).resolve(), root / "python" / "bin" / "python3")
    shutil.copytree(
        Path(sys.base_prefix, "lib", version), root / "python" / "lib" / version, ignore=_LEFT_OUT
    )
    package = REPOSITORY / "connector_py" / "kvring"
    shutil.copytree(package, root / "site" / "kvring", ignore=_LEFT_OUT)
    for name in _DISTRIBUTIONS:
        for file in metadata.files(name) or ():
            if file.suffix != ".pyc" and ".." not in file.parts:
                place = root / "site" / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), place)


def _libraries(programs: Sequence[Path], packages: Path) -> list[Path]:
    """Return what the programs are linked with."""
    folders = [packages / _LIBRARIES, packages / "lib" / "x86_64-linux-gnu"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    listed = subprocess.run(
        ["ldd", *map(str, programs)], env=environment, capture_output=True, text=True, check=False
    )
    words = (word for line in listed.stdout.splitlines() for word in line.split())
    found = {Path(word).name: Path(word) for word in words if word.startswith("/")}
    return [path for path in found.values() if path.suffix != ":" and path.is_file()]


def boot(
    packages: Path, image: Path, drives: Sequence[str], deadline_s: float, memory: str = "1500M"
) -> str:
    """Run the image until it powers off; return what it printed.

    Args:
        packages: What `unpack` returned, with the kernel.
        image: What `make_root` made.
        drives: Further arguments of QEMU.
        deadline_s: It is ended after this time.
        memory: Of the machine.

    Raises:
        subprocess.TimeoutExpired: It did not power off in time.
    """
    (kernel,) = (packages / "boot").glob("vmlinuz-*")
    folders = [packages / _LIBRARIES, packages / "lib" / "x86_64-linux-gnu"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    command = [
        str(packages / "usr" / "bin" / "qemu-system-x86_64"),
        *("-L", str(packages / "usr/share/qemu"), "-L", str(packages / "usr/share/seabios")),
        *("-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", memory),
        *("-nodefaults", "-no-reboot", "-nographic", "-serial", "stdio", "-kernel", str(kernel)),
        *("-append", "root=/dev/nvme0n1 rw init=/init console=ttyS0 quiet no_timer_check panic=-1"),
        *("-drive", f"file={image},format=raw,if=none,id=root"),
        *("-device", "nvme,drive=root,serial=root,addr=4"),
        *drives,
    ]
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=deadline_s,
        check=False,
    )
    return (done.stdout + done.stderr).decode(errors="replace")
