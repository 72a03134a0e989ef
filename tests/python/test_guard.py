"""What the comparison with the merge base calls worse."""

import pytest

from benches.guard import judge

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]
LIMIT = 0.05


def scaled(by: float) -> list[float]:
    return [value * by for value in STEADY]


@pytest.mark.parametrize(
    ("metric", "by", "fails"),
    [
        ("rate_mb_per_s", 0.93, True),
        ("rate_mb_per_s", 0.96, False),
        ("rate_mb_per_s", 1.5, False),
        ("keys_per_s", 0.93, True),
        ("cpu_s_per_gb", 1.07, True),
        ("cpu_s_per_gb", 1.04, False),
        ("cpu_s_per_gb", 0.5, False),
    ],
)
def test_less_of_a_rate_and_more_time_fail_past_the_limit(
    metric: str, by: float, fails: bool
) -> None:
    verdict = judge(f"load 4 KiB, {metric}", STEADY, scaled(by))
    assert verdict.fails(LIMIT) is fails
    assert verdict.tree / verdict.base == pytest.approx(by)
    # Each round of the one is as much slower as the others.
    assert verdict.noise == pytest.approx(0)


def test_what_the_noise_may_have_done_does_not_fail() -> None:
    noisy = [100.0, 140.0, 60.0, 125.0, 75.0]
    for base, tree, noise in ((noisy, scaled(0.9), 0.330), (scaled(1.1), noisy, 0.313)):
        verdict = judge("store 1 MiB, rate_mb_per_s", base, tree)
        assert verdict.noise == pytest.approx(noise, abs=0.001)
        assert not verdict.fails(LIMIT)
    assert judge("store 1 MiB, rate_mb_per_s", noisy, scaled(0.4)).fails(LIMIT)
