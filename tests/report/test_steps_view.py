"""The steps of both sides in words, tables and figures: devices beside each other, metrics over each other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_profiles
from profiler import api
from profiler.analysis.stepspread import DeviceSteps, device_steps
from profiler.compare.devicetime import busy_device_steps
from profiler.report import steps_view
from profiler.report.figures_devices import MOST_DEVICES, spread_figure
from profiler.report.figures_metrics import MOST_METRICS, MOST_POINTS, metric_figures
from profiler.results import Note

MS = 1e9


def test_the_devices_steps_are_those_of_the_summary() -> None:
    side = api.measured(str(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz")))
    (only,) = device_steps(side)
    steps = side.summary.steps
    assert (only.count, only.mean_ps, only.median_ps) == (steps.count, steps.mean_ps, steps.median_ps)
    assert only.least_ps <= only.p10_ps <= only.median_ps <= only.p90_ps <= only.most_ps
    (busy,) = busy_device_steps(side)
    assert math.isclose(busy.mean_ps, only.busy_ps, rel_tol=1e-12)


@pytest.mark.recordings
def test_the_mean_of_the_devices_means_is_the_mean_step(recordings: Any) -> None:
    side = api.measured(str(recordings / "mi300x_conv_new.xplane.pb"))
    found = device_steps(side)
    assert [each.name for each in found] == [f"GPU:{number}" for number in range(8)]
    assert math.isclose(np.mean([each.mean_ps for each in found]), side.summary.steps.mean_ps, rel_tol=1e-12)


def device(name: str, mean: float) -> DeviceSteps:
    return DeviceSteps(name, "host-0", 5, mean, mean, mean * 0.9, mean * 1.1, mean * 0.8, mean * 1.2, mean * 0.7)


def test_devices_of_one_name_share_a_row_and_one_device_needs_no_figure() -> None:
    assert spread_figure([device("GPU:0", MS)], [device("GPU:0", MS)]) is None
    figure = spread_figure([device("GPU:7", MS)], [device("GPU:0", MS), device("GPU:7", 2 * MS)])
    assert figure is not None
    assert [row.name for row in figure.rows] == ["GPU:7", "GPU:0"]
    assert figure.rows[1].baseline is None
    assert figure.rows[0].optimized is not None
    assert figure.rows[0].optimized.mean == 2 * MS / figure.scale.divisor


def test_of_many_devices_the_odd_ones_are_drawn() -> None:
    many = [device(f"TPU:{number}", (3 if number == 170 else 1) * MS) for number in range(200)]
    figure = spread_figure(many, many)
    assert figure is not None
    assert (len(figure.rows), figure.hidden) == (MOST_DEVICES, 200 - MOST_DEVICES)
    assert "TPU:170" in {row.name for row in figure.rows}


def info(*rows: Any) -> dict[str, Any]:
    return {"metrics": list(rows)}


def test_a_metric_of_both_sides_has_both_curves_and_their_difference() -> None:
    base = info({"step": 1, "tokens": 10, "loss": 2.0}, {"step": 2, "tokens": 20, "loss": 1.5})
    opt = info({"step": 2, "tokens": 20, "loss": 1.25, "mine": 3}, {"step": 3, "loss": 1.0})
    loss, tokens, mine = metric_figures(base, opt)
    assert (loss.name, tokens.name, mine.name) == ("loss", "tokens", "mine")
    assert loss.baseline is not None
    assert loss.baseline.values == (2.0, 1.5)
    assert loss.optimized is not None
    assert loss.optimized.tokens == (20.0, None)
    assert loss.difference == ((2.0, -0.25),)
    assert (mine.baseline, mine.title) == (None, "mine")
    assert metric_figures(None, None) == ()
    assert metric_figures({"metrics": "none"}, {"metrics": [1, "x", None]}) == ()


def test_what_is_no_number_is_counted_and_not_drawn() -> None:
    rows = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": 1.0}, {"step": 3, "loss": math.inf}, {"step": 4}]
    (loss,) = metric_figures(info(*rows), info({"step": 2, "loss": True}))
    assert loss.baseline is not None
    assert (loss.baseline.values, loss.baseline.broken, loss.baseline.count) == ((1.0,), 2, 1)
    assert loss.optimized is None
    assert loss.difference == ()


def test_a_long_run_is_thinned_and_many_metrics_are_cut() -> None:
    rows = [{"step": number, "loss": float(number)} for number in range(10_000)]
    (loss,) = metric_figures(info(*rows), info(*rows))
    assert loss.baseline is not None
    assert (len(loss.baseline.values), loss.baseline.count) == (MOST_POINTS, 10_000)
    assert (loss.baseline.steps[0], loss.baseline.steps[-1]) == (0, 9999)
    assert len(metric_figures(info({"step": 0, **{f"m{n}": n for n in range(100)}}), None)) == MOST_METRICS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["step", "tokens", "loss", "x"]), JSON, max_size=4) | JSON, max_size=6)


@given(ROWS | JSON, ROWS | JSON)
def test_no_metrics_whatever_they_hold_break_a_figure(base: Any, opt: Any) -> None:
    for figure in metric_figures({"metrics": base}, {"metrics": opt}):
        for curve in (figure.baseline, figure.optimized):
            assert curve is None or all(map(math.isfinite, curve.values))
            assert curve is None or len(curve.values) == len(curve.steps) == len(curve.tokens)


def test_a_longer_step_of_more_work_is_not_judged_and_the_time_for_equal_work_is(make: Any) -> None:
    diff = make.training()
    for normalization, judged in (("step", True), ("flop", False)):
        each = replace(diff, normalization=normalization)
        assert steps_view.scaled(each) is not judged
        table = steps_view.steps_table(each)
        row = next(row for row in table.rows if row[0].text.startswith("mean"))
        assert bool(row[3].tone) is judged
        assert any(row[0].text.startswith("for equal") for row in table.rows) is not judged
        headline, more = steps_view.steps_text(each)
        assert headline.startswith("Mean step" if judged else "Time for equal model FLOPs")
        assert (more is None) is judged


def test_the_words_say_what_is_timed(make: Any) -> None:
    diff = replace(make.training(), normalization="step")
    assert steps_view.steps_text(diff)[0].startswith("Mean step ")
    host = replace(diff, warnings=(Note("mostly_idle", "x"),))
    assert steps_view.steps_text(host)[0].startswith("Mean device time of a step ")
    assert not any(row[0].text == "busy" for row in steps_view.steps_table(host).rows)
    other = replace(diff, optimized=replace(diff.optimized, steps=replace(diff.optimized.steps, unit="run")))
    assert steps_view.steps_text(other)[0] == "The baseline is timed per step, the optimized side per run"


def test_estimates_are_marked_in_words_and_columns(make: Any) -> None:
    diff = make.training()
    diff = replace(diff, baseline=replace(diff.baseline, kind="compiled"))
    assert "baseline estimated" in steps_view.steps_text(diff)[0]
    assert [each.title for each in steps_view.steps_table(diff).columns] == ["", "baseline (est.)", "optimized", "Δ"]


def test_only_warnings_about_steps_are_said_of_them(make: Any) -> None:
    diff = make.training()
    slow, other = Note("slow_first_step", "slow"), Note("peak_differs", "peak")
    diff = replace(
        diff, warnings=(Note("few_steps", "few"), other), baseline=replace(diff.baseline, warnings=(slow, other))
    )
    assert [(where, note.code) for where, note in steps_view.steps_notes(diff)] == [
        ("comparison", "few_steps"), ("baseline", "slow_first_step")
    ]  # fmt: skip
