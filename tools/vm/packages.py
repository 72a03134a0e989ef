"""QEMU and kernels from packages of Debian, unpacked below a folder: nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SUITES = ("bookworm", "bookworm-backports", "trixie-backports")
# Part of every image that Python or nvme need; the host has them already.
_OF_THE_HOST = ("libc6_", "libc-bin_")


def unpack(cache: Path, kernel: str, *packages: str) -> Path:
    """Fetch packages with what they depend on, and one kernel; what is there is not fetched again.

    Args:
        cache: A folder, made if it is missing.
        kernel: Package of a kernel, such as linux-image-6.16.12+deb13-cloud-amd64.
        packages: Others, from the newest of the suites' backports of bookworm.

    Returns:
        The folder that all of them are unpacked in.

    Raises:
        subprocess.CalledProcessError: apt cannot get one of them.
        RuntimeError: apt has no archive of Debian.
    """
    root = cache / "root"
    done = cache / f".{kernel}"
    if not done.exists():
        environment = _configure(cache)
        archives = cache / "apt" / "archives"
        _run(["apt-get", "-qq", "update"], environment, cache)
        install = ["apt-get", "-qq", "-y", "--no-install-recommends", "--download-only"]
        _run([*install, "-t", _SUITES[1], "install", *packages], environment, cache)
        _run(["apt-get", "-qq", "download", kernel], environment, archives)
        for package in sorted(archives.glob("*.deb")):
            if not package.name.startswith(_OF_THE_HOST):
                _run(["dpkg", "-x", str(package), str(root)], environment, cache)
        done.touch()
    return root


def _configure(cache: Path) -> dict[str, str]:
    """Give apt lists and a status of its own, in which nothing is installed."""
    apt = cache / "apt"
    shutil.rmtree(apt, ignore_errors=True)
    for part in ("archives/partial", "lists/partial", "state"):
        (apt / part).mkdir(parents=True)
    (apt / "state" / "status").touch()
    archive = _archive_of_the_host()
    sources = (f"deb [signed-by={_KEYS}] {archive} {one} main" for one in _SUITES)
    (apt / "sources.list").write_text("\n".join(sources) + "\n", encoding="ascii")
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": apt / "state",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "state" / "status",
        "Dir::Cache::archives": apt / "archives",
        "APT::Sandbox::User": "",
    }
    lines = (f'{name} "{value}";\n' for name, value in settings.items())
    (apt / "apt.conf").write_text("".join(lines), encoding="ascii")
    return {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}


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
