"""LMCache's own `lmcache bench l2` must verify every byte and never wait for a completion."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.adapter_spec import AdapterSpec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from lmcache.cli.main import main as lmcache_main

pytestmark = pytest.mark.lmcache

MEASURED_ROUNDS = 2
WARMUP_ROUNDS = 1
OPERATIONS = {"Store": "success_keys", "Lookup": "found", "Load": "loaded"}


@dataclass(frozen=True)
class Combination:
    """One run of the benchmark."""

    size_kb: int
    align_bytes: int
    in_flight: int

    @property
    def key_count(self) -> int:
        """Keys per submit: 1 where eight submits of 32 MiB each are in flight, to save memory."""
        if self.size_kb >= 32768:
            return 1 if self.in_flight > 1 else 4
        return 12

    @property
    def keys_per_round(self) -> int:
        """All keys of a round."""
        return self.key_count * self.in_flight

    def arguments(self, spec: AdapterSpec, output: Path) -> list[str]:
        """The command line after `lmcache`."""
        return [
            *("bench", "l2", "--l2-adapter", json.dumps(spec), "--no-skip-verify"),
            *("--data-size-kb", str(self.size_kb), "--l1-align-bytes", str(self.align_bytes)),
            *("--in-flight", str(self.in_flight), "--num-keys", str(self.key_count)),
            *("--rounds", str(MEASURED_ROUNDS), "--warmup-rounds", str(WARMUP_ROUNDS)),
            *("--lookup-max-hit-rate", "1.0", "--format", "json", "--output", str(output)),
        ]


# Each size, alignment and number in flight; the benchmark refuses a size that is no multiple of the
# alignment.
COMBINATIONS = [
    ("plugin", Combination(4, 4096, 8)),
    ("plugin", Combination(255, 1, 1)),
    ("plugin", Combination(1000, 512, 8)),
    ("plugin", Combination(32768, 4096, 1)),
    ("native_plugin", Combination(255, 512, 8)),
    ("native_plugin", Combination(2048, 4096, 1)),
    ("native_plugin", Combination(32768, 1, 8)),
]


def assert_all_succeeded(combination: Combination, output: str, result_path: Path) -> None:
    keys = combination.keys_per_round
    # The JSON leaves timed-out rounds out of its counts, and warm-up rounds: the lines tell all.
    for operation, label in OPERATIONS.items():
        rounds = re.findall(rf"^  \[{operation}\] Round (\d+): (.*)$", output, re.MULTILINE)
        assert [int(number) for number, _ in rounds] == [1, 2, 3]
        for _, outcome in rounds:
            assert re.fullmatch(rf"[0-9.]+ ms, {label}={keys}/{keys}", outcome), output
    assert "TIMEOUT" not in output
    assert re.findall(r"^  \[Verify\] (.*)$", output, re.MULTILINE) == [
        f"All {keys} keys data verified OK."
    ]
    assert output.rstrip().endswith("[Cleanup] Done.")

    metrics = json.loads(result_path.read_text())["metrics"]
    operations = {metrics[f"op_{index}"]["operation"]: metrics[f"op_{index}"] for index in range(3)}
    assert list(operations) == list(OPERATIONS)
    for values in operations.values():
        assert values["rounds"] == MEASURED_ROUNDS
        assert values["rounds_timed_out"] == 0
        assert values["total_keys"] == values["total_success"] == keys * MEASURED_ROUNDS


@pytest.mark.parametrize(
    ("adapter_name", "combination"),
    COMBINATIONS,
    ids=lambda value: str(value) if isinstance(value, str) else f"{value.size_kb}KB",
)
def test_combinations(
    combination: Combination,
    make_spec: Callable[..., AdapterSpec],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The same entry point and arguments as the console script's, without its seconds of imports.
    result_path = tmp_path / "result.json"
    lmcache_main(combination.arguments(make_spec(), result_path))
    assert_all_succeeded(combination, capsys.readouterr().out, result_path)
