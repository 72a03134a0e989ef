"""The contract on another kernel: Linux 6.1 in a virtual machine. `make vm` has all kernels."""

import shutil
import subprocess

import pytest

from tools.tool import OUTPUT
from tools.vm.matrix import run
from tools.vm.packages import fetch_kernel, fetch_programs

NEEDED = ("apt-get", "dpkg", "mkfs.ext4", "ldd", "strip", "cargo")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_contract_holds_on_linux_6_1() -> None:
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        pytest.skip(f"a virtual machine needs {', '.join(missing)}")
    cache = OUTPUT / "vm"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        fetch_programs(cache)
        fetch_kernel(cache, "6.1")
    except (RuntimeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no packages for a virtual machine: {error}")
    (outcome,) = run(["6.1/ext4"], ["contract"], cache, 600)
    assert (outcome.suite, outcome.failed, outcome.skipped) == ("contract", [], {})
    assert outcome.kernel.startswith("6.1.")
    assert outcome.passed > 5
