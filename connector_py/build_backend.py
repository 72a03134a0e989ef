"""Builds the package with maturin (PEP 517), or says that there is no compiler for it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import maturin

_P = ParamSpec("_P")
_R = TypeVar("_R")

_WAY_OUT = (
    "install Rust with rustup (https://rustup.rs, or your system's rustup package), "
    "or install a wheel of kvring, which needs no compiler"
)


def _refusal() -> str | None:
    """Return why nothing can be compiled here."""
    cargo = shutil.which("cargo")
    if cargo is None:
        return f"kvring is compiled from Rust, and there is no cargo in PATH: {_WAY_OUT}"
    manifest = Path(__file__).parents[1].joinpath("Cargo.toml").read_text(encoding="utf-8")
    needed = _version(manifest.partition("rust-version")[2])
    found = _version(
        subprocess.run([cargo, "-V"], capture_output=True, text=True, check=True).stdout
    )
    if found < needed:
        versions = [".".join(map(str, one)) for one in (needed, found)]
        return f"kvring needs Rust {versions[0]}, and {cargo} is {versions[1]}: {_WAY_OUT}"
    return None


def _version(text: str) -> tuple[int, ...]:
    """Return the first version that a text has."""
    return tuple(map(int, re.findall(r"\d+\.\d+", text)[0].split(".")))


def _checked(hook: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a hook that ends with the sentence before maturin downloads a compiler by itself."""

    def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
        refusal = _refusal()
        if refusal is not None:
            sys.exit(refusal)
        return hook(*arguments, **options)

    return call


build_editable = _checked(maturin.build_editable)
build_sdist = _checked(maturin.build_sdist)
build_wheel = _checked(maturin.build_wheel)
get_requires_for_build_editable = _checked(maturin.get_requires_for_build_editable)
get_requires_for_build_sdist = _checked(maturin.get_requires_for_build_sdist)
get_requires_for_build_wheel = _checked(maturin.get_requires_for_build_wheel)
prepare_metadata_for_build_editable = _checked(maturin.prepare_metadata_for_build_editable)
prepare_metadata_for_build_wheel = _checked(maturin.prepare_metadata_for_build_wheel)
