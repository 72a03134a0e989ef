"""QEMU, kernels and the guest's programs from Debian packages: unpacked, never installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The suite with the newest kernel of each series.
KERNEL_SUITES = {
    "5.10": "bullseye-security",
    "6.1": "bookworm-security",
    "6.12": "trixie",
    "newest": "trixie-backports",
}
_KERNEL = "linux-image-cloud-amd64"
_PROGRAM_SUITES = ("bookworm", "bookworm-backports")
_PROGRAMS = (
    *("qemu-system-x86", "busybox-static", "nvme-cli", "coreutils", "util-linux", "mount", "kmod"),
    *("e2fsprogs", "xfsprogs", "psmisc"),
)
# The host's are used: programs from these packages run with the host's libc.
_OF_THE_HOST = ("libc6_", "libc-bin_")


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel.

    Attributes:
        series: A key of `KERNEL_SUITES`.
        release: As `uname -r` prints it.
        image: What QEMU boots.
        modules: The folder `lib/modules/RELEASE`.
    """

    series: str
    release: str
    image: Path
    modules: Path


def fetch_programs(cache: Path) -> Path:
    """Return a folder with QEMU and the guest's programs; download them unless it is there.

    Raises:
        subprocess.CalledProcessError: apt cannot get one of them.
        RuntimeError: apt has no Debian archive.
    """
    folder = cache / "programs"
    if not folder.exists():
        environment = _configure(cache / "apt-programs", _PROGRAM_SUITES)
        install = ["apt-get", "-qq", "-y", "--no-install-recommends", "--download-only"]
        _run([*install, "-t", _PROGRAM_SUITES[-1], "install", *_PROGRAMS], environment, cache)
        _unpack(cache / "apt-programs", folder)
    return folder


def fetch_kernel(cache: Path, series: str) -> Kernel:
    """Return a kernel; download it unless it is there.

    Args:
        cache: A folder, made if it is missing.
        series: A key of `KERNEL_SUITES`.

    Raises:
        subprocess.CalledProcessError: apt cannot get it.
        RuntimeError: apt has no Debian archive.
    """
    folder = cache / f"kernel-{series}"
    if not folder.exists():
        apt = cache / f"apt-{series}"
        environment = _configure(apt, [KERNEL_SUITES[series]])
        named = _dependencies(_KERNEL, environment)
        (image,) = (one for one in named if one.startswith("linux-image-"))
        release = image.removeprefix("linux-image-")
        # Since 7.3 the package is split, and the image package is empty.
        parts = [one for one in _dependencies(image, environment) if one.endswith(release)]
        _run(["apt-get", "-qq", "download", image, *parts], environment, apt / "archives")
        _unpack(apt, folder)
    (modules,) = (path for path in folder.glob("**/lib/modules/*") if path.is_dir())
    images = (folder / "boot" / f"vmlinuz-{modules.name}", modules / "vmlinuz")
    (image_path,) = (path for path in images if path.is_file())
    return Kernel(series, modules.name, image_path, modules)


def library_environment(programs: Path) -> dict[str, str]:
    """Return an environment in which unpacked programs find their libraries."""
    folders = [programs / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}


def _dependencies(package: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["apt-cache", "depends", package],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"Depends: (linux-\S+)", done.stdout)


def _unpack(apt: Path, folder: Path) -> None:
    """Unpack the archives, and remove them; the folder appears when it is complete."""
    unpacked = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in sorted((apt / "archives").glob("*.deb")):
        if not package.name.startswith(_OF_THE_HOST):
            subprocess.run(["dpkg", "-x", str(package), str(unpacked)], check=True)
    unpacked.rename(folder)
    shutil.rmtree(apt)


def _configure(apt: Path, suites: Sequence[str]) -> dict[str, str]:
    """Give apt lists and a status of its own, in which nothing is installed, and update it."""
    shutil.rmtree(apt, ignore_errors=True)
    for part in ("archives/partial", "lists/partial", "state"):
        (apt / part).mkdir(parents=True)
    (apt / "state" / "status").touch()
    archive = _archive_of_the_host().rstrip("/")
    places = [(f"{archive}-security" if "-security" in one else archive, one) for one in suites]
    sources = (f"deb [signed-by={_KEYS}] {place} {one} main\n" for place, one in places)
    (apt / "sources.list").write_text("".join(sources), encoding="ascii")
    settings = {
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "Acquire::Languages": "none",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": apt / "state",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "state" / "status",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "APT::Sandbox::User": "",
    }
    lines = (f'{name} "{value}";\n' for name, value in settings.items())
    (apt / "apt.conf").write_text("".join(lines), encoding="ascii")
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _run(["apt-get", "-qq", "update"], environment, apt)
    return environment


def _archive_of_the_host() -> str:
    """Return where this machine has Debian's packages from.

    Raises:
        RuntimeError: It has none from there.
    """
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    archives = [one for one in found if one.rstrip("/").endswith("/debian")]
    if not archives:
        message = "apt has no archive of Debian here: add one to /etc/apt/sources.list.d"
        raise RuntimeError(message)
    return archives[0]


def _run(command: list[str], environment: dict[str, str], directory: Path) -> None:
    subprocess.run(command, env=environment, cwd=directory, check=True)
