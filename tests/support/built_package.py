"""A kvring package beside the installed one: Python files of a tree, and another native module."""

from __future__ import annotations

import shutil
from pathlib import Path


def place_package(tree: Path, library: Path, site: Path) -> Path:
    """Make the package anew below a directory for PYTHONPATH.

    Args:
        tree: The checkout that has the Python files.
        library: What cargo has built of the package kvring-python.
        site: The directory. Nothing else is below it.

    Returns:
        The native module in the package.
    """
    shutil.rmtree(site, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(tree / "connector_py" / "kvring", site / "kvring", ignore=ignored)
    return Path(shutil.copy(library, site / "kvring" / "_native.so"))
