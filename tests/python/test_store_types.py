"""The types of kvring.open(): what mypy takes, and that options, types and help are the same."""

import inspect
import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import kvring
from kvring.arguments import StoreOptions


def test_the_typed_options_are_those_that_exist() -> None:
    described = kvring.options()
    typed = get_type_hints(StoreOptions)
    assert list(typed) == [name for name in described if name not in ("path", "capacity")]
    for name, annotation in typed.items():
        taken = str(described[name]["range"])
        literals = [one for one in get_args(annotation) if get_origin(one) is Literal]
        if get_origin(annotation) is Literal:
            # A choice: all of them, and nothing else.
            assert list(get_args(annotation)) == re.findall(r"'([^']+)'", taken), name
        for one in literals:
            assert all(f"'{value}'" in taken for value in get_args(one)), name


def test_help_lists_every_option_with_its_meaning_and_unit() -> None:
    text = " ".join(re.sub(r"[ |]+", " ", pydoc.plain(pydoc.render_doc(kvring.Store))).split())
    for name, option in kvring.options().items():
        if name not in ("path", "capacity"):
            assert f"{name}: {option['meaning']}. Takes {option['range']}" in text
            assert not option["unit"] or f"({option['unit']}). Default:" in text
    assert "help(kvring.Store)" in str(inspect.getdoc(kvring.open))


def test_all_names_leave_the_open_of_python_alone() -> None:
    names: dict[str, Any] = {}
    exec("from kvring import *", names)
    assert "Store" in names
    assert "open" not in names


# Each line that must be refused ends with the code of the error.
TYPED = """
import kvring

with kvring.open("/store", "1GiB", eviction="lru", ttl=60, quotas={"model": 1 << 30}) as store:
    store.put("key", b"chunk")
    store.put("key", bytearray(5))
    chunk: bytearray | None = store.get("key")
    out: memoryview | None = store.get("key", memoryview(bytearray(5)))
    chunks: list[bytearray | None] = store.get_many(["key"], timeout_s=1)
    store.put("key", 5)  # arg-type
    store.put("key", "text")  # arg-type
    store.get(5)  # call-overload
    store.get("key", "text")  # call-overload
    store.put("key", b"chunk", timeout=1)  # call-arg
kvring.open(["/one", "/two"], [1 << 30, "1GiB"])
kvring.open("/store", "1GiB", eviktion="lru")  # call-arg
kvring.open("/store", "1GiB", eviction="lruu")  # arg-type
kvring.open("/store", "1GiB", io_threads="many")  # arg-type
kvring.open("/store", capacity=None)  # arg-type
"""
TYPED_ARRAYS = """
import numpy
import torch

import kvring

array, tensor = numpy.zeros(5), torch.zeros(5)
with kvring.open("/store", "1GiB") as store:
    store.put("key", array)
    store.put("key", tensor)
    one: numpy.typing.NDArray[numpy.float64] | None = store.get("key", array)
    two: torch.Tensor | None = store.get("key", tensor)
    three: list[torch.Tensor | None] = store.get_many(["key"], [tensor])
    four: bytearray | None = store.get("key", tensor)  # assignment
    store.connector.submit_batch_set(["key", "other"], [array, array])
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.13"])
@pytest.mark.parametrize(
    "code", [TYPED, pytest.param(TYPED_ARRAYS, marks=pytest.mark.lmcache)], ids=["plain", "arrays"]
)
def test_mypy_strict_takes_what_is_right_and_nothing_else(
    tmp_path: Path, code: str, version: str
) -> None:
    if "torch" in code:
        pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--python-version", version, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(kvring.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^program.py:(\d+): error: .*\[(.*)\]$", checked.stdout, re.M)
    lines = [line.partition("  # ") for line in code.splitlines()]
    expected = [(str(number), error) for number, (_, _, error) in enumerate(lines, 1) if error]
    assert list(dict.fromkeys(found)) == expected, checked.stdout + checked.stderr
