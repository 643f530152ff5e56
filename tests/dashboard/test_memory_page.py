"""The page "Memory": what it says is what ``profiler diff`` and ``profiler memory`` say."""

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

GIB = 1 << 30
REMAT = {"base": "cpu-remat/baseline.xplane.pb.gz", "opt": "cpu-remat/optimized.xplane.pb.gz"}
QWEN = {"base": "qwen3-30b/baseline.xplane.pb", "opt": "qwen3-30b/optimized.xplane.pb"}
OFFLOAD = {"base": "qwen3-30b-pdbs8/baseline.xplane.pb.gz", "opt": "qwen3-30b-pdbs8/optimized.xplane.pb.gz"}


def shown(app: Any) -> str:
    """All HTML of the page, as text; every cell between bars."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"(\s*\|\s*)+", "|", unescape(re.sub(r"<[^>]+>", "|", markup)))


def said(run_cli: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_cli(*arguments, "--format", "json").stdout)
    return found


def curves(app: Any) -> dict[str, dict[str, Any]]:
    (drawn,) = app.get("plotly_chart")
    return {trace.get("name", ""): trace for trace in json.loads(drawn.proto.spec)["data"]}


def test_groups_and_their_sum_are_those_of_profiler_diff(open_page: Any, run_cli: Any) -> None:
    app = open_page("memory", **QWEN)
    assert not app.exception
    diff = said(run_cli, "diff", *(path(name) for name in QWEN.values()))
    text = shown(app)
    groups = diff["memory"]["groups"]
    sums = [sum(row[f"{side}_bytes"] for row in groups) for side in ("baseline", "optimized")]
    assert sums == [diff[side]["memory"]["static_peak_bytes"] for side in ("baseline", "optimized")]
    scale = units.byte_scale(sums)
    assert f"sum of the groups = static peak|{scale.show(sums[0])}|{scale.show(sums[1])}|" in text
    large = [row for row in groups if max(row["baseline_bytes"], row["optimized_bytes"]) > 0.001 * sums[1]]
    assert len(large) >= 5
    for row in large:
        assert f"|{row['group']}|{scale.show(row['baseline_bytes'])}|{scale.show(row['optimized_bytes'])}|" in text


def test_the_curves_reach_the_peaks_and_say_what_is_placed(open_page: Any, run_cli: Any) -> None:
    drawn = curves(open_page("memory", **QWEN))
    for side, name in (("baseline", QWEN["base"]), ("optimized", QWEN["opt"])):
        report = said(run_cli, "memory", path(name))
        heights = drawn[side]["y"]
        assert len(heights) == len(report["curve"]["points"])
        peak = max(range(len(heights)), key=lambda at: heights[at])
        highest = report["curve"]["highest"][0]
        assert heights[peak] == pytest.approx(highest["bytes"] / GIB)
        assert units.size(highest["bytes"]) in drawn[side]["hovertext"][peak]
        assert highest["phase"] in drawn[side]["hovertext"][peak]


def test_all_tensors_of_a_side_are_there_and_sum_to_its_peak(open_page: Any, run_cli: Any) -> None:
    app = open_page("memory", **QWEN)
    for side in ("baseline", "optimized"):
        app.segmented_control(key="memory_side").set_value(side).run()
        assert not app.exception
        report = said(run_cli, "memory", path(QWEN["base" if side == "baseline" else "opt"]))
        frame = app.dataframe[-1].value
        held = next(name for name in frame.columns if name == "bytes")
        assert len(frame) == len(report["tensors"])
        largest = max(row["bytes"] for row in report["tensors"])
        assert frame[held].max() == pytest.approx(largest / units.byte_scale((largest,)).divisor)
        assert f"together {units.size(report['memory']['static_peak_bytes'])}" in shown(app)


def test_searching_and_choosing_a_kind_leave_the_rows_that_fit(open_page: Any, run_cli: Any) -> None:
    app = open_page("memory", **QWEN)
    rows = said(run_cli, "diff", *(path(name) for name in QWEN.values()))["memory"]["tensors"]
    assert f"{len(rows)} of {len(rows)} rows" in shown(app)
    app.button_group(key="memory_change").set_value(["came"]).run()
    came = [row for row in rows if row["change"] == "came"]
    assert f"{len(came)} of {len(rows)} rows" in shown(app)
    assert 0 < len(came) < len(rows)
    app.text_input(key="memory_find").set_value("no such tensor anywhere").run()
    assert not app.exception
    assert f"0 of {len(rows)} rows" in shown(app)


@pytest.mark.parametrize("pair", [REMAT, OFFLOAD], ids=["cpu", "offload"])
def test_peaks_and_host_memory_are_those_of_profiler_memory(open_page: Any, run_cli: Any, pair: dict[str, str]) -> None:
    app = open_page("memory", **pair)
    assert not app.exception
    text = shown(app)
    for name in pair.values():
        memory = said(run_cli, "memory", path(name))["memory"]
        assert units.size(memory["static_peak_bytes"]) in text
        host = memory["static_host_bytes"]
        assert f"{units.size(host)} in the plan" in text if host else "none in the plan" in text


@pytest.mark.recordings
def test_without_a_plan_the_page_says_so(open_page: Any, recordings: Path) -> None:
    name = str(recordings / "tpu_qwen3_serving_bf16.xplane.pb")
    app = open_page("memory", paths=(str(recordings),), base=name, opt=name)
    assert not app.exception
    assert "is not known" in shown(app)
    assert not app.get("plotly_chart")
    assert not app.dataframe


@pytest.mark.recordings
def test_a_plan_on_one_side_only_is_shown(open_page: Any, recordings: Path) -> None:
    base, opt = (str(recordings / f"tpu_{name}.xplane.pb") for name in ("qwen3_serving_bf16", "v6e_inference"))
    app = open_page("memory", paths=(str(recordings),), base=base, opt=opt, force="true")
    assert not app.exception
    text = shown(app)
    assert "sum = static peak" in text
    assert "Not known: no program of this recording carries its plan." in text


@pytest.mark.recordings
def test_a_limit_near_the_peak_is_a_line(open_page: Any, recordings: Path) -> None:
    name = str(recordings / "tpu_v6e_inference.xplane.pb")
    app = open_page("memory", paths=(str(recordings),), base=name, opt=name)
    layout = json.loads(app.get("plotly_chart")[0].proto.spec)["layout"]
    assert layout["annotations"][0]["text"] == "limit 31.25 GiB"
