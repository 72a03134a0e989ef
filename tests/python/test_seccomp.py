"""The seccomp profile for containers, loaded as a container runtime does."""

import ctypes
import ctypes.util
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kvring.cli.deployment import seccomp_profile, seccomp_profile_over
from tests.python.conftest import run_child
from tests.python.test_engines import use

ALLOW = 0x7FFF_0000
REFUSE = 0x0005_0000
# seccomp.h of libseccomp
OPERATORS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class Comparison(ctypes.Structure):
    """A condition on an argument: `struct scmp_arg_cmp`."""

    _fields_ = (
        ("index", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def library() -> ctypes.CDLL:
    """Return libseccomp, with which runc makes filters."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    found = ctypes.CDLL(name)
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_load.argtypes = [ctypes.c_void_p]
    found.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Comparison),
    ]
    return found


def load_profile(profile: dict[str, Any]) -> ctypes.CDLL:
    """Have a profile hold for this process from here on."""
    seccomp = library()
    actions = {"SCMP_ACT_ALLOW": ALLOW, "SCMP_ACT_ERRNO": REFUSE | errno.EPERM}
    context = seccomp.seccomp_init(actions[profile["defaultAction"]])
    for rule in profile["syscalls"]:
        conditions = [
            Comparison(one["index"], OPERATORS[one["op"]], one["value"], one.get("valueTwo", 0))
            for one in rule.get("args", [])
        ]
        array = (Comparison * len(conditions))(*conditions)
        for name in rule["names"]:
            call = seccomp.seccomp_syscall_resolve_name(name.encode())
            # What this machine's processors never had is passed over, as runc does.
            if call >= 0:
                action = REFUSE | rule["errnoRet"] if "errnoRet" in rule else ALLOW
                added = seccomp.seccomp_rule_add_array(
                    context, action, call, len(conditions), array
                )
                assert added == 0, (name, os.strerror(-added))
    assert seccomp.seccomp_load(context) == 0
    return seccomp


def allowing(seccomp: ctypes.CDLL) -> dict[str, Any]:
    """Return a profile in the form of Docker's default: a list of what is allowed, io_uring not."""
    seccomp.seccomp_syscall_resolve_num_arch.restype = ctypes.c_char_p
    names = [seccomp.seccomp_syscall_resolve_num_arch(0, number) for number in range(512)]
    allowed = [name.decode() for name in names if name and not name.startswith(b"io_uring")]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            {"names": allowed, "action": "SCMP_ACT_ALLOW"},
            {"names": ["io_uring_setup"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        ],
    }


def use_under_profile(directory: str, which: str) -> None:
    base = allowing(library())
    load_profile(
        {"own": seccomp_profile(), "base": base, "over": seccomp_profile_over(base)}[which]
    )
    print(use(directory))


@pytest.mark.parametrize(
    ("which", "engine"), [("own", "io_uring"), ("base", "posix"), ("over", "io_uring")]
)
def test_which_engine_a_store_has_under_a_profile(
    store_directory: Path, which: str, engine: str
) -> None:
    library()
    child = run_child(use_under_profile, str(store_directory), which)
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith(engine), (child.stdout, child.stderr)
