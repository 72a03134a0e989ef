"""A virtual machine: its root file system, and a run of it."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tools.tool import REPOSITORY
from tools.vm.packages import Kernel, library_environment

# What the command line of kvring imports, beside Python's own.
_DISTRIBUTIONS = (
    *("click", "rich", "pygments", "markdown-it-py", "mdurl", "prometheus-client"),
    "typing-extensions",
)
# Programs that kvring or its tests start, with their names in the packages. Busybox has the rest.
_PROGRAMS = {
    **{name: name for name in ("busybox", "nvme", "cp", "losetup", "mount", "umount", "fuser")},
    **{name: name for name in ("blkdiscard", "blkid", "chattr", "mkfs.xfs")},
    "mkfs.ext4": "mke2fs",
    "modprobe": "kmod",
}
# Modules of the cloud kernels; NVMe and ext4 are built in.
_MODULES = (
    *("kernel/fs/xfs", "kernel/drivers/block/loop.*", "kernel/lib", "kernel/crypto"),
    *("kernel/arch/x86/crypto", "modules.*"),
)
_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "test", "idlelib", "tkinter", "ensurepip", "config-*")
)
# Sparse: the tests' own files lie on it too.
_ROOT_BYTES = 8 << 30
# The kernel finds the partition by this number: the order of NVMe drives differs between boots.
_DISK_SIGNATURE = 0x6B767269
_PARTITION_AT_BYTES = 1 << 20
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev 2>/dev/null
/bin/busybox mount -t tmpfs none /tmp
/bin/busybox mount -t tmpfs none /run
/bin/busybox mkdir /dev/shm
/bin/busybox mount -t tmpfs none /dev/shm
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
export LD_LIBRARY_PATH=/lib PYTHONHOME=/python PYTHONPATH=/site COLUMNS=120
ifconfig lo up
/python/bin/python3 /guest.py "$@"
echo "guest ended with $?"
poweroff -f
"""


def make_root(
    programs: Path,
    guest: Path,
    image: Path,
    *,
    kernels: Iterable[Kernel] = (),
    distributions: Sequence[str] = (),
    extra: Mapping[str, Path] | None = None,
) -> None:
    """Make an ext4 image that boots into a program of Python, with kvring and nvme beside it.

    Args:
        programs: What `fetch_programs` returned.
        guest: The program. It is given the `arguments` of `boot`.
        image: The file that the image is to be; it is overwritten.
        kernels: Those whose modules for XFS and loop devices are needed.
        distributions: Further Python packages.
        extra: Files and folders of the host by their place in the image, such as "repository/x".

    Raises:
        subprocess.CalledProcessError: It cannot be made.
        RuntimeError: A program or Python package is missing.
    """
    root = image.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    for part in ("proc", "sys", "dev", "tmp", "run", "mnt", "lib64", "etc", "var/tmp"):
        (root / part).mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n", encoding="ascii")
    for name, program in _PROGRAMS.items():
        _copy(_find(programs, program), root / "bin" / name)
    _copy_python(root, [*_DISTRIBUTIONS, *distributions])
    for name, source in (extra or {}).items():
        _copy(source, root / name)
    _copy(guest, root / "guest.py")
    # To compile a program's imports anew takes half a minute in emulation.
    compile_all = [sys.executable, "-m", "compileall", "-q", "-s", str(root), "-p", "/"]
    subprocess.run([*compile_all, str(root / "site")], check=True)
    for library in _libraries(root, programs):
        place = root / ("lib64" if library.name.startswith("ld-linux") else "lib")
        _copy(library, place / library.name)
    for kernel in kernels:
        _copy_modules(kernel, root, _find(programs, "kmod"), programs)
    (root / "init").write_text(_INIT, encoding="ascii")
    (root / "init").chmod(0o755)
    image.write_bytes(_partition_table())
    options = ("-O", "^has_journal", "-N", "100000", "-d", str(root))
    where = ("-E", f"offset={_PARTITION_AT_BYTES}", str(image), f"{_ROOT_BYTES >> 10}k")
    subprocess.run(["mkfs.ext4", "-q", "-F", *options, *where], check=True)
    with image.open("r+b") as file:
        file.truncate(_PARTITION_AT_BYTES + _ROOT_BYTES)
    shutil.rmtree(root)


def _partition_table() -> bytes:
    """Return an MBR with one partition of type Linux."""
    start, count = _PARTITION_AT_BYTES // 512, _ROOT_BYTES // 512
    entry = struct.pack("<B3xB3xII", 0, 0x83, start, count)
    return bytes(440) + struct.pack("<I2x16s48x2s", _DISK_SIGNATURE, entry, b"\x55\xaa")


