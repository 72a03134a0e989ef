"""How a server runs as a service: systemd, Docker, Kubernetes."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

__all__ = [
    "docker_command",
    "kubernetes_manifest",
    "seccomp_profile",
    "seccomp_profile_over",
    "systemd_unit",
]

_PROFILE_NAME = "kvring-seccomp.json"
_IMAGE = "lmcache-with-kvring"
_MOST_FILES = 1048576

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


def systemd_unit(places: list[Path], command: list[str]) -> str:
    """Return a unit that runs a server.

    Args:
        places: Of the store, and of the directory that nodes share, if there is one.
        command: Starts the server.
    """
    program, *arguments = command
    # It has no PATH of an environment.
    program = shutil.which(program) or f"/path/to/{program}"
    # systemd.service(5): quotes as in a shell, but % and $ have a meaning.
    quoted = shlex.join([program, *arguments]).replace("%", "%%").replace("$", "$$")
    return f"""# /etc/systemd/system/lmcache.service
[Unit]
Description=LMCache server with kvring
RequiresMountsFor={" ".join(map(str, places))}

[Service]
User=lmcache
ExecStart={quoted}
LimitMEMLOCK=infinity
LimitNOFILE={_MOST_FILES}
Restart=on-failure
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target"""


def docker_command(places: list[Path], command: list[str]) -> str:
    """Return a command that runs a server in a container.

    Args:
        places: Of the store, and of the directory that nodes share, if there is one.
        command: Starts the server.
    """
    mounts = " ".join(
        f"--device {shlex.quote(str(path))}"
        if path.is_block_device()
        else f"--volume {shlex.quote(f'{path}:{path}')}"
        for path in places
    )
    return f"""kvring config --seccomp > {_PROFILE_NAME}
docker run --detach --name lmcache --gpus all --network host --ipc host \\
  --security-opt seccomp={_PROFILE_NAME} --ulimit memlock=-1 --ulimit nofile={_MOST_FILES} \\
  {mounts} --stop-timeout 60 {_IMAGE} \\
  {shlex.join(command)}"""


def kubernetes_manifest(places: list[Path], command: list[str]) -> str:
    """Return a manifest that runs a server on each node that is labelled for it.

    Args:
        places: Of the store, on the node, and of the directory that nodes share, if there is one.
        command: Starts the server.
    """
    path, *shared = places
    volume = "BlockDevice" if path.is_block_device() else "DirectoryOrCreate"
    mount = "volumeDevices" if path.is_block_device() else "volumeMounts"
    where = "devicePath" if path.is_block_device() else "mountPath"
    # A string of JSON is one of YAML.
    arguments = "\n".join(f"            - {json.dumps(word)}" for word in command)
    # Not one that is made where it is missing: it would be this node's alone.
    more_mounts, more_volumes = "", ""
    for directory in shared:
        name = json.dumps(str(directory))
        if mount != "volumeMounts":
            more_mounts += "\n          volumeMounts:"
        more_mounts += f"\n            - {{name: shared, mountPath: {name}}}"
        more_volumes += (
            f"\n        - name: shared\n          hostPath: {{path: {name}, type: Directory}}"
        )
    return f"""# On each node: kvring config --seccomp > /var/lib/kubelet/seccomp/{_PROFILE_NAME}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: lmcache
spec:
  selector:
    matchLabels: {{app: lmcache}}
  template:
    metadata:
      labels: {{app: lmcache}}
    spec:
      nodeSelector: {{lmcache: "true"}}
      hostNetwork: true
      hostIPC: true
      terminationGracePeriodSeconds: 60
      securityContext:
        seccompProfile: {{type: Localhost, localhostProfile: {_PROFILE_NAME}}}
      containers:
        - name: lmcache
          image: {_IMAGE}
          # Registered memory counts against the limit on locked memory.
          securityContext:
            capabilities: {{add: [IPC_LOCK]}}
          command:
{arguments}
          {mount}:
            - {{name: store, {where}: {json.dumps(str(path))}}}{more_mounts}
      volumes:
        - name: store
          hostPath: {{path: {json.dumps(str(path))}, type: {volume}}}{more_volumes}"""


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
