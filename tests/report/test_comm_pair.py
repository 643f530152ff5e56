"""Communication of two recordings beside each other: the figures are those of each report and of the diff."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiler import api, results
from profiler.report import comm_pair, units
from profiler.report.figures_comm import comm_figure
from profiler.results import CommDelta, CommDeltaRow
from sample_profiles import path

MS = 1e9


@pytest.fixture(scope="module")
def pair() -> Any:
    sides = [api.measured(str(path(f"tiny-qwen3/{side}.xplane.pb.gz"))) for side in ("baseline", "optimized")]
    return api.diff(sides[0], sides[1]), api.comm(sides[0]), api.comm(sides[1])


def test_the_drawing_has_every_kind_or_counts_it(pair: Any) -> None:
    diff = pair[0]
    figure = comm_figure(diff)
    assert figure is not None
    assert len(figure.kinds) + figure.smaller == len(diff.communication.rows)
    for kind in figure.kinds:
        (row,) = (row for row in diff.communication.rows if (row.kind, row.where) == (kind.kind, kind.where))
        assert kind.baseline == (row.baseline_exposed_ps, row.baseline_hidden_ps)
        assert kind.optimized == (row.optimized_exposed_ps, row.optimized_hidden_ps)
        assert sum(kind.baseline) == pytest.approx(row.baseline_in_flight_ps)


def test_at_most_so_many_kinds_are_drawn_longest_first_and_a_side_may_lack_one(make: Any) -> None:
    rows = [
        CommDeltaRow("communication", f"kind {n}", None, None, 1, None, n * MS, None, n * MS, None, 0)
        for n in range(30)
    ]
    figure = comm_figure(replace(make.training(), communication=CommDelta(tuple(rows))), most=5)
    assert figure is not None
    assert [kind.kind for kind in figure.kinds] == [f"kind {n}" for n in range(29, 24, -1)]
    assert figure.smaller == 25
    assert figure.kinds[0].baseline is None
    assert "baseline" not in figure.text()


def test_nothing_that_moves_is_no_drawing_no_verdict_and_no_part(make: Any) -> None:
    diff = replace(make.training(), communication=None, contributions=())
    assert comm_figure(diff) is None
    assert comm_pair.verdict(diff) is None
    assert comm_pair.contributions_table(diff) is None


def test_the_verdict_has_the_sums_of_the_exposed_time(pair: Any) -> None:
    diff = pair[0]
    base, opt = (
        sum(getattr(row, f"{side}_exposed_ps") or 0.0 for row in diff.communication.rows)
        for side in ("baseline", "optimized")
    )
    assert f"{units.duration(base)} → {units.duration(opt)}" in str(comm_pair.verdict(diff))


def test_the_parts_of_the_change_sum_to_the_exposed_time(pair: Any) -> None:
    diff = pair[0]
    table = comm_pair.contributions_table(diff)
    assert table is not None and table.total is not None
    scale = units.time_scale(
        time
        for item in diff.contributions
        if item.category in comm_pair.MOVED
        for time in (item.baseline_time_ps, item.optimized_time_ps)
    )
    exposed = sum(row.baseline_exposed_ps or 0.0 for row in diff.communication.rows)
    assert table.total[1].text == scale.show(exposed)
    assert "sum to the MFU delta" not in (table.caption or "")


def test_where_the_step_goes_sums_to_each_sides_step(pair: Any) -> None:
    _, base, opt = pair
    table = comm_pair.split_table(base, opt)
    scale = units.time_scale((base.step_ps, opt.step_ps))
    assert table.total is not None
    assert [cell.text for cell in table.total[1:]] == [
        scale.show(base.step_ps), scale.show(opt.step_ps), "100.0 %", "100.0 %",
    ]  # fmt: skip


def test_a_kind_of_one_side_only_is_a_row_with_dashes_and_estimates_are_labelled(pair: Any) -> None:
    _, base, opt = pair
    alone = results.CommRow("transfer", "host transfer", "to host", None, 2, 8 << 30, 9e12, 0, 9e12, 5e9, None)
    table = comm_pair.bandwidth_table(replace(base, rows=(*base.rows, alone), kind="compiled"), opt)
    (row,) = (row for row in table.rows if row[0].text == "host transfer")
    assert [cell.text for cell in row[3:9]] == ["2", "–", "8.000", "–", "5", "–"]
    titles = [column.title for column in table.columns]
    assert "base GB/s (est.)" in titles and "opt GB/s" in titles and "base GiB" in titles


@pytest.mark.recordings
def test_the_whole_recording_says_what_a_serving_run_waits_for(recordings: Path) -> None:
    found = api.comm(str(recordings / "tpu_v6e_inference.xplane.pb"))
    table = comm_pair.whole_table(found, found)
    assert table is not None and found.whole is not None
    assert table.rows[0][0].text == "host transfer"
    assert table.rows[0][3].text == units.percent(found.whole.rows[0].fraction)
    assert comm_pair.whole_table(replace(found, whole=None), replace(found, whole=None)) is None
