"""A row of a diff in full, and the rows as a table to search."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sample_profiles
from profiler import api
from profiler.analysis.opdetail import MOST_NAMES, members, op_detail
from profiler.analysis.oprows import op_rows, select, totals
from profiler.analysis.roofline import op_roofs, roofline
from profiler.report.json_ import diff_object, to_json


@pytest.fixture(scope="module")
def compiled():
    return compared(*(str(sample_profiles.path(f"qwen3-30b/{side}.xplane.pb")) for side in ("baseline", "optimized")))


@pytest.fixture(scope="module")
def serving(recordings):
    names = ("tpu_qwen3_serving_bf16", "tpu_qwen3_serving_fp4")
    return compared(*(str(recordings / f"{name}.xplane.pb") for name in names))


def compared(*paths: str):
    baseline, optimized = (api.measured(path) for path in paths)
    return baseline, optimized, api.diff(baseline, optimized, api.Options(force=True))


def test_a_row_has_the_figures_of_the_diff(compiled, serving) -> None:
    for baseline, optimized, diff in (compiled, serving):
        held = members(baseline, optimized, diff)
        for index, row in enumerate(diff.ops.head(40).iter_rows(named=True)):
            detail = op_detail(baseline, optimized, diff, index, held)
            assert (detail.match, detail.confidence, detail.evidence) == tuple(
                row[key] for key in ("match", "confidence", "evidence")
            )
            for name, side in (("baseline", detail.baseline), ("optimized", detail.optimized)):
                if side is None:
                    assert row[f"{name}_op"] is None
                    continue
                assert row[f"{name}_op"] == side.instructions[0]
                assert side.calls_per_step == pytest.approx(row[f"{name}_calls"])
                assert side.time_ps_per_step == pytest.approx(row[f"{name}_time_ps"])
                assert len(side.instructions) <= MOST_NAMES
                assert side.hlo_text and side.hlo_text.startswith(f"%{side.instructions[0]} = ")
                if side.histogram and side.calls:
                    assert sum(side.histogram.counts) == side.calls.count


def test_an_op_of_one_side_only_has_no_other(compiled) -> None:
    baseline, optimized, diff = compiled
    removed = diff.ops["match"].to_list().index("removed")
    detail = op_detail(baseline, optimized, diff, removed)
    assert detail.optimized is None
    assert detail.baseline is not None
    assert detail.baseline_kind == "compiled"


def test_text_is_the_recordings_own_and_bodies_are_the_programs(compiled, serving) -> None:
    baseline, optimized, diff = serving
    side = op_detail(baseline, optimized, diff, 0).baseline
    assert side is not None
    assert side.hlo_source == "recording"
    assert "metadata" not in (side.hlo_text or "")  # the recording holds no program
    baseline, optimized, diff = compiled
    fused = next(i for i, op in enumerate(diff.ops["optimized_op"]) if op and op.startswith("fusion"))
    side = op_detail(baseline, optimized, diff, fused).optimized
    assert side is not None
    assert "\n\n%fused_computation" in (side.hlo_text or "")
    assert "ROOT %" in (side.hlo_text or "")


def test_a_row_that_is_not_there_is_an_error(serving) -> None:
    baseline, optimized, diff = serving
    for row in (-1, diff.ops.height):
        with pytest.raises(IndexError, match=f"{diff.ops.height} rows"):
            op_detail(baseline, optimized, diff, row)


def test_members_do_not_reach_the_json(serving) -> None:
    _, _, diff = serving
    text = to_json(diff_object(diff))
    assert "members" not in text
    assert "op_id" not in text


def test_roofs_of_single_ops_add_up_to_those_of_the_roofline(compiled) -> None:
    _, optimized, _ = compiled
    roofs, rows = op_roofs(optimized), roofline(optimized).ops
    assert roofs["roof_ps"].sum() == pytest.approx(sum(row.roof_time_ps_per_step or 0 for row in rows))
    assert roofs["span_ps"].sum() == pytest.approx(sum(row.time_ps_per_step for row in rows))
    unknown = sum(row.instructions for row in rows if row.roof_time_ps_per_step is None)
    assert roofs["roof_ps"].null_count() == unknown


def test_what_a_row_wastes_is_its_time_beyond_the_roof(compiled) -> None:
    baseline, optimized, diff = compiled
    table = op_rows(baseline, optimized, diff)
    assert table.drop("row", "wasted_time_ps", "baseline_names", "optimized_names").equals(diff.ops)
    scale = diff.delta.optimized_time_ps / optimized.times.step_ps
    roofs = {op_id: (span, roof) for op_id, span, roof in op_roofs(optimized).iter_rows()}
    for each, wasted in zip(members(baseline, optimized, diff), table["wasted_time_ps"], strict=True):
        known = [roofs.get(op_id, (0.0, None)) for op_id in each.optimized]
        if not known or any(roof is None for _, roof in known):
            assert wasted is None
        else:
            assert wasted == pytest.approx(max(sum(span - roof for span, roof in known), 0) * scale)
    assert totals(table, diff).wasted_time_ps == pytest.approx(table["wasted_time_ps"].sum())


def test_where_no_roof_is_known_nothing_is_said_to_be_wasted(serving) -> None:
    baseline, optimized, diff = serving
    unknown = replace(optimized, peak_tflops=None)
    table = op_rows(baseline, unknown, diff)
    assert table["wasted_time_ps"].null_count() == diff.ops.height
    assert totals(table, diff).wasted_time_ps is None


def test_text_finds_every_instruction_of_a_row_as_it_is_written(serving) -> None:
    baseline, optimized, diff = serving
    table = op_rows(baseline, optimized, diff)
    hidden = baseline.trace.ops[list(members(baseline, optimized, diff)[0].baseline)]["op"][5]
    assert hidden not in (table["baseline_op"][0], table["optimized_op"][0])
    assert 0 in select(table, text=hidden.upper())["row"]
    assert select(table, text=".*").height == 0
    assert select(table, text="  ").height == table.height
    scope = table["name_stack"].drop_nulls()[0]
    assert select(table, text=scope).height >= 1


def test_filters_hold_together_and_the_unknown_can_be_chosen(compiled) -> None:
    baseline, optimized, diff = compiled
    table = op_rows(baseline, optimized, diff)
    chosen = select(table, families=["gmm forward"], matches=["same", "changed"], phases=["re-run", None])
    assert set(chosen["family"]) == {"gmm forward"}
    assert set(chosen["phase"]) <= {"re-run", None}
    both = select(table, phases=[None]), select(table, phases=table["phase"].drop_nulls().unique())
    assert sum(each.height for each in both) == table.height


def test_totals_of_all_rows_are_the_change_less_idle_time(compiled, serving) -> None:
    for baseline, optimized, diff in (compiled, serving):
        table = op_rows(baseline, optimized, diff)
        whole = totals(table, diff)
        idle = sum(part.time_ps for part in diff.contributions if part.category == "idle")
        assert whole.delta_time_ps + idle == pytest.approx(
            diff.delta.optimized_time_ps - diff.delta.baseline_time_ps, rel=1e-9
        )
        nothing = totals(table.clear(), diff)
        assert (nothing.rows, nothing.delta_time_ps, nothing.wasted_time_ps) == (0, 0, None)
