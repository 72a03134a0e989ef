"""What a store did in the last hour: samples of some dozen numbers each, as the page shows them."""

import json
import secrets
import threading
import time
from collections import deque
from typing import Any, Final

__all__ = ["History"]

_KEPT_S: Final = 3600.0
# An hour at one a second, behind an hour at one in 5 s; some 250 bytes each.
_MOST_SAMPLES: Final = 4320
# A latency or a rate is not known better than that.
_DIGITS: Final = 4

_RATES: Final = (
    "over_s",
    "read_bytes_per_s",
    "written_bytes_per_s",
    "loads_per_s",
    "stores_per_s",
    "lookups_per_s",
    "evictions_per_s",
    "failed_loads_per_s",
    "failed_stores_per_s",
    "failed_syncs_per_s",
    "lookup_hit_ratio",
)
_CAPACITIES: Final = {"hit_ratio_at_1_5x": "1.5", "hit_ratio_at_2x": "2"}
_LATENCIES: Final = {
    f"{op}_{phase}_{quantile}": (op, phase, quantile)
    for op in ("get", "set")
    for phase, quantile in (("total", "p99"), ("device", "p99"), ("wait", "p99"), ("total", "p50"))
}
# Of a sample: their names.
_COLUMNS: Final = ("time_s", *_RATES, *_CAPACITIES, *_LATENCIES, "failures")


class History:
    """Samples of a store, oldest first; threads may add and read at one time."""

    def __init__(self, name: str, interval_s: float) -> None:
        """Have no sample yet.

        Args:
            name: Of the store, as the page names it.
            interval_s: About the time between two samples: after several the page says "stale".
        """
        # A path need not be Unicode, an address has to be.
        self.name: Final = name.encode(errors="replace").decode()
        self._interval_s = interval_s
        # A reader who knows another one begins anew: its numbers are those of another process.
        self._series = secrets.token_hex(8)
        # When, in Unix time, and the sample in JSON.
        self._samples: deque[tuple[float, bytes]] = deque(maxlen=_MOST_SAMPLES)
        self._added = 0
        self._last = b"null"
        self._told_s = time.monotonic()
        self._failure: str | None = None
        self._lock = threading.Lock()

    def add(self, frame: dict[str, Any]) -> None:
        """Add what `kvring.frame.frame()` returned."""
        self._add([(frame["time_s"], _sample(frame))], json.dumps(frame).encode())

    def add_document(self, document: dict[str, Any]) -> None:
        """Add the samples of another history, from its document.

        An owner of another version may have other columns: what it does not know is None.
        """
        samples = []
        for values in document["samples"]:
            known = {"failures": [], **dict(zip(document["columns"], values, strict=True))}
            sample = [known.get(name) for name in _COLUMNS]
            samples.append((known["time_s"], json.dumps(sample).encode()))
        self._add(samples, json.dumps(document["last"]).encode())

    def fail(self, reason: str) -> None:
        """Say why there is no sample, until there is one again."""
        with self._lock:
            self._failure = reason

    def document(self, series: str = "", after: int = 0) -> bytes:
        """Return a JSON object: samples, and the last frame as it was.

        Args:
            series: As in the document that the reader had before.
            after: `next` of that document: what it had is left out.
        """
        with self._lock:
            if series != self._series:
                after = 0
            count = min(max(self._added - after, 0), len(self._samples))
            samples = list(self._samples)[len(self._samples) - count :]
            head = {
                "series": self._series,
                "next": self._added,
                "interval_s": self._interval_s,
                "age_s": round(time.monotonic() - self._told_s, 3),
                "failure": self._failure,
                "columns": _COLUMNS,
            }
            last = self._last
        lines = b",".join(line for _, line in samples)
        return b'%b,"samples":[%b],"last":%b}' % (json.dumps(head).encode()[:-1], lines, last)

    def _add(self, samples: list[tuple[float, bytes]], last: bytes) -> None:
        with self._lock:
            for time_s, line in samples:
                self._samples.append((time_s, line))
                self._added += 1
                while self._samples[0][0] < time_s - _KEPT_S:
                    self._samples.popleft()
            self._last, self._told_s, self._failure = last, time.monotonic(), None


def _sample(frame: dict[str, Any]) -> bytes:
    quantiles = (
        (frame["latency_ms"][op].get(phase), quantile)
        for op, phase, quantile in _LATENCIES.values()
    )
    numbers = [
        *(frame[name] for name in _RATES),
        *(frame["hit_ratio_by_capacity"][times] for times in _CAPACITIES.values()),
        *(found[quantile] if found else None for found, quantile in quantiles),
    ]
    sample = [
        round(frame["time_s"], 3),
        *(_shortened(number) for number in numbers),
        [count["since_open"] for count in frame["failures"].values()],
    ]
    return json.dumps(sample, separators=(",", ":")).encode()


def _shortened(number: float | None) -> float | None:
    if number is None:
        return None
    short = float(f"{number:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short
