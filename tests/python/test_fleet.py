"""The simulated fleet: small traces whose outcome is known."""

from pathlib import Path

import pytest

from benches.fleet.model import Fleet, Rates, simulate
from benches.fleet.traces import Conversations, Request, read

# One chunk takes one second of prefill, and a tenth from the disk.
CHUNK_BYTES = 1000
RATES = Rates(
    prefill_tokens_per_s=100,
    disk_bytes_per_s=10_000,
    network_bytes_per_s=2_000,
    shared_bytes_per_s=2_000,
)


def fleet(
    nodes: int = 1,
    memory_chunks: int | None = 0,
    disk_chunks: int | None = None,
    shared_chunks: int | None = 0,
) -> Fleet:
    """Return nodes without memory and a shared tier, as far as nothing else is said."""
    return Fleet(
        nodes,
        memory_chunks=memory_chunks,
        disk_chunks=disk_chunks,
        shared_chunks=shared_chunks,
        chunk_tokens=100,
        chunk_bytes=CHUNK_BYTES,
    )


def trace(*prompts: tuple[int, ...]) -> list[Request]:
    """Return requests that are far apart."""
    return [Request(100.0 * number, chunks) for number, chunks in enumerate(prompts)]


def test_a_prompt_is_computed_once_and_then_comes_from_disk() -> None:
    outcome = simulate(trace((1, 2), (1, 2, 3)), fleet(), RATES)
    assert outcome.chunks == {"computed": 3, "disk": 2}
    assert outcome.first_token_s == pytest.approx([2.0, 0.2 + 1.0])
    assert outcome.moved == {"disk written": 3 * CHUNK_BYTES, "disk read": 2 * CHUNK_BYTES}
    assert outcome.hit_ratio() == pytest.approx(2 / 5)


def test_another_node_has_it_from_the_shared_tier_and_then_from_its_disk() -> None:
    prompts = trace(*[(1, 2)] * 40)
    alone = simulate(prompts, fleet(2), RATES)
    assert set(alone.nodes) == {0, 1}
    assert alone.chunks == {"computed": 4, "disk": 76}
    shared = simulate(prompts, fleet(2, shared_chunks=None), RATES)
    assert shared.nodes == alone.nodes
    assert shared.chunks == {"computed": 2, "shared": 2, "disk": 76}
    assert shared.moved["to shared"] == shared.moved["from shared"] == 2 * CHUNK_BYTES
    first_of_the_other = shared.nodes.index(1 - shared.nodes[0])
    assert shared.first_token_s[first_of_the_other] == pytest.approx(1.0)


def test_what_comes_too_late_is_computed() -> None:
    # Of the two the slower one counts.
    slow = Rates(100, 10_000, network_bytes_per_s=2_000, shared_bytes_per_s=100)
    outcome = simulate(trace(*[(1, 2)] * 40), fleet(2, shared_chunks=None), slow)
    assert outcome.late_chunks == 2
    first_of_the_other = outcome.nodes.index(1 - outcome.nodes[0])
    # Five seconds, and then two chunks.
    assert outcome.first_token_s[first_of_the_other] == pytest.approx(7.0)
    assert outcome.chunks == {"computed": 2, "shared": 2, "disk": 76}


def test_a_seed_decides_all() -> None:
    conversations = Conversations(requests_per_s=5, requests=200)
    first, second = (list(conversations.play(7)) for _ in range(2))
    assert first == second != list(conversations.play(8))
    outcomes = [simulate(first, fleet(4), RATES, seed).chunks for seed in (1, 1, 2)]
    assert outcomes[0] == outcomes[1] != outcomes[2]


def test_a_trace_of_mooncake_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 2000, "hash_ids": [1, 2]}\n{"timestamp": 500, "hash_ids": [1]}')
    assert read(path) == [Request(0.5, (1,)), Request(2.0, (1, 2))]
    path.write_text('{"timestamp": 2000, "hash_ids": [1]}\n{"timestamp": 3000}\n')
    with pytest.raises(ValueError, match=r"trace\.jsonl, line 2: KeyError\('hash_ids'\)"):
        read(path)
