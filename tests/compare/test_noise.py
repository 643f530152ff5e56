"""Noise is told from change: Welch's interval, no interval from single samples, none for a file against itself."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import profiler
from profiler.compare.noise import MOST_LENGTHS, interval, lengths, samples, significant


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


def test_every_step_is_there_to_look_at_and_of_thousands_an_even_spread() -> None:
    found = lengths(side([3.0, 5.0, 4.0]), side(np.arange(1001.0)))
    assert found is not None
    assert found.baseline_ps == (3.0, 5.0, 4.0)
    assert (len(found.optimized_ps), found.optimized_count) == (MOST_LENGTHS, 1001)
    assert (found.optimized_ps[0], found.optimized_ps[-1]) == (0.0, 1000.0)
    assert lengths(side([1.0, 1.0]), side([1.0], unit="run")) is None


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


# --- every contribution by itself


def steps_of(tpu_space, saved, name: str, adds: list[int], dots: list[int]) -> str:
    """A recording whose steps are an add, a dot and ten idle ps."""
    ops, marks, now = [], [], 0
    for add, dot in zip(adds, dots, strict=True):
        ops += [("add.1", now, add), ("dot.2", now + add, dot)]
        marks.append(("s", now, 10))
        now += add + dot + 10
    return saved(tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": [*marks, ("s", now, 10)]}}), name)


@pytest.fixture
def pair(tpu_space, saved):
    base = steps_of(tpu_space, saved, "a.xplane.pb", [1000, 1010, 990, 1000], [500, 700, 300, 500])
    opt = steps_of(tpu_space, saved, "b.xplane.pb", [800, 810, 790, 800], [480, 690, 310, 500])
    return profiler.diff(base, opt), profiler.diff(opt, base), profiler.diff(base, base)


def by_family(diff):
    return {part.family: part for part in diff.contributions}


def test_a_category_is_tested_by_its_own_steps(pair) -> None:
    parts = by_family(pair[0])
    add, dot = parts["norm / elementwise"], parts["dense matmul"]
    assert (add.significant, dot.significant) == (True, False)
    result = stats.ttest_ind([800, 810, 790, 800], [1000, 1010, 990, 1000], equal_var=False).confidence_interval()
    assert add.interval_time_ps == pytest.approx((result.low, result.high))
    assert dot.interval_time_ps[0] < 0 < dot.interval_time_ps[1]


def test_swapping_the_sides_turns_every_interval_round(pair) -> None:
    there, back = by_family(pair[0]), by_family(pair[1])
    for family, part in there.items():
        low, high = back[family].interval_time_ps
        assert part.interval_time_ps == pytest.approx((-high, -low))
        assert part.significant == back[family].significant


def test_a_file_against_itself_has_no_significant_part_and_shows_it(pair) -> None:
    from profiler.report import render_diff
    from profiler.report.output import Style

    assert {part.significant for part in pair[2].contributions} == {False}
    text = render_diff(pair[2], "text", Style()).decode()
    table = text[text.index("What the change is made of") :].split("\n\n")[0]
    assert table.count("~") == len(pair[2].contributions) + 1  # the caption explains it


def test_single_samples_tell_nothing_of_any_category(tpu_space, saved) -> None:
    one, many = (steps_of(tpu_space, saved, f"{n}.xplane.pb", [100] * n, [50] * n) for n in (1, 4))
    parts = profiler.diff(one, many).contributions
    assert {(part.significant, part.interval_time_ps, part.interval_points) for part in parts} == {(None, None, None)}


def test_any_difference_of_compiled_profiles_is_significant() -> None:
    from profiler.compare.noise import with_noise
    from profiler.results import Contribution

    def part(before: float, after: float) -> Contribution:
        return Contribution("compute", "gmm", None, None, before, after, 1, 1, None, None, after - before)

    sides = side([5.0], kind="compiled"), side([4.0], kind="compiled")
    found = with_noise([part(5.0, 4.999), part(2.0, 2.0)], *sides, 1.0, None)
    assert [each.significant for each in found] == [True, False]
    assert found[0].interval_time_ps == pytest.approx((-0.001, -0.001))


def test_the_groups_of_every_step_sum_to_it_and_their_means_to_the_families(tpu_space, saved) -> None:
    from profiler.analysis.summary import measure
    from profiler.api import Options, load

    path = steps_of(tpu_space, saved, "a.xplane.pb", [1000, 1010, 990], [500, 700, 300])
    measured = measure(load(path), Options())
    times = measured.times
    assert times.group_steps.sum(axis=1) == pytest.approx(times.lengths_ps)
    means = dict(zip([*times.groups, ("idle", "idle", None)], times.group_steps.mean(axis=0), strict=True))
    for row in measured.summary.families:
        assert means[row.category, row.family, row.phase] == pytest.approx(row.time_ps_per_step)
