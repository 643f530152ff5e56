"""The waterfall runs from baseline to optimized without a gap."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from profiler import results
from profiler.report.figures import waterfall, waterfall_lines, waterfall_svg
from profiler.report.figures_memory import memory_figure, memory_svg, swatch
from profiler.report.figures_steps import steps_figure, steps_svg
from profiler.report.svg import tick_text, ticks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("kind", ["training", "serving", "evil"])
@pytest.mark.parametrize("most", [1, 5, 100])
def test_each_bar_starts_where_the_last_one_ended(make: Any, kind: str, most: int) -> None:
    figure = waterfall(getattr(make, kind)(), most)
    bars = figure.bars
    for before, after in pairwise(bars[:-1]):
        assert after.start == before.end
    assert math.isclose(bars[-2].end, bars[-1].end, rel_tol=1e-9)
    assert len(bars) <= most + 3


def test_it_is_in_points_when_mfu_is_known_and_in_time_otherwise(make: Any) -> None:
    points, time = waterfall(make.training()), waterfall(make.serving())
    assert (points.unit, time.unit) == ("%", "ms")
    assert points.bars[-1].end == pytest.approx(26.0, abs=0.01)
    assert {bar.kind for bar in points.bars} == {"total", "gain"}
    dense = next(bar for bar in time.bars if bar.label == "dense matmul")
    assert dense.change < 0
    assert dense.kind == "gain"


def test_it_is_in_time_when_the_mfu_delta_is_not_split(make: Any) -> None:
    figure = waterfall(make.unsplit())
    assert figure.unit == "s"
    assert figure.title == "Time per device and step"
    assert math.isclose(figure.bars[-2].end, figure.bars[-1].end, rel_tol=1e-9)


def test_an_axis_that_does_not_start_at_zero_says_so(make: Any) -> None:
    figure = waterfall(make.training())
    assert figure.axis[0] > 0
    assert figure.cut is not None
    assert figure.cut in "\n".join(waterfall_lines(figure))
    assert waterfall(make.serving()).cut is None


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("kind", ["training", "serving", "evil"])
def test_the_svg_is_well_formed_and_inside_its_box(make: Any, kind: str, width: int) -> None:
    root = ElementTree.fromstring(waterfall_svg(waterfall(getattr(make, kind)()), width))
    _, _, box_width, box_height = map(float, root.attrib["viewBox"].split())
    for bar in root.iter(f"{SVG}rect"):
        if bar.get("x"):
            assert 0 <= float(bar.attrib["x"]) <= box_width
            assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= box_width
            assert float(bar.attrib["y"]) + float(bar.attrib["height"]) <= box_height
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
        "svg", "title", "defs", "pattern", "rect", "line", "g", "text",
    }  # fmt: skip


def test_worse_is_hatched_and_every_part_has_its_sign(make: Any) -> None:
    root = ElementTree.fromstring(waterfall_svg(waterfall(make.serving()), 1000, "w"))
    parts = {(group[1].text or ""): (group[2].attrib["fill"], group[3].text or "") for group in root.iter(f"{SVG}g")}
    assert parts["attention"] == ("url(#w-hatch)", "+3.53")
    assert parts["dense matmul"][1] == "−42.02"
    assert "hatch" not in parts["dense matmul"][0]


def test_a_diff_without_parts_still_draws(make: Any) -> None:
    diff = replace(make.serving(), contributions=())
    figure = waterfall(diff)
    assert [bar.label for bar in figure.bars] == ["baseline", "optimized"]
    ElementTree.fromstring(waterfall_svg(figure))


GIB = 1 << 30


@pytest.mark.parametrize("kind", ["complete", "worst"])
@pytest.mark.parametrize("width", [360, 1000])
def test_curves_are_well_formed_and_inside_their_box(make: Any, kind: str, width: int) -> None:
    figure = memory_figure(getattr(make, kind)())
    assert figure is not None
    root = ElementTree.fromstring(memory_svg(figure, width))
    _, _, box_width, box_height = map(float, root.attrib["viewBox"].split())
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= box_width
        assert float(bar.attrib["y"]) + float(bar.attrib["height"]) <= box_height
    for curve in root.iter(f"{SVG}path"):
        points = [tuple(map(float, point.split())) for point in curve.attrib["d"].strip("MZ").split("L")]
        assert all(0 <= x <= box_width and 0 <= y <= box_height for x, y in points)
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
        "svg", "title", "desc", "defs", "pattern", "rect", "line", "g", "text", "path", "circle",
    }  # fmt: skip
    for phase in figure.phases:
        ElementTree.fromstring(swatch(figure, phase, "tone"))


def test_a_curve_says_its_peak_and_the_limit_is_a_line(make: Any) -> None:
    figure = memory_figure(make.complete())
    assert figure is not None
    base, opt = figure.tracks
    assert base.text() == "baseline: peak 61.00 GiB in student backward"
    assert opt.peak == (pytest.approx(1200 / 1989), 68 * GIB)
    assert list(figure.phases.values()) == ["T", "F", "R", "B", "O"]
    assert not figure.far
    assert "limit 94.74 GiB" in memory_svg(figure)
    # The lines differ in more than their colour.
    lines = [path.attrib for path in ElementTree.fromstring(memory_svg(figure)).iter(f"{SVG}path")]
    assert ["stroke-dasharray" in line for line in lines if "stroke" in line] == [True, False]


def test_a_limit_far_above_the_peaks_does_not_flatten_them(make: Any) -> None:
    diff = make.complete()
    sides = [replace(side, memory=replace(side.memory, capacity_bytes=900 * GIB))
             for side in (diff.baseline, diff.optimized)]  # fmt: skip
    figure = memory_figure(replace(diff, baseline=sides[0], optimized=sides[1]))
    assert figure is not None
    assert figure.far
    assert figure.top < 80 * GIB
    assert "limit" not in memory_svg(figure)


def test_without_a_plan_or_a_heap_trace_no_curve_is_drawn(make: Any) -> None:
    diff = make.complete()
    assert memory_figure(make.training()) is None
    bare = replace(diff.memory, baseline_curve=None, optimized_curve=None)
    assert memory_figure(replace(diff, memory=bare)) is None
    one = memory_figure(replace(diff, memory=replace(diff.memory, baseline_curve=None)))
    assert one is not None
    assert [track.title for track in one.tracks] == ["optimized"]


@pytest.mark.parametrize("width", [360, 1000])
def test_every_step_is_a_mark_inside_the_box(make: Any, width: int) -> None:
    figure = steps_figure(make.complete())
    assert figure is not None
    root = ElementTree.fromstring(steps_svg(figure, width))
    _, _, box_width, box_height = map(float, root.attrib["viewBox"].split())
    marks = [mark.attrib for mark in root.iter(f"{SVG}circle")]
    assert len(marks) == 24
    assert all(4 <= float(mark["cx"]) <= box_width - 4 and float(mark["cy"]) <= box_height for mark in marks)
    assert sum(mark["fill"] == "none" for mark in marks) == 12  # rings and discs, not two colours


def test_steps_are_drawn_only_where_several_were_recorded_on_both_sides(make: Any) -> None:
    diff = make.complete()
    assert steps_figure(make.training()) is None
    assert steps_figure(make.compiled()) is None
    single = results.StepLengths((1e12,), diff.steps.optimized_ps, 1, 12)
    assert steps_figure(replace(diff, steps=single)) is None
    equal = results.StepLengths((1e12, 1e12), (1e12, 1e12), 2, 2)
    figure = steps_figure(replace(diff, steps=equal))
    assert figure is not None
    ElementTree.fromstring(steps_svg(figure))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 98.5, [0, 20, 40, 60, 80]), (271.0, 300.0, [280, 290, 300]), (0.0, 0.012, [0, 0.005, 0.01]), (1, 1, [])],
)
def test_ticks_stand_at_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)


def test_ticks_have_the_decimals_that_tell_them_apart() -> None:
    assert [tick_text(value, 0.005) for value in (0, 0.005)] == ["0.000", "0.005"]
    assert tick_text(12000, 2000) == "12,000"
