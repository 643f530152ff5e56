"""The page "Roofline": what it says is what ``profiler roofline`` says of both sides."""

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


def figure(app: Any) -> dict[str, Any]:
    (drawn,) = app.get("plotly_chart")
    spec: dict[str, Any] = json.loads(drawn.proto.spec)
    return spec


def points(spec: dict[str, Any], *, hollow: bool) -> list[dict[str, Any]]:
    """Traces of the ops of one side."""
    traces = [trace for trace in spec["data"] if trace["mode"] == "markers" and trace.get("hovertext")]
    return [trace for trace in traces if trace["marker"]["symbol"].endswith("-open") == hollow]


@pytest.fixture(scope="module")
def said(run_cli: Callable[..., Any]) -> list[dict[str, Any]]:
    """What ``profiler roofline`` says of both sides."""
    return [json.loads(run_cli("roofline", path(name), "--format", "json").stdout) for name in PAIR.values()]


def test_points_are_the_ops_of_profiler_roofline_under_the_roof_of_the_chip(open_page: Any, said: Any) -> None:
    app = open_page("roofline", **PAIR)
    assert not app.exception
    spec = figure(app)
    assert (spec["layout"]["xaxis"]["type"], spec["layout"]["yaxis"]["type"]) == ("log", "log")
    for report, hollow in zip(said, (True, False), strict=True):
        placed = sorted(
            (op["flops_per_byte"], op["tflops_per_s"])
            for op in report["ops"]
            if op["flops_per_call"] and op["bytes_per_call"]
        )
        drawn = sorted(
            each for trace in points(spec, hollow=hollow) for each in zip(trace["x"], trace["y"], strict=True)
        )
        assert len(drawn) == len(placed)
        for ours, theirs in zip(drawn, placed, strict=True):
            assert ours == pytest.approx(theirs)
    (roof,) = [trace for trace in spec["data"] if trace["mode"] == "lines"]
    assert roof["x"][1] == pytest.approx(said[0]["ridge_flops_per_byte"])
    assert roof["y"][1:] == pytest.approx([said[0]["peak_tflops"]] * 2)
    assert roof["y"][0] == pytest.approx(roof["x"][0] * said[0]["hbm_bytes_per_s"] / 1e12)
    text = shown(app)
    for report in said:
        assert units.percent(report["mfu"], 2) in text
        assert units.percent(report["hfu"], 2) in text
        for row in report["left_out"]:
            assert f"{row['category']} {units.duration(row['time_ps_per_step'])}" in text


def test_families_are_those_of_profiler_roofline(open_page: Any, said: Any) -> None:
    text = shown(open_page("roofline", **PAIR))
    scale = units.time_scale(row["time_ps_per_step"] for report in said for row in report["families"])
    both = [{(row["family"], row["phase"]): row for row in report["families"]} for report in said]
    for key, row in list(both[0].items())[:12]:
        other = both[1].get(key)
        cells = [scale.show(each["wasted_time_ps_per_step"]) if each else "–" for each in (row, other)]
        start = re.escape(f"|{key[0]}|{key[1] or '–'}|")
        assert re.search(rf"{start}([^|]+\|){{4}}{re.escape('|'.join(cells))}\|", text), key
    sums = [sum(row["wasted_time_ps_per_step"] or 0 for row in report["families"]) for report in said]
    assert f"|{scale.show(sums[0])}|{scale.show(sums[1])}|" in text


def test_the_ops_are_listed_by_wasted_time_with_a_download(open_page: Any, said: Any) -> None:
    app = open_page("roofline", **PAIR, roofline_side="baseline")
    assert not app.exception
    frame = app.dataframe[0].value
    ops = said[0]["ops"]
    assert len(frame) == len(ops)
    assert set(frame["side"]) == {"baseline"}
    assert list(frame["op"][:20]) == [op["op"] for op in ops[:20]]
    wasted = frame["wasted ms (est.)"].dropna()
    assert list(wasted) == sorted(wasted, reverse=True)
    assert wasted.iloc[0] == pytest.approx(ops[0]["wasted_time_ps_per_step"] / 1e9, abs=1e-4)
    assert len(app.get("download_button")) == 3


def test_the_switch_and_the_filter_choose_what_is_drawn(open_page: Any, said: Any) -> None:
    app = open_page("roofline", **PAIR, roofline_side="optimized", roofline_family="tgmm")
    assert not app.exception
    spec = figure(app)
    assert not points(spec, hollow=True)
    (trace,) = points(spec, hollow=False)
    assert trace["name"] == "tgmm"
    ops = [op for op in said[1]["ops"] if op["family"] == "tgmm"]
    assert sorted(trace["y"]) == pytest.approx(sorted(op["tflops_per_s"] for op in ops))
    assert set(app.dataframe[0].value["family"]) == {"tgmm"}


def test_a_cpu_has_no_roof_until_peak_and_bandwidth_are_given(open_page: Any) -> None:
    app = open_page("roofline", **CPU)
    assert not app.exception
    text = shown(app)
    assert "There is no roof" in text
    assert "Peak TFLOP/s on the left" in text
    assert not [trace for trace in figure(app)["data"] if trace["mode"] == "lines"]
    given = open_page("roofline", **CPU, peak_tflops="2", roofline_gbps="40")
    assert not given.exception
    assert "There is no roof" not in shown(given)
    (roof,) = [trace for trace in figure(given)["data"] if trace["mode"] == "lines"]
    assert (roof["x"][1], roof["y"][1]) == (50.0, 2.0)


def test_names_of_a_recording_are_never_markup(open_page: Any, tpu_space: Any, saved: Any, tmp_path: Path) -> None:
    hostile = '<img src=x onerror="alert(1)">.1'
    space = tpu_space(
        {"TPU:0": {"Steps": [("0", 0, 2000), ("1", 2000, 2000)], "XLA Ops": [(hostile, 0, 900), (hostile, 2000, 900)]}}
    )
    found = saved(space)
    app = open_page("roofline", paths=(str(tmp_path),), base=found, opt=found)
    assert not app.exception
    hovers = [text for trace in figure(app)["data"] for text in trace.get("hovertext") or []]
    assert hovers
    assert not any("<img" in text for text in hovers)
    assert "<img" not in "".join(str(element.proto.body) for element in app.get("html"))
