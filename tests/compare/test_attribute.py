"""The split of a change is exact, antisymmetric, and separates fewer calls from cheaper calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.compare.attribute import Work, contributions, split
from profiler.results import FamilyRow

PEAK = 1153.5


def side(rows: list[tuple[str, float, float]], idle: float, flops: float | None, peak: float | None = PEAK):
    """A measured side with compute families (name, calls, time ps)."""
    families = tuple(FamilyRow("compute", name, None, calls, time, 0.0) for name, calls, time in rows)
    families += (FamilyRow("idle", "idle", None, None, idle, 0.0),)
    step = sum(row.time_ps_per_step for row in families)
    return SimpleNamespace(
        summary=SimpleNamespace(families=families),
        times=SimpleNamespace(step_ps=step),
        model_flops=flops,
        peak_tflops=peak,
    )


def mfu_points(measured) -> float:
    return 100 * measured.model_flops / (measured.times.step_ps * measured.peak_tflops)


amount = st.floats(1e3, 1e13)
rows = st.dictionaries(
    st.sampled_from(["gmm forward", "splash forward", "tgmm", "all-gather", "optimizer"]),
    st.tuples(st.one_of(st.just(0.0), st.integers(1, 600).map(float)), amount),
    min_size=1,
).map(lambda each: [(name, calls, time) for name, (calls, time) in each.items()])
sides = st.builds(side, rows, amount, st.floats(1e12, 1e16), st.sampled_from([PEAK, 918.0, 459.0]))


@given(sides, sides)
def test_contributions_sum_to_the_mfu_delta(baseline, optimized) -> None:
    work = Work("flop", baseline.model_flops, optimized.model_flops)
    parts = contributions(baseline, optimized, work)
    delta = mfu_points(optimized) - mfu_points(baseline)
    scale = mfu_points(optimized) + mfu_points(baseline) + sum(abs(part.mfu_points) for part in parts)
    assert sum(part.mfu_points for part in parts) == pytest.approx(delta, abs=1e-12 * scale)
    for part in parts:
        assert part.calls_points + part.per_call_points == pytest.approx(part.mfu_points, abs=1e-12 * scale)


@given(sides, sides)
def test_times_sum_to_the_time_delta_whether_or_not_mfu_is_known(baseline, optimized) -> None:
    work = Work("flop", baseline.model_flops, optimized.model_flops)
    baseline.peak_tflops = None
    parts = contributions(baseline, optimized, work)
    assert all(part.mfu_points is None for part in parts)
    total = baseline.times.step_ps + optimized.times.step_ps * work.scale
    delta = optimized.times.step_ps * work.scale - baseline.times.step_ps
    assert sum(part.time_ps for part in parts) == pytest.approx(delta, abs=1e-12 * total)
    assert sum(part.calls_time_ps + part.per_call_time_ps for part in parts) == pytest.approx(delta, abs=1e-11 * total)


@given(sides, sides)
def test_swapping_the_sides_flips_every_sign(baseline, optimized) -> None:
    optimized.peak_tflops = baseline.peak_tflops
    there = contributions(baseline, optimized, Work("flop", baseline.model_flops, optimized.model_flops))
    back = contributions(optimized, baseline, Work("flop", optimized.model_flops, baseline.model_flops))
    back_by_family = {part.family: part for part in back}
    # Relative to the parts, and to the MFU, whose rounding is what is left where the change is next to nothing.
    scale = sum(abs(part.mfu_points) for part in there) + 1e-6 * mfu_points(baseline)
    for part in there:
        other = back_by_family[part.family]
        assert other.mfu_points == pytest.approx(-part.mfu_points, abs=1e-9 * scale)
        assert other.calls_points == pytest.approx(-part.calls_points, abs=1e-9 * scale)


def test_a_bigger_batch_with_work_in_proportion_changes_nothing() -> None:
    baseline = side([("gmm forward", 144, 600e9)], 100e9, 4e12)
    optimized = side([("gmm forward", 144, 900e9)], 150e9, 6e12)
    parts = contributions(baseline, optimized, Work("flop", 4e12, 6e12))
    assert [part.mfu_points for part in parts] == pytest.approx([0, 0], abs=1e-12)


def test_an_optimizer_step_of_equal_length_is_amortised_by_a_bigger_batch_not_called_less_often() -> None:
    baseline = side([("optimizer", 1, 100e9)], 0, 4e12)
    optimized = side([("optimizer", 1, 100e9)], 0, 6e12)
    (part,) = [part for part in contributions(baseline, optimized, Work("flop", 4e12, 6e12)) if part.family != "idle"]
    assert part.calls_points == 0
    assert part.per_call_points > 0


def test_vanished_re_runs_are_calls_only() -> None:
    baseline = side([("splash forward", 96, 960e9)], 0, 4e12)
    optimized = side([("splash forward", 48, 480e9)], 0, 4e12)
    (part,) = [part for part in contributions(baseline, optimized, Work("flop", 4e12, 4e12)) if part.family != "idle"]
    assert part.per_call_points == pytest.approx(0, abs=1e-12)
    assert part.calls_points == pytest.approx(mfu_points(optimized) - mfu_points(baseline))
    assert part.calls_time_ps == -480e9


def test_another_peak_is_one_contribution_of_its_own() -> None:
    baseline, optimized = side([("tgmm", 1, 5e12)], 0, 4e12, 459.0), side([("tgmm", 1, 5e12)], 0, 4e12, 918.0)
    parts = {part.category: part.mfu_points for part in contributions(baseline, optimized, Work("flop", 4e12, 4e12))}
    assert parts["compute"] == 0
    assert parts["peak"] == pytest.approx(100 * 4e12 / 5e12 * (1 / 918 - 1 / 459))


@pytest.mark.parametrize(
    ("times", "calls", "expected"),
    [
        ((10, 20), (0, 0), (0, 10)),  # idle: no calls on either side
        ((10, 0), (5, 0), (-10, 0)),  # removed: all of it is calls
        ((0, 10), (0, 5), (10, 0)),  # added
        ((10, 20), (5, 0), (0, 10)),  # time without calls on one side: calls explain nothing
        ((10, 20), (5, 10), (10, 0)),  # twice as often
        ((10, 20), (5, 5), (0, 10)),  # twice as long
    ],
)
def test_a_change_splits_into_the_number_of_calls_and_the_time_per_call(times, calls, expected) -> None:
    assert split(*times, *calls) == pytest.approx(expected)
