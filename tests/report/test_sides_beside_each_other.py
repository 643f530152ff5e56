"""Kernels, re-runs and rooflines of both sides beside each other: nothing is lost, nothing counts twice."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler import api
from profiler.analysis.summary import Measured
from profiler.report import html_parts, remat_diff, roofline_diff, roofline_view, units
from profiler.report.figures_keep import keep_figure
from profiler.report.figures_kernels import calls_figure, cards, is_attention, is_grouped_matmul, only
from profiler.report.figures_roofline import OTHERS, ops_frame, roofline_figure
from profiler.report.findings_view import findings_items
from profiler.report.variants_diff import tiles_table, variant_pairs, work_of
from profiler.report.wording import per_step
from profiler.results_efficiency import Roofline, RoofOp
from sample_profiles import path


@cache
def sides() -> tuple[Measured, Measured]:
    base, opt = (api.measured(str(path(f"qwen3-30b/{side}.xplane.pb"))) for side in ("baseline", "optimized"))
    return base, opt


def test_every_variant_of_both_sides_is_in_one_pair() -> None:
    base, opt = map(api.kernels, sides())
    pairs = variant_pairs(base, opt)
    for side, result in enumerate((base, opt)):
        found = [pair.both[side] for pair in pairs if pair.both[side] is not None]
        assert sorted(map(repr, found)) == sorted(map(repr, result.variants))
    matmuls = [pair for pair in pairs if pair.first.family.startswith(("gmm", "tgmm"))]
    assert all(None not in pair.both for pair in matmuls)  # the batch grew, the weights did not
    assert len(tiles_table(matmuls).rows) == 6


@pytest.mark.parametrize(
    ("shape", "work"),
    [
        ("262144 × 2048 × 768, 128 groups", "2048 × 768, 128 groups"),
        ("4 × 16 heads, T 8192, D 256, 36 of 64 blocks", "16 heads, T 8192, D 256"),
        ("64 heads, T 32768, D 64, 31 of 256 blocks", "64 heads, T 32768, D 64"),
        (None, None),
    ],
)
def test_the_work_of_a_shape_leaves_out_batch_and_blocks(shape: str | None, work: str | None) -> None:
    assert work_of(shape) == work


def test_kernels_are_attention_or_matmuls_or_neither_and_never_both() -> None:
    diff = api.diff(*sides())
    parts = [only(diff, keep) for keep in (is_attention, is_grouped_matmul)]
    for side in ("baseline", "optimized"):
        rows = getattr(diff, side).kernels
        split = [getattr(part, side).kernels for part in parts]
        assert len(rows) == sum(map(len, split))
        assert not set(map(id, split[0])) & set(map(id, split[1]))
    figure = calls_figure(parts[1])
    assert figure is not None
    assert figure.work is not None
    assert "1.5×" in figure.work
    assert calls_figure(only(diff, lambda row: False)) is None
    assert cards(only(diff, lambda row: False), "none") == []


def test_a_share_with_an_unknown_part_is_unknown() -> None:
    diff = only(api.diff(*sides()), is_grouped_matmul)
    first, *rest = diff.baseline.kernels
    rows = (replace(first, flops_per_call=None), *rest)
    speed = cards(replace(diff, baseline=replace(diff.baseline, kernels=rows)), "matmuls")[1]
    assert (speed.baseline, speed.change) == (units.UNKNOWN, units.UNKNOWN)


def test_re_runs_of_both_sides_sum_to_those_of_each() -> None:
    base, opt = map(api.remat, sides())
    frame = remat_diff.reruns_frame(base, opt)
    for title, side in (("baseline", base), ("optimized", opt)):
        own = frame.filter(side=title)
        assert own.height == len(side.ops)
        assert own["time_ps_per_step"].sum() == pytest.approx(side.rerun_time_ps_per_step)
    table = remat_diff.reruns_table(base, opt)
    assert len(table.rows) == len({(row.scope, row.family) for side in (base, opt) for row in side.ops})
    assert len(remat_diff.kept_table(base, opt).rows) == 3


def test_points_of_keeping_are_the_options_and_clusters_lose_none() -> None:
    for report in map(api.remat, sides()):
        figure = keep_figure(report)
        assert figure is not None
        assert [point.tensor for point in figure.points] == [row.tensor for row in report.options]
        assert sorted(map(repr, figure.points)) == sorted(repr(point) for each in figure.clusters for point in each)
        assert sum(point.together for point in figure.points) == 1
    assert keep_figure(replace(api.remat(sides()[0]), options=())) is None


def op(number: int, flops: int | None, moved: int | None, time: float) -> RoofOp:
    known = flops is not None and moved is not None
    return RoofOp(
        op=f"op.{number}", family=f"family {number % 10}", phase=None, instructions=1, calls_per_step=1,
        mean_time_ps=time, time_ps_per_step=time, flops_per_call=flops, bytes_per_call=moved,
        flops_per_byte=flops / moved if flops is not None and moved else None,
        tflops_per_s=flops / time if flops else None, gb_per_s=None, bound="memory" if known else None,
        roof_time_ps_per_step=time / 2 if known else None, roof_fraction=0.5 if known else None,
        wasted_time_ps_per_step=time / 2 if known else None, name_stack=None, source=None,
    )  # fmt: skip


def result(ops: tuple[RoofOp, ...], peak: float | None = 100.0) -> Roofline:
    return Roofline("a", "a", "recorded", "step", 1e9, peak, 1e12, peak, None, None, 0.0, (), ops, ())


counts = st.one_of(st.none(), st.integers(0, 2**50))


@given(st.lists(st.tuples(counts, st.one_of(st.none(), st.integers(1, 2**40)), st.integers(1, 2**40)), max_size=30))
def test_all_compute_time_is_drawn_or_said_to_be_left_out(rows: Any) -> None:
    ops = tuple(op(number, *row) for number, row in enumerate(rows))
    figure = roofline_figure((("baseline", result(ops)),), most=5)
    if figure is None:
        assert not [each for each in ops if each.flops_per_byte and each.tflops_per_s]
        return
    (side,) = figure.sides
    drawn = sum(each.time_ps_per_step for each in side.points)
    total = sum(each.time_ps_per_step for each in ops)
    assert drawn + side.moves_ps + side.unknown_ps + side.small_ps == pytest.approx(total)
    assert len(side.points) <= 5
    assert {figure.group(each) for each in side.points} <= {*figure.families, OTHERS}
    assert figure.x[0] < figure.x[1]
    assert figure.y[0] < figure.y[1]
    for each in side.points:
        assert figure.x[0] <= (each.flops_per_byte or 0) <= figure.x[1]


def test_one_roof_is_drawn_where_both_sides_have_it_and_two_where_they_differ() -> None:
    ops = (op(0, 10, 10, 10.0),)
    same = roofline_figure((("baseline", result(ops)), ("optimized", result(ops))))
    assert same is not None
    assert [title for title, _ in same.roofs] == ["both"]
    other = roofline_figure((("baseline", result(ops)), ("optimized", result(ops, 50.0))))
    assert other is not None
    assert [title for title, _ in other.roofs] == ["baseline", "optimized"]
    without = roofline_figure((("baseline", result(ops, None)),))
    assert without is not None
    assert without.roofs == ()


def test_the_table_of_families_has_the_sums_of_both_sides() -> None:
    base, opt = map(api.roofline, sides())
    table = roofline_diff.families_table(base, opt)
    assert len(table.rows) == len({(row.family, row.phase) for side in (base, opt) for row in side.families})
    frame = ops_frame((("baseline", base), ("optimized", opt)))
    assert frame.height == len(base.ops) + len(opt.ops)
    wasted = sum(row.wasted_time_ps_per_step or 0.0 for row in base.families)
    assert frame.filter(side="baseline")["wasted_time_ps_per_step"].sum() == pytest.approx(wasted)
    facts = {key: (left, right) for key, left, right in roofline_diff.fact_rows(base, opt)}
    assert facts["MFU"] == (units.percent(base.mfu, 2), units.percent(opt.mfu, 2))


def test_what_is_counted_per_step_says_how_much_more_work_a_step_does() -> None:
    base, opt = sides()
    text = per_step(api.diff(base, opt))
    assert text == "Per device and step of each side, not scaled to equal work: the optimized step does 1.50× the work."
    assert per_step(api.diff(base, base)) == "Per device and step of each side."


def test_the_roofline_in_a_sentence_says_what_each_side_says() -> None:
    base, opt = map(api.roofline, sides())
    text = roofline_diff.verdict(base, opt)
    assert text is not None
    for side in (base, opt):
        (compute,) = (cell.text for key, cell in roofline_view.facts(side) if key == "compute")
        time, wasted = re.findall(r"[\d.]+ m?s", compute)
        assert f"{wasted} of {time}" in text
    assert "(est.)" in text
    bare = replace(base, ridge_flops_per_byte=None)
    assert roofline_diff.verdict(bare, bare) is None


def test_a_list_that_goes_on_goes_on_counting() -> None:
    found = findings_items(api.diff(*sides()))
    assert '<ol class="findings">' in html_parts.items(found)
    assert '<ol class="findings" start="6">' in html_parts.items(found, 6)
