"""The page "Attention & remat": what it says is what ``profiler diff`` and ``profiler remat`` say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from profiler.report import units
from sample_profiles import path

PAIR = {"base": "qwen3-30b/baseline.xplane.pb", "opt": "qwen3-30b/optimized.xplane.pb"}
CPU = {"base": "cpu-remat/baseline.xplane.pb.gz", "opt": "cpu-remat/optimized.xplane.pb.gz"}


def shown(app: Any) -> str:
    """All HTML of the page, as text; every cell between bars."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"(\s*\|\s*)+", "|", unescape(re.sub(r"<[^>]+>", "|", markup)))


def drawn(app: Any, axis: str) -> dict[str, Any]:
    """The figure whose first axis says this."""
    specs = [json.loads(each.proto.spec) for each in app.get("plotly_chart")]
    (found,) = [spec for spec in specs if spec["layout"]["xaxis"]["title"]["text"].startswith(axis)]
    return found


@pytest.fixture(scope="module")
def said(run_cli: Callable[..., Any]) -> list[dict[str, Any]]:
    """What ``profiler remat`` says of both sides."""
    return [json.loads(run_cli("remat", path(name), "--format", "json").stdout) for name in PAIR.values()]


def test_calls_per_phase_and_layer_are_those_of_both_recordings(open_page: Any) -> None:
    app = open_page("attention", **PAIR)
    assert not app.exception
    text = shown(app)
    # splash forward: once per layer in the teacher and the student's forward; the re-run is what one side keeps away
    assert "|splash forward|48|1 per layer|48|1 per layer|48 → 0|1 → 0 per layer|–|144 → 96|3 → 2 per layer|" in text
    assert "|splash backward (fused)|–|–|–|48|1 per layer|48|1 per layer|" in text
    assert "|splash forward|q_layout|HEAD_DIM_MINOR|SEQ_MINOR|teacher, student forward|" in text


def test_re_runs_are_those_of_profiler_diff_and_remat(open_page: Any, said: Any, run_cli: Any) -> None:
    text = shown(open_page("attention", **PAIR))
    for report in said:
        assert units.percent(report["fraction"]) in text
    diff = json.loads(run_cli("diff", *(path(name) for name in PAIR.values()), "--format", "json").stdout)
    base, opt = ({row["family"]: row for row in diff[side]["remat"]["by_family"]} for side in ("baseline", "optimized"))
    times = [row["time_ps_per_step"] for side in (base, opt) for row in side.values()]
    scale = units.time_scale(times)
    for family, row in base.items():
        other = opt.get(family, {"time_ps_per_step": 0.0})
        cells = "|".join(scale.show(each["time_ps_per_step"]) for each in (row, other))
        assert re.search(rf"\|{re.escape(family)}\|[^|]+\|{re.escape(cells)}\|", text)
    scopes = units.time_scale(row["time_ps_per_step"] for report in said for row in report["ops"])
    for row in said[0]["ops"][:10]:
        assert f"|{scopes.show(row['time_ps_per_step'])}|" in text
        assert f"|{row['scope']}|{row['family']}|" in text


@pytest.mark.parametrize(("side", "number"), [("baseline", 0), ("optimized", 1)])
def test_what_keeping_costs_is_drawn_for_either_side(open_page: Any, said: Any, side: str, number: int) -> None:
    app = open_page("attention", **PAIR, attention_side=side)
    assert not app.exception
    options = said[number]["options"]
    figure = drawn(app, "HBM")
    labels = [text for trace in figure["data"] for text in trace["text"]]
    assert sorted(name for text in labels for name in text.split(", ")) == sorted(row["tensor"] for row in options)
    free = said[number]["capacity_bytes"] - said[number]["static_allocated_bytes"]
    fitting = {
        name
        for trace in figure["data"]
        if trace["name"] == "fits"
        for text in trace["text"]
        for name in text.split(", ")
    }
    assert fitting == {row["tensor"] for row in options if row["bytes"] <= free}
    (line,) = figure["layout"]["shapes"]
    assert line["x0"] == pytest.approx(free / 2**30)
    text = shown(app)
    assert f"room left in HBM: {units.size(free)}" in text
    largest = max(options, key=lambda row: row["saved_time_ps_per_step"])
    xs = [x for trace in figure["data"] for x in trace["x"]]
    assert max(xs) == pytest.approx(largest["bytes"] / 2**30)
    for row in said[number]["kept"]:
        assert f"|{row['tensor']}|" in text


def test_collectives_that_run_again_stand_with_what_the_backward_pass_needs(open_page: Any, said: Any) -> None:
    text = shown(open_page("attention", **PAIR))
    both = [{(row["family"], row["scope"]): row for row in report["collectives"]} for report in said]
    scale = units.time_scale(row["exposed_time_ps_per_step"] for side in both for row in side.values())
    for key, row in both[0].items():
        other = both[1].get(key)
        cells = [scale.show(each["exposed_time_ps_per_step"]) if each else "–" for each in (row, other)]
        assert re.search(rf"\|{re.escape('|'.join(key))}\|[^|]+\|{re.escape('|'.join(cells))}\|(yes|no)", text)


def test_without_kernels_the_time_of_attention_is_shown_all_the_same(open_page: Any) -> None:
    app = open_page("attention", **CPU)
    assert not app.exception
    text = shown(app)
    assert "No attention kernel ran on either side: XLA compiled attention itself" in text
    assert "|attention|re-run|compute|" in text
    assert not any("time per call" in str(each.proto.spec) for each in app.get("plotly_chart"))


def test_a_recording_without_re_runs_says_so(open_page: Any, recordings: Path) -> None:
    found = str(recordings / "gfx950_fused_attention.xplane.pb")
    app = open_page("attention", paths=(str(recordings),), base=found, opt=found)
    assert not app.exception
    text = shown(app)
    assert "Nothing is seen to run again on either side" in text
    assert "te_fused_attn_forward_ffi" in text
    assert "The block sizes are not known" in text
