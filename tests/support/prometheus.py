"""A real Prometheus that scrapes a port of this machine."""

import json
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import fetched

__all__ = ["asked", "need", "prometheus"]


def need(program: str) -> str:
    """Return where a program of Prometheus is; skip the test without it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install prometheus)")
    return path


@contextmanager
def prometheus(directory: Path, target_port: int, *rule_files: Path) -> Iterator[int]:
    """Run a Prometheus that scrapes, and looks at its rules, each second; lend its own port."""
    program = need("prometheus")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [
            {"job_name": "kvring", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    with (
        (directory / "prometheus.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield port
        finally:
            process.terminate()


def asked(port: int, query: str) -> list[dict[str, Any]]:
    """Ask Prometheus, and return the series with their values."""
    status, text = fetched(port, f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    document = json.loads(text)
    assert (status, document["status"]) == (200, "success"), (query, text)
    found: list[dict[str, Any]] = document["data"]["result"]
    return found
