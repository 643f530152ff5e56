"""Noise is told from change: Welch's interval, no interval from single samples, none for a file against itself."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import profiler
from profiler.compare.noise import interval, samples, significant


def side(lengths, *, devices: int = 1, recordings: int = 1, unit: str = "step", kind: str = "recorded"):
    values = np.asarray(lengths, np.float64)
    return SimpleNamespace(
        trace=SimpleNamespace(kind=kind, recordings=recordings),
        times=SimpleNamespace(
            unit=unit, lengths_ps=values, device_steps=(len(values) // devices,) * devices, step_ps=float(values.mean())
        ),
    )


steps = st.lists(st.floats(50, 150), min_size=3, max_size=30)


@given(steps, steps)
def test_swapping_the_sides_turns_the_interval_round(before, after) -> None:
    there, back = interval(side(before), side(after), 1.0), interval(side(after), side(before), 1.0)
    assert there is not None
    assert back is not None
    assert there[0] == pytest.approx(1 / back[1])
    assert there[1] == pytest.approx(1 / back[0])
    assert significant(there) == significant(back)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_small_noise_agrees_with_welch_on_the_difference(seed) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.normal(100, 1, 12), rng.normal(100.8, 1, 9)
    result = stats.ttest_ind(after, before, equal_var=False)
    if abs(result.pvalue - 0.05) > 0.01:
        assert significant(interval(side(before), side(after), 1.0)) == (result.pvalue < 0.05)


def test_noise_alone_is_hardly_ever_called_a_change() -> None:
    rng = np.random.default_rng(0)
    wrong = sum(
        bool(significant(interval(side(rng.normal(100, 5, 8)), side(rng.normal(100, 5, 8)), 1.0))) for _ in range(1000)
    )
    assert 20 <= wrong <= 80  # 5 % of 1000


def test_a_file_against_itself_is_never_significant() -> None:
    same = side([3.0, 3.0, 4.0])
    assert interval(same, same, 1.0) == (1.0, 1.0)
    assert significant((1.0, 1.0)) is False


def test_a_single_sample_says_nothing() -> None:
    assert interval(side([5.0]), side([4.0, 4.1]), 1.0) is None
    assert interval(side([5.0, 5.1], unit="run"), side([4.0, 4.1]), 1.0) is None
    assert significant(None) is None


def test_compiled_profiles_have_no_noise() -> None:
    bounds = interval(side([5.0], kind="compiled"), side([4.0], kind="compiled"), 1.0)
    assert bounds == (0.8, 0.8)
    assert significant(bounds)


def test_the_work_of_a_bigger_batch_scales_the_times() -> None:
    bounds = interval(side([10.0, 10.2, 9.8]), side([15.0, 15.3, 14.7]), 2 / 3)
    assert bounds is not None
    assert bounds[0] < 1 < bounds[1]


def test_devices_of_one_recording_step_together_and_recordings_apart() -> None:
    assert samples(side([1.0, 2.0, 3.0, 4.0], devices=2)).tolist() == [2.0, 3.0]
    assert samples(side([1.0, 2.0, 3.0, 4.0], devices=2, recordings=2)).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_change_within_noise_is_no_verdict(tpu_space, saved) -> None:
    def path(name: str, lengths: list[int]) -> str:
        starts = np.cumsum([0, *lengths]).tolist()
        ops = [("add.1", start, length // 2) for start, length in zip(starts, lengths, strict=False)]
        return saved(tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": [("s", start, 10) for start in starts]}}), name)

    base = path("a.xplane.pb", [1000, 1100, 900, 1050, 950, 1000])
    noisy = path("b.xplane.pb", [1020, 1120, 890, 1080, 940, 1010])
    faster = path("c.xplane.pb", [500, 550, 450, 525, 475, 500])
    within, clear = profiler.diff(base, noisy), profiler.diff(base, faster)
    assert within.delta.significant is False
    assert within.verdict.startswith("No clear change, within noise: step")
    assert clear.delta.significant is True
    assert clear.verdict.startswith("Faster: step")
    assert {finding.confidence for finding in clear.findings} == {"high"}
