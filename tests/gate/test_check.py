"""Whether a pair passes: every kind of threshold, noise, what cannot be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from profiler import results
from profiler.api import check
from profiler.gate.metrics import METRICS
from profiler.report import render_check
from profiler.report.output import Style

Pair = Callable[..., results.Diff]
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "check.schema.json"

# what the pair shows of each metric, in each kind of unit
SHOWN = [
    ("mfu", "%", -9.0909), ("mfu", "pt", -4.0), ("hfu", "%", -9.0909), ("hfu", "pt", -5.0),
    ("throughput", "%", -9.0909), ("step_time", "%", 10.0), ("step_time", "ms", 10.0), ("step_time", "us", 10_000.0),
    ("compute", "ms", 6.0), ("exposed_comm", "ms", 2.0), ("exposed_comm", "%", 20.0), ("exposed_transfer", "us", 500.0),
    ("wait", "ms", 0.5), ("idle", "ms", 1.0), ("idle", "%", 10.0), ("remat", "", 48.0), ("remat", "ms", 4.0),
    ("remat", "%", 50.0), ("hbm_peak", "%", 20.0), ("hbm_peak", "GiB", 10.0), ("hbm_allocated", "MiB", 10_240.0),
    ("hbm_window", "GiB", 10.0), ("loss", "%", 2.0), ("loss", "nats", 0.04),
]  # fmt: skip


def test_every_metric_is_tried() -> None:
    assert {metric for metric, _, _ in SHOWN} == set(METRICS)


@pytest.mark.parametrize(("metric", "unit", "change"), SHOWN)
def test_a_threshold_below_the_change_is_hit_and_one_above_is_not(
    pair: Pair, metric: str, unit: str, change: float
) -> None:
    operator = "<" if change < 0 else ">"
    for factor, code in ((0.98, 1), (1.02, 0)):
        found = check(pair(), [f"{metric}{operator}{change * factor:+.6f}{unit}"])
        assert found.exit_code == code
        assert found.rows[0].value == pytest.approx(change, rel=1e-4)
        assert found.rows[0].verdict == ("hit" if code else "pass")


@pytest.mark.parametrize("metric", ["mfu", "hfu", "throughput", "step_time"])
def test_a_change_within_the_noise_of_the_steps_fails_nothing(pair: Pair, metric: str) -> None:
    operator = ">" if metric == "step_time" else "<"
    found = check(pair(interval=(0.99, 1.21)), [f"{metric}{operator}0%"])
    assert (found.exit_code, found.rows[0].verdict, found.rows[0].noise) == (0, "within noise", "interval")
    low, high = found.rows[0].interval or (1, 1)
    assert low < 0 < high
    assert check(pair(interval=(1.08, 1.12)), [f"{metric}{operator}0%"]).exit_code == 1


@pytest.mark.parametrize("metric", ["compute", "exposed_comm", "exposed_transfer", "wait", "idle"])
def test_a_change_within_the_noise_of_its_own_steps_fails_nothing(pair: Pair, metric: str) -> None:
    assert check(pair(reach=4.0), [f"{metric}>0"]).rows[0].verdict == "within noise"
    assert check(pair(reach=0.1), [f"{metric}>0"]).exit_code == 1


def test_noise_makes_up_for_no_gain_that_is_asked_for(pair: Pair) -> None:
    diff = pair(interval=(0.80, 1.02))
    better = replace(diff, delta=replace(diff.delta, throughput_ratio=1.1, optimized_time_ps=91e9))
    found = check(better, ["throughput<+5%"])
    assert (found.exit_code, found.rows[0].verdict) == (1, "hit")
    assert "within the noise" in found.rows[0].remark


def test_with_a_single_sample_the_point_value_decides_and_that_is_said(pair: Pair) -> None:
    found = check(pair(interval=None, reach=None), ["step_time>+9%", "idle>+2ms"])
    assert [row.verdict for row in found.rows] == ["hit", "pass"]
    assert {row.noise for row in found.rows} == {"unknown"}
    assert "noise_unknown" in {note.code for note in found.warnings}


def test_compiled_profiles_have_no_noise_and_are_said_to_be_estimates(pair: Pair) -> None:
    diff = pair(interval=(1.1, 1.1), reach=0.0, kind="compiled")
    banded = replace(diff, delta=replace(diff.delta, band=(1.05, 1.15)))
    found = check(banded, ["step_time>+9%", "idle>+0.9ms"])
    assert [row.verdict for row in found.rows] == ["hit", "hit"]
    assert {row.noise for row in found.rows} == {"estimate"}
    assert "+5.0 % to +15.0 %" in found.rows[0].remark
    assert "estimates" in {note.code for note in found.warnings}


def test_estimates_made_differently_tell_nothing_of_times(pair: Pair) -> None:
    note = results.Note("estimates_differ", "made differently")
    found = check(pair(kind="compiled", reach=0.0, warnings=(note,)), ["mfu<0", "idle>0", "remat>0ms", "hbm_peak>0"])
    assert [row.verdict for row in found.rows] == ["unknown", "unknown", "unknown", "hit"]
    assert check(pair(kind="compiled", reach=0.0, warnings=(note,)), ["remat>0"]).rows[0].verdict == "hit"


def test_what_cannot_be_told_fails_unless_allowed(pair: Pair) -> None:
    diff = pair(loss=None)
    assert check(diff, ["loss>+1%"]).exit_code == 1
    assert check(diff, ["loss>+1%"]).rows[0].verdict == "unknown"
    assert check(diff, ["loss>+1%"], allow_unknown=True).exit_code == 0
    assert check(diff, ["idle>+9ms"], ["loss>+1%"]).exit_code == 0


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_a_pair_that_tells_nothing_is_checked_without_a_guess(pair: Pair, metric: str) -> None:
    diff = pair(loss=None)
    empty = {"mfu": None, "hfu": None, "memory": results.Memory(), "phases": ()}
    base, opt = (replace(side, **empty) for side in (diff.baseline, diff.optimized))
    note = results.Note("mostly_idle", "mostly idle")
    bare = replace(
        diff, baseline=base, optimized=opt, warnings=(note,), contributions=(),
        delta=replace(diff.delta, throughput_ratio=None),
    )  # fmt: skip
    row = check(bare, [f"{metric}>0"]).rows[0]
    known = metric in ("step_time", "compute", "exposed_comm", "exposed_transfer", "wait")
    assert (row.verdict != "unknown") == known
    assert known or row.remark


def test_warnings_are_said_and_fail_nothing(pair: Pair) -> None:
    found = check(pair(), ["idle>+9ms"], ["hbm_peak>+5%"])
    assert (found.exit_code, found.warned, found.hits) == (0, 1, 0)
    text = render_check(found, "text", Style()).decode()
    assert "WARN" in text
    assert text.startswith("Passed")


def test_a_percentage_of_nothing_is_a_hit_without_a_number(pair: Pair) -> None:
    diff = pair()
    base = replace(diff.baseline, memory=replace(diff.baseline.memory, window_peak_bytes=0))
    row = check(replace(diff, baseline=base), ["hbm_window>+5%"]).rows[0]
    assert (row.verdict, row.value) == ("hit", None)


def test_losses_within_rounding_are_no_change(pair: Pair) -> None:
    diff = pair()
    assert diff.loss is not None
    same = replace(diff.loss, unchanged=True, tolerance=0.05)
    assert check(replace(diff, loss=same), ["loss>+0.1%"]).rows[0].verdict == "within noise"
    settings = replace(diff.loss, kind="settings", unchanged=None)
    assert check(replace(diff, loss=settings), ["loss>+0.1%"]).rows[0].verdict == "unknown"
    tokens = replace(diff.loss, kind="tokens", difference=0.02, tolerance=0.01)
    assert check(replace(diff, loss=tokens), ["loss>+0.015nats"]).rows[0].value == pytest.approx(0.02)


def test_a_file_against_itself_passes_everything(pair: Pair) -> None:
    diff = pair(interval=(1.0, 1.0))
    delta = results.Delta(0.0, 1.0, 1.0, False, (1.0, 1.0), 1e11, 1e11)
    same = replace(diff, optimized=diff.baseline, delta=delta)
    found = check(same, ["step_time>0", "mfu<0", "hbm_peak>0", "remat>0", "throughput<0"])
    assert found.exit_code == 0
    assert {row.value for row in found.rows} == {0.0}


@pytest.mark.parametrize("diff_options", [{}, {"interval": None, "reach": None}, {"kind": "compiled"}, {"loss": None}])
def test_the_json_keeps_its_schema(pair: Pair, diff_options: Any) -> None:
    thresholds = [f"{metric}>0" for metric in METRICS]
    document = json.loads(render_check(check(pair(**diff_options), thresholds, ["idle>+1s"]), "json", Style()))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert len(document["rows"]) == len(thresholds) + 1


def test_a_comment_has_room_for_any_number_of_thresholds(pair: Pair) -> None:
    diff = replace(pair(loss=None), verdict="slower " * 2000, warnings=(results.Note("a", "b|" * 9000),) * 40)
    many = [f"{metric}>{step:+d}%" for metric in METRICS for step in range(1, 30)]
    text = render_check(check(diff, many), "markdown", Style()).decode()
    assert len(text) <= 5000
    assert "FAIL" in text
    assert "more rows" in text


def test_what_decides_stands_first_for_people(pair: Pair) -> None:
    found = check(pair(), ["idle>+9ms", "hbm_peak>+5%"], ["mfu<-1%"])
    for how in ("text", "markdown"):
        text = render_check(found, how, Style()).decode()
        assert text.index("FAIL") < text.index("WARN") < text.index("ok")
