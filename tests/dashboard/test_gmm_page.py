"""The page "Grouped matmul": what it says is what ``profiler kernels`` says of both sides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from profiler.report import units
from sample_profiles import path

PAIR = {"base": "qwen3-30b/baseline.xplane.pb", "opt": "qwen3-30b/optimized.xplane.pb"}
TINY = {"base": "tiny-qwen3/baseline.xplane.pb.gz", "opt": "tiny-qwen3/optimized.xplane.pb.gz"}
DENSE = {"base": "cpu-remat/baseline.xplane.pb.gz", "opt": "cpu-remat/optimized.xplane.pb.gz"}


def shown(app: Any) -> str:
    """All HTML of the page, as text; every cell between bars."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"(\s*\|\s*)+", "|", unescape(re.sub(r"<[^>]+>", "|", markup)))


@pytest.fixture(scope="module")
def said(run_cli: Callable[..., Any]) -> list[dict[str, Any]]:
    """What ``profiler kernels`` says of both sides."""
    return [json.loads(run_cli("kernels", path(name), "--format", "json").stdout) for name in PAIR.values()]


def matmuls(report: dict[str, Any], of: str = "kernels") -> dict[tuple[Any, ...], dict[str, Any]]:
    names = ("kernel", "phase") if of == "kernels" else ("kernel", "phase", "shape")
    rows = [row for row in report[of] if row["family"].startswith(("gmm", "tgmm"))]
    return {tuple(row[name] for name in names): row for row in rows}


def test_calls_times_and_speed_are_those_of_profiler_kernels(open_page: Any, said: Any) -> None:
    app = open_page("gmm", **PAIR)
    assert not app.exception
    text = shown(app)
    base, opt = map(matmuls, said)
    assert len(base) == 5
    scale = units.time_scale(row["mean_time_ps"] for side in (base, opt) for row in side.values())
    for key, row in base.items():
        other = opt[key]
        means = f"{scale.show(row['mean_time_ps'])} → {scale.show(other['mean_time_ps'])}"
        rates = f"{units.number(row['tflops_per_s'])} → {units.number(other['tflops_per_s'])}"
        shares = f"{units.percent(row['peak_fraction'], 0)} → {units.percent(other['peak_fraction'], 0)}"
        calls = units.number(row["calls_per_step"])
        assert f"|{row['family']}|{key[1]}|{calls}|3|{means}|{rates}|{shares}|" in text
    for side, report in zip((base, opt), said, strict=True):
        work = sum(row["calls_per_step"] * row["flops_per_call"] for row in side.values())
        time = sum(row["time_ps_per_step"] for row in side.values())
        assert f"{units.percent(work / time / report['peak_tflops'])}" in text


def test_the_chart_has_every_kernel_and_phase_of_both_sides(open_page: Any, said: Any) -> None:
    (drawn,) = open_page("gmm", **PAIR).get("plotly_chart")
    bars = json.loads(drawn.proto.spec)["data"]
    assert [bar["name"] for bar in bars] == ["baseline", "baseline", "optimized", "optimized"]
    for (times, shares), report in zip((bars[:2], bars[2:]), said, strict=True):
        rows = matmuls(report).values()
        assert sorted(times["x"]) == pytest.approx(sorted(row["mean_time_ps"] / 1e9 for row in rows))
        assert sorted(shares["x"]) == pytest.approx(sorted(row["peak_fraction"] * 100 for row in rows))
    assert bars[0]["marker"]["color"] != bars[2]["marker"]["color"]
    assert bars[0]["marker"]["color"] == "rgba(0,0,0,0)"  # an outline: the sides are told apart without hue
    for row in matmuls(said[0]).values():
        assert row["family"] in drawn.proto.alt


def test_tiles_stand_side_by_side_with_an_arrow_where_they_differ(open_page: Any, said: Any) -> None:
    text = shown(open_page("gmm", **PAIR))
    base, opt = (
        {
            (row["family"], tuple(map(int, re.findall(r"\d+", row["shape"])[1:3]))): row["tiles"]
            for row in matmuls(report, "variants").values()
        }
        for report in said
    )
    assert base.keys() == opt.keys()
    changed = 0
    for (family, (k, n)), tiles in base.items():
        other = opt[family, (k, n)]
        cells = [
            str(tiles[key]) if tiles[key] == other[key] else f"{tiles[key]}|→|{other[key]}"
            for key in ("tm", "tk", "tn")
        ]
        changed += sum("→" in cell for cell in cells)
        assert f"|{family}|{k} × {n}, 128 groups|{'|'.join(cells)}|" in text
    assert changed >= 6


def test_times_of_a_compile_are_called_estimates_and_unequal_work_is_said(open_page: Any) -> None:
    app = open_page("gmm", **PAIR)
    text = shown(app)
    assert "every time of them is an estimate" in text
    assert "1.5× the FLOPs" in text
    axes = json.loads(app.get("plotly_chart")[0].proto.spec)["layout"]
    assert axes["xaxis"]["title"]["text"] == "time per call, ms (est.)"


@pytest.mark.parametrize(
    ("pair", "words"), [(TINY, "XLA compiled the experts' matmuls itself"), (DENSE, "the model is dense")]
)
def test_without_grouped_matmuls_the_page_says_why(open_page: Any, pair: Any, words: str) -> None:
    app = open_page("gmm", **pair)
    assert not app.exception
    assert words in shown(app)
    assert not app.get("plotly_chart")


def test_other_kernels_stand_below(open_page: Any) -> None:
    app = open_page("gmm", **TINY)
    assert any("Other custom kernels" in each.label for each in app.expander)
    assert "|TopK|" in shown(app)
