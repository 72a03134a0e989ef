"""`python -m benches.placement`: what `write_streams` brings inside a drive.

A whole store plays a day of traces on a loop device over a sparse file, as root: its writes and
discards are recorded and not done. A model of a drive gets them once with the streams that kvring
names and once without. The table has the bytes that reach the flash for each byte of the host,
after twice the size of the drive was written. The JSON has the counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches.eviction.traces import PUBLIC_TRACES, TraceError, convert, find
from benches.results import HELP, Section, write_results
from benches.tables import make_table, print_table

_REPOSITORY = Path(__file__).resolve().parents[2]
_OUTPUT = _REPOSITORY / "target" / "bench" / "placement.json"
_BYTES_PER_TOKEN = 1024
_TOKENS = {"conversation": 512, "synthetic": 512, "gmi": 32}
_GIB = 1 << 30
_STREAMS = 8

Document = dict[str, Any]


def main() -> int:
    """Play, print the table and write the JSON. Returns the exit status."""
    arguments = _parse_arguments()
    documents = []
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            _loop_device(Path(directory), arguments.size) as device,
        ):
            for load, traces in _loads(arguments.traces, Path(directory)):
                for rule in ("lifetime", "namespace"):
                    for discard in (False, True):
                        document = _play(device, traces, rule, discard=discard)
                        documents.append(
                            {"load": load, "rule": rule, "discard": discard} | document
                        )
    except TraceError as error:
        print(f"placement: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"placement: the model did not run: {error}", file=sys.stderr)
        return 1
    _OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    _OUTPUT.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    header, *rows = rows_of(documents)
    table = make_table("Bytes written to flash for each byte that the host writes", header, rows)
    print_table(table)
    if arguments.results:
        _write_results(arguments, Section(table))
    print(f"Results: {_OUTPUT}")
    return 0


def _write_results(arguments: argparse.Namespace, section: Section) -> None:
    conditions = [
        f"A model of a drive of {arguments.size // _GIB} GiB with {_STREAMS} write streams.",
        "A whole store plays the traces on a loop device. Timing of its threads moves the figures.",
        "public: the traces of benches/traces/README.md. made: traces by rule.",
        "discard: `free` discards freed extents, `format` only when the store is formatted.",
        "spare flash: flash beyond the size of the drive. saved: flash bytes saved by streams.",
        "Measured after twice the size of the drive was written.",
    ]
    title = "Write streams in a model of a drive"
    write_results(arguments.results, title, "make placement", conditions, [section])


def rows_of(documents: list[Document]) -> list[list[str]]:
    """Return the header and a row for each run and drive."""
    header = ["load", "write_streams", "discard", "spare flash", "without", "with", "saved"]
    rows = [[*header, "second stream on"]]
    for document in documents:
        written = document["written_bytes"]
        apart = sum(written[3:]) / max(1, sum(written))
        discard = "free" if document["discard"] else "format"
        shares = sorted({drive["spare_share"] for drive in document["drives"]})
        for share in shares:
            without, with_streams = (
                drive["media_pages"] / drive["host_pages"]
                for is_told in (False, True)
                for drive in document["drives"]
                if (drive["spare_share"], drive["is_told"]) == (share, is_told)
            )
            figures = [f"{share:.0%}", f"{without:.3f}", f"{with_streams:.3f}"]
            saved = f"{1 - with_streams / without:.1%}"
            texts = [document["load"], document["rule"], discard, *figures, saved]
            rows.append([*texts, f"{apart:.1%}"])
    return rows


def _loads(traces: Path, directory: Path) -> Iterator[tuple[str, dict[str, tuple[int, Path]]]]:
    found = {}
    for trace in PUBLIC_TRACES:
        if (source := find(trace, traces)) is None:
            print(f"skipped: {trace.file_name} is not in {traces}")
            continue
        target = directory / trace.name
        convert(source, target)
        found[trace.name] = (_TOKENS[trace.name] * _BYTES_PER_TOKEN, target)
    if found:
        yield "public", found
    yield "made", {}


def _play(
    device: Path, traces: dict[str, tuple[int, Path]], rule: str, *, discard: bool
) -> Document:
    subprocess.run(["blkdiscard", str(device)], check=True)
    command = ["cargo", "run", "--quiet", "--release", "--features", "bench"]
    command += ["--example", "placement_model", "--", "--device", str(device), "--rule", rule]
    command += ["--streams", str(_STREAMS), *(["--discard"] if discard else [])]
    for name, (chunk_bytes, path) in traces.items():
        command += ["--trace", f"{name}={chunk_bytes}={path}"]
    printed = subprocess.run(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, check=True)
    document: Document = json.loads(printed.stdout)
    return document


@contextmanager
def _loop_device(directory: Path, size_bytes: int) -> Iterator[Path]:
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    made = subprocess.run(
        ["losetup", "--find", "--show", str(image)], stdout=subprocess.PIPE, text=True, check=True
    )
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", str(device)], check=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.placement", description=__doc__)
    parser.add_argument(
        "--traces",
        type=Path,
        default=_REPOSITORY / "benches" / "traces",
        help="where traces of others lie (default: benches/traces)",
    )
    parser.add_argument(
        "--size",
        type=lambda text: int(text) * _GIB,
        default=8 * _GIB,
        metavar="GIB",
        help="size of the drive (default: 8)",
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help=HELP)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
