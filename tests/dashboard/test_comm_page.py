"""The page "Communication": what it says is what ``profiler diff`` and ``profiler comm`` say."""

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

TINY = {"base": "tiny-qwen3/baseline.xplane.pb.gz", "opt": "tiny-qwen3/optimized.xplane.pb.gz"}
ALONE = {"base": "cpu-remat/baseline.xplane.pb.gz", "opt": "cpu-remat/optimized.xplane.pb.gz"}


def shown(app: Any) -> str:
    """All HTML of the page, as text; every cell between bars."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"(\s*\|\s*)+", "|", unescape(re.sub(r"<[^>]+>", "|", markup)))


def said(run_cli: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_cli(*arguments, "--format", "json").stdout)
    return found


def test_exposed_time_of_every_kind_is_that_of_profiler_diff(open_page: Any, run_cli: Any) -> None:
    app = open_page("comm", **TINY)
    assert not app.exception
    diff = said(run_cli, "diff", *(path(name) for name in TINY.values()))
    rows = diff["communication"]["rows"]
    text = shown(app)
    scale = units.time_scale(row[f"{side}_in_flight_ps"] for row in rows for side in ("baseline", "optimized"))
    small = 0.0005 * max(diff["delta"][f"{side}_time_ps"] for side in ("baseline", "optimized"))
    large = [row for row in rows if max(row["baseline_in_flight_ps"], row["optimized_in_flight_ps"]) >= small]
    assert len(large) >= 2
    for row in large:
        both = [scale.show(row[f"{side}_exposed_ps"]) for side in ("baseline", "optimized")]
        assert f"|{' → '.join(dict.fromkeys(both))}|" in text
    (drawn,) = app.get("plotly_chart")
    bars = json.loads(drawn.proto.spec)["data"]
    assert [bar["name"] for bar in bars] == [
        f"{s}, {p}" for s in ("baseline", "optimized") for p in ("exposed", "hidden")
    ]


def test_waits_are_those_of_profiler_comm(open_page: Any, run_cli: Any) -> None:
    text = shown(open_page("comm", **TINY))
    reports = [said(run_cli, "comm", path(name)) for name in TINY.values()]
    scale = units.time_scale(report["step_ps"] for report in reports)
    for wait in reports[0]["waits"]:
        other = next((row["time_ps"] for row in reports[1]["waits"] if row["cause"] == wait["cause"]), None)
        assert (
            f"|{wait['cause']}|{scale.show(wait['time_ps'])}|{scale.show(other) if other is not None else '–'}|" in text
        )


def test_a_run_on_one_device_says_that_nothing_moves_and_still_what_it_waits_for(open_page: Any) -> None:
    app = open_page("comm", **ALONE)
    assert not app.exception
    text = shown(app)
    assert "Neither side moves anything" in text
    assert "idle, cause not known" in text
    assert not app.get("plotly_chart")


def test_compiled_times_are_labelled(open_page: Any) -> None:
    app = open_page("comm")
    assert not app.exception
    assert "Estimate." in shown(app)
    assert "of links" in shown(app)
    axis = json.loads(app.get("plotly_chart")[0].proto.spec)["layout"]["xaxis"]["title"]["text"]
    assert axis.endswith("(est.)")


def test_bytes_and_bandwidth_are_those_of_profiler_comm(open_page: Any, run_cli: Any) -> None:
    text = shown(open_page("comm"))
    rows = said(run_cli, "comm", path("qwen3-30b/baseline.xplane.pb"))["rows"]
    known = [row for row in rows if row["bytes_per_s"] is not None]
    assert known
    for row in known:
        assert f"|{units.number(row['bytes_per_s'] / 1e9)}|" in text
        assert f"|{units.percent(row['link_fraction'], 0)}|" in text


@pytest.mark.recordings
def test_a_serving_recording_says_what_all_of_it_waits_for(open_page: Any, recordings: Path) -> None:
    name = str(recordings / "tpu_v6e_inference.xplane.pb")
    app = open_page("comm", paths=(str(recordings),), base=name, opt=name)
    assert not app.exception
    assert "The whole recording" in shown(app)
    assert "83.6 %" in shown(app)
