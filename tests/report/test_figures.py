"""The waterfall runs from baseline to optimized without a gap."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from profiler.report.figures import waterfall, waterfall_lines, waterfall_svg

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
