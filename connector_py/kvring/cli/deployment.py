"""How a server runs as a service: systemd, Docker."""

import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from kvring.cli.failure import WrongArguments

__all__ = [
    "IMAGE",
    "PROFILE_NAME",
    "Places",
    "check_paths",
    "docker_command",
    "is_device",
    "seccomp_profile",
    "seccomp_profile_over",
    "systemd_unit",
]

PROFILE_NAME = "kvring-seccomp.json"
# deploy/Dockerfile says how it is built.
IMAGE = "lmcache-with-kvring"
_MOST_FILES = 1048576
_QUOTED_IN_UNITS = frozenset(" '\"\\;#")

# What needs a capability that containers do not have, changes the machine, reaches into other
# processes, or has been a way out of containers: https://docs.docker.com/engine/security/seccomp/
# gives the reason for each.
_DENIED = """
_sysctl acct add_key afs_syscall bpf clock_adjtime clock_settime create_module delete_module
fanotify_init finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module
ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount
mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree perf_event_open
personality pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev query_module
quotactl quotactl_fd reboot request_key set_mempolicy set_mempolicy_home_node setdomainname
sethostname setns settimeofday stime swapoff swapon sysfs syslog umount umount2 unshare uselib
userfaultfd ustat vhangup vm86 vm86old
""".split()  # noqa: SIM905
# Flags of clone that make namespaces, from linux/sched.h: mount, control group, UTS, IPC, user,
# process, network.
_NAMESPACE_FLAGS = (
    0x0002_0000,
    0x0200_0000,
    0x0400_0000,
    0x0800_0000,
    0x1000_0000,
    0x2000_0000,
    0x4000_0000,
)
# Sockets to the host of a virtual machine are in no network namespace.
_AF_VSOCK = 40
_IO_URING = ("io_uring_setup", "io_uring_enter", "io_uring_register")
_NOT_PERMITTED = 1
_NOT_IMPLEMENTED = 38


class Places(NamedTuple):
    """What a server has of the file systems and devices of its machine."""

    # Directories and block devices: the paths of the store, and where the index of a device is.
    store: list[Path]
    # The directory that nodes share, if there is one.
    shared: list[Path]

    @property
    def directories(self) -> list[Path]:
        """All that are no block devices."""
        return [path for path in (*self.store, *self.shared) if not is_device(path)]

    @property
    def devices(self) -> list[Path]:
        """Those of the store that are block devices."""
        return [path for path in self.store if is_device(path)]


def is_device(path: Path) -> bool:
    """Tell a block device, also one of another machine: no store is made in a directory of /dev."""
    is_of_dev = path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm")
    return path.is_block_device() or (is_of_dev and not path.exists())


def check_paths(places: Places, form: str) -> None:
    """Refuse paths that a form cannot name.

    Raises:
        WrongArguments: A path has a character that has no way to be written, or another meaning.
    """
    for path in (*places.store, *places.shared):
        text = str(path)
        if form == "systemd" and not text.isprintable():
            what = f"{text!r} has a character that no unit can have; name another directory"
            raise WrongArguments(f"--systemd: {what}")
        is_parted = ":" in text and (form == "kubernetes" or (form == "docker" and is_device(path)))
        if is_parted:
            way_out = "name a link without one" if is_device(path) else "name another directory"
            raise WrongArguments(
                f"--{form}: {text!r} has a ':', which ends a path there; {way_out}"
            )


def systemd_unit(places: Places, command: list[str]) -> str:
    """Return a unit that runs a server.

    Args:
        places: What the server has to find mounted, or may open.
        command: Starts the server.
    """
    program, *arguments = command
    # It has no PATH of an environment.
    program = shutil.which(program) or f"/path/to/{program}"
    quoted = " ".join(map(_command_word, [program, *arguments]))
    mounts = " ".join(map(_unit_word, places.directories))
    # Devices belong to this group.
    group = "SupplementaryGroups=disk\n" if places.devices else ""
    return f"""# /etc/systemd/system/lmcache.service
[Unit]
Description=LMCache server with kvring
{f"RequiresMountsFor={mounts}" if mounts else "After=local-fs.target"}

[Service]
User=lmcache
{group}ExecStart={quoted}
LimitMEMLOCK=infinity
LimitNOFILE={_MOST_FILES}
Restart=on-failure
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target"""


def _command_word(word: str) -> str:
    """Return a word of ExecStart: systemd.service(5). A backslash escapes in any quotes."""
    if "'" in word or "\\" in word:
        return _double_quoted(word).replace("$", "$$")
    return shlex.quote(word).replace("%", "%%").replace("$", "$$")


def _unit_word(path: Path) -> str:
    """Return a path as a word of a unit: systemd.syntax(7), systemd.unit(5)."""
    text = str(path)
    return _double_quoted(text) if set(text) & _QUOTED_IN_UNITS else text.replace("%", "%%")


def _double_quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def docker_command(places: Places, command: list[str]) -> str:
    """Return a command that runs a server in a container.

    Args:
        places: What the container has of the machine.
        command: Starts the server.
    """
    mounts = " ".join(
        (
            *(f"--device {shlex.quote(str(path))}" for path in places.devices),
            *(f"--mount {shlex.quote(_bind_mount(path))}" for path in places.directories),
        )
    )
    return f"""kvring config --seccomp > {PROFILE_NAME}
docker run --detach --name lmcache --gpus all --network host --ipc host \\
  --security-opt seccomp={PROFILE_NAME} --ulimit memlock=-1 --ulimit nofile={_MOST_FILES} \\
  {mounts} --stop-timeout 60 {IMAGE} \\
  {shlex.join(command)}"""


def _bind_mount(path: Path) -> str:
    """Return what `--mount` takes; `--volume` makes a directory below a missing mount."""
    fields = (f"source={path}", f"target={path}")
    # Of a field with a comma, a quote or the end of a line: CSV, as Docker reads it.
    quoted = (
        f'"{one.replace(chr(34), chr(34) * 2)}"' if set(one) & set(',"\r\n') else one
        for one in fields
    )
    return ",".join(("type=bind", *quoted))


def seccomp_profile_over(base: dict[str, Any]) -> dict[str, Any]:
    """Return a profile that allows io_uring besides what `base`, as Docker's default, allows."""
    rules = [
        {**rule, "names": [name for name in rule["names"] if name not in _IO_URING]}
        for rule in base["syscalls"]
    ]
    allowed = {"names": list(_IO_URING), "action": "SCMP_ACT_ALLOW"}
    return {**base, "syscalls": [*(rule for rule in rules if rule["names"]), allowed]}


def seccomp_profile() -> dict[str, Any]:
    """Return a profile that allows io_uring, and denies what Docker's own one denies."""

    def denied(*names: str, **condition: Any) -> dict[str, Any]:
        rule = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": _NOT_PERMITTED}
        return {**rule, "args": [{"index": 0, **condition}]} if condition else rule

    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            denied(*_DENIED),
            # A rule can ask for all of some bits, not for one of them.
            *(
                denied("clone", value=flag, valueTwo=flag, op="SCMP_CMP_MASKED_EQ")
                for flag in _NAMESPACE_FLAGS
            ),
            denied("socket", value=_AF_VSOCK, op="SCMP_CMP_EQ"),
            # C libraries then take clone, whose flags a filter can see.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _NOT_IMPLEMENTED},
        ],
    }
