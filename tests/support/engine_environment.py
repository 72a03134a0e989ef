"""A virtual environment with LMCache, vLLM and SGLang but without kvring, as a reader has it.

It consists of links to the packages of `.venv` and `.venv-engines`. vLLM's offloading refuses
processors: a plugin of vLLM (`tests.support.host_copies`) lets it copy in host memory.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["make_environment"]

_REPOSITORY = Path(__file__).resolve().parents[2]
# `tests` is what some package has put there by mistake.
_OWN = ("_virtualenv", "kvring", "tests")
_PROGRAM = """#!{python}
import sys
from importlib.metadata import entry_points
if __name__ == "__main__":
    (program,) = entry_points(group="console_scripts", name="{name}")
    sys.exit(program.load()())
"""


def make_environment(directory: Path, site_packages: Iterable[Path]) -> Path:
    """Make it, and return its folder of programs.

    Args:
        directory: Where it is made.
        site_packages: Whose packages it has; of two with one name, the first.
    """
    # pip comes by a link as well: to install it takes longer than all the rest.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (own,) = directory.glob("lib/python3*/site-packages")
    for packages in site_packages:
        for package in packages.iterdir():
            link = own / package.name
            is_linked = package.suffix != ".pth" and not package.name.startswith(_OWN)
            if is_linked and not link.exists():
                link.symlink_to(package)
    programs = directory / "bin"
    for name in ("lmcache", "pip", "vllm"):
        program = programs / name
        program.write_text(_PROGRAM.format(python=programs / "python", name=name))
        program.chmod(0o755)
    (own / "repository.pth").write_text(f"{_REPOSITORY}\n")
    plugin = own / "host_copies-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: host-copies\nVersion: 0\n")
    entry = "[vllm.general_plugins]\nhost_copies = tests.support.host_copies:register\n"
    (plugin / "entry_points.txt").write_text(entry)
    return programs