def _find(programs: Path, name: str) -> Path:
    places = (programs / folder / name for folder in ("bin", "sbin", "usr/bin", "usr/sbin"))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise RuntimeError(f"{programs} has no {name}: remove {programs} to fetch it again")
    return found


def _copy(source: Path, place: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, place, ignore=_LEFT_OUT)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    # With its time, by which Python knows the compiled modules of the host.
    shutil.copy2(source, place)


def _copy_python(root: Path, distributions: Iterable[str]) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _copy(Path(sys.executable).resolve(), root / "python" / "bin" / "python3")
    _copy(Path(sys.base_prefix, "lib", version), root / "python" / "lib" / version)
    _copy(REPOSITORY / "connector_py" / "kvring", root / "site" / "kvring")
    for name in distributions:
        for file in metadata.files(name) or ():
            if file.suffix != ".pyc" and ".." not in file.parts:
                _copy(Path(str(file.locate())), root / "site" / file)


def _copy_modules(kernel: Kernel, root: Path, kmod: Path, programs: Path) -> None:
    place = root / "lib" / "modules" / kernel.release
    for pattern in _MODULES:
        for found in kernel.modules.glob(pattern):
            _copy(found, place / found.relative_to(kernel.modules))
    # A package has no modules.dep: its installation makes that.
    subprocess.run(
        ["depmod", "-b", str(root), kernel.release],
        executable=kmod,
        env=library_environment(programs),
        check=True,
    )


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _libraries(root: Path, programs: Path) -> list[Path]:
    """Return what the programs and modules of the image are linked with."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    linked = [str(path) for path in files if _is_elf(path)]
    environment = library_environment(programs)
    listed = subprocess.run(
        ["ldd", *linked], env=environment, capture_output=True, text=True, check=False
    )
    words = (word for line in listed.stdout.splitlines() for word in line.split())
    found = {Path(word).name: Path(word) for word in words if word.startswith("/")}
    return [path for path in found.values() if path.suffix != ":" and path.is_file()]


def boot(
    programs: Path,
    kernel: Kernel,
    image: Path,
    drives: Sequence[str],
    deadline_s: float,
    *,
    arguments: Sequence[str] = (),
    report: Path | None = None,
    memory: str = "1500M",
) -> str:
    """Run the image until it powers off; return what it printed. The image stays as it is.

    Args:
        programs: What `fetch_programs` returned.
        kernel: What `fetch_kernel` returned.
        image: What `make_root` made.
        drives: Further arguments of QEMU.
        deadline_s: It is ended after this time.
        arguments: Of the guest's program.
        report: A file that takes what the guest writes to /dev/ttyS1, where no kernel message is.
        memory: Of the machine.

    Raises:
        subprocess.TimeoutExpired: It did not power off in time.
    """
    process = start(
        programs,
        kernel,
        image,
        [*(("-serial", f"file:{report}") if report else ()), *drives],
        arguments=arguments,
        memory=memory,
    )
    try:
        output, _ = process.communicate(timeout=deadline_s)
    finally:
        process.kill()
        process.wait()
    return output.decode(errors="replace")


def start(
    programs: Path,
    kernel: Kernel,
    image: Path,
    options: Sequence[str],
    *,
    arguments: Sequence[str] = (),
    memory: str = "1500M",
) -> subprocess.Popen[bytes]:
    """Start the image; the process prints what the machine does. The image stays as it is.

    Args:
        programs: What `fetch_programs` returned.
        kernel: What `fetch_kernel` returned.
        image: What `make_root` made.
        options: Further arguments of QEMU, such as drives.
        arguments: Of the guest's program.
        memory: Of the machine.
    """
    root = f"root=PARTUUID={_DISK_SIGNATURE:08x}-01 rootwait rw init=/init"
    append = f"{root} console=ttyS0 quiet no_timer_check panic=-1"
    command = [
        str(programs / "usr" / "bin" / "qemu-system-x86_64"),
        *("-L", str(programs / "usr/share/qemu"), "-L", str(programs / "usr/share/seabios")),
        *("-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", memory),
        *("-nodefaults", "-no-reboot", "-nographic", "-serial", "stdio"),
        *("-kernel", str(kernel.image), "-append", " ".join([append, "--", *arguments])),
        *("-drive", f"file={image},format=raw,if=none,id=root,snapshot=on,cache=unsafe"),
        *("-device", "nvme,drive=root,serial=root,addr=4"),
        *options,
    ]
    return subprocess.Popen(
        command,
        env={**library_environment(programs), "TMPDIR": str(image.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
