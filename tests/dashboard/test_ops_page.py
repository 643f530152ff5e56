"""The page "Ops": its rows are those of ``profiler diff``, and a row in full is what both recordings say."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from profiler import api
from profiler.analysis import opdetail, oprows
from profiler.report import op_view, units
from profiler.report.csv_ import frame_csv
from sample_profiles import path

TINY = {"base": "tiny-qwen3/baseline.xplane.pb.gz", "opt": "tiny-qwen3/optimized.xplane.pb.gz"}
COMPILED = {"base": "qwen3-30b/baseline.xplane.pb", "opt": "qwen3-30b/optimized.xplane.pb"}
ARROW = " → "


def shown(app: Any) -> str:
    """All HTML of the page as text; every cell between bars."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"(\s*\|\s*)+", "|", unescape(re.sub(r"<[^>]+>", "|", markup)))


def ops_of(run_cli: Callable[..., Any], pair: dict[str, str]) -> list[dict[str, Any]]:
    found = run_cli("diff", *(path(name) for name in pair.values()), "--format", "json", "--top", "0")
    rows: list[dict[str, Any]] = json.loads(found.stdout)["ops"]
    return rows


def listed(app: Any) -> pl.DataFrame:
    (table,) = app.dataframe
    return pl.from_pandas(table.value)


@pytest.fixture(scope="module")
def sides() -> Any:
    return [api.measured(str(path(name))) for name in COMPILED.values()]


def test_the_rows_are_those_of_profiler_diff_in_its_order(open_page: Any, run_cli: Any) -> None:
    app = open_page("ops", **TINY)
    assert not app.exception
    rows, table = ops_of(run_cli, TINY), listed(app)
    assert table.height == len(rows)
    scale = units.time_scale(row[name] for row in rows for name in ("baseline_time_ps", "optimized_time_ps"))
    for column, name in (("base", "baseline_time_ps"), ("opt", "optimized_time_ps"), ("delta", "delta_time_ps")):
        assert table[column].to_list() == pytest.approx([row[name] / scale.divisor for row in rows])
    assert table["match"].to_list() == [row["match"] for row in rows]
    assert table["opt_calls"].to_list() == [row["optimized_calls"] for row in rows]
    for name, row in zip(table["op"], rows, strict=True):
        assert name.split(ARROW)[-1] == (row["optimized_op"] or row["baseline_op"])


def test_what_is_shown_adds_up_to_the_change(open_page: Any, run_cli: Any) -> None:
    text = shown(open_page("ops", **COMPILED))
    rows = ops_of(run_cli, COMPILED)
    base, opt = (sum(row[f"{side}_time_ps"] for row in rows) for side in ("baseline", "optimized"))
    assert f"All {len(rows)} rows: {units.duration(base)} → {units.duration(opt)}" in text
    assert "100.0 % of the change of the step" in text
    assert "beyond the roof" in text
    assert "Estimate." in text


def test_filters_and_search_hold_together(open_page: Any, run_cli: Any) -> None:
    app = open_page("ops", **TINY)
    rows = ops_of(run_cli, TINY)
    app.multiselect(key="family").set_value(["dense matmul"])
    app.multiselect(key="phase").set_value(["re-run"])
    app.text_input(key="search").set_value("MOE_block").run()
    assert not app.exception
    wanted = [
        row
        for row in rows
        if (row["family"], row["phase"]) == ("dense matmul", "re-run") and "moe_block" in (row["name_stack"] or "")
    ]
    assert 0 < listed(app).height == len(wanted)
    assert f"{len(wanted)} of {len(rows)} rows" in shown(app)


def test_the_url_holds_the_filters(open_page: Any, run_cli: Any) -> None:
    app = open_page("ops", **TINY, search="moe_block", family="dense matmul", match="same", order="calls")
    assert not app.exception
    assert app.text_input(key="search").value == "moe_block"
    assert app.selectbox(key="order").value == "calls"
    table = listed(app)
    assert set(table["family"]) == {"dense matmul"}
    assert set(table["match"]) == {"same"}
    assert table.height < sum(row["family"] == "dense matmul" for row in ops_of(run_cli, TINY))


def test_a_search_finds_text_not_patterns(open_page: Any) -> None:
    app = open_page("ops", **TINY)
    app.text_input(key="search").set_value("fusion.*").run()
    assert not app.exception
    assert not app.dataframe
    assert "No op is like that." in shown(app)
    (button,) = [each for each in app.button if each.label == "Show all"]
    button.click().run()
    assert listed(app).height > 400


def test_the_unknown_phase_can_be_chosen(open_page: Any, run_cli: Any) -> None:
    app = open_page("ops", **TINY)
    app.multiselect(key="phase").set_value(["not told"]).run()
    assert listed(app).height == sum(row["phase"] is None for row in ops_of(run_cli, TINY))


@pytest.mark.parametrize("order", list(oprows.ORDERS))
def test_the_largest_come_first_in_every_order(open_page: Any, order: str) -> None:
    app = open_page("ops", **COMPILED)
    app.selectbox(key="order").set_value(order).run()
    assert not app.exception
    table = listed(app)
    column = {
        "changed time": table["delta"].abs(),
        "wasted time": table["wasted"],
        "optimized time": table["opt"],
        "baseline time": table["base"],
        "calls": table.select(pl.max_horizontal("base_calls", "opt_calls")).to_series(),
    }[order]
    known = [value for value in column if value is not None and value == value]
    assert known == sorted(known, reverse=True)
    assert all(value is None or value != value for value in column[len(known) :])


def test_a_row_of_the_url_is_shown_in_full(open_page: Any, sides: Any) -> None:
    diff = api.diff(*sides)
    row = next(i for i, name in enumerate(diff.ops["optimized_op"]) if name and name.startswith("gmm"))
    app = open_page("ops", **COMPILED)
    app.query_params["row"] = str(row)
    app.run()
    assert not app.exception
    detail = opdetail.op_detail(*sides, diff, row)
    text = shown(app)
    assert f"|{op_view.title(detail)}|" in text
    assert op_view.matched(detail) in text
    assert [each.value for each in app.code] == [detail.baseline.hlo_text, detail.optimized.hlo_text]
    scale = units.time_scale(
        getattr(side.calls, name) for side in (detail.baseline, detail.optimized) for _, name in op_view.STATS
    )
    for side in (detail.baseline, detail.optimized):
        assert f"|{scale.show(side.calls.mean_ps)}|" in text
    assert f"|{units.flops(detail.optimized.flops)}|" in text
    assert "multiplied by 0.6667" in text
    assert len(app.get("plotly_chart")) == 1
    assert "(est.)" in json.loads(app.get("plotly_chart")[0].proto.spec)["layout"]["xaxis"]["title"]["text"]


def test_the_figure_has_the_calls_of_both_sides(open_page: Any) -> None:
    app = open_page("ops", **TINY)
    app.query_params["row"] = "0"
    app.run()
    (figure,) = app.get("plotly_chart")
    lines = [each for each in json.loads(figure.proto.spec)["data"] if each["mode"] == "lines"]
    assert [line["name"].partition(":")[0] for line in lines] == ["baseline", "optimized"]
    assert [line["line"]["dash"] for line in lines] == ["dash", "solid"]  # not by their colours alone
    assert "20 calls" in lines[0]["name"]


def test_an_op_of_one_side_says_so(open_page: Any) -> None:
    app = open_page("ops", **COMPILED)
    removed = listed(app)["match"].to_list().index("removed")
    app.query_params["row"] = str(removed)
    app.run()
    assert not app.exception
    assert "Removed: nothing like it on the optimized side." in shown(app)
    assert "Optimized: no such op." in shown(app)
    assert len(app.code) == 1


def test_rows_that_are_none_are_left_alone(open_page: Any) -> None:
    for row in ("99999", "-1", "x", "²"):
        app = open_page("ops", **TINY)
        app.query_params["row"] = row
        app.run()
        assert not app.exception
        assert not app.code


def test_a_row_that_the_filters_leave_out_says_so(open_page: Any) -> None:
    app = open_page("ops", **TINY)
    app.query_params["row"] = "0"
    app.multiselect(key="match").set_value(["added"]).run()
    assert "The filters leave it out of the table above." in shown(app)


def test_other_recordings_have_other_rows(open_page: Any) -> None:
    app = open_page("ops", **TINY)
    app.query_params["row"] = "3"
    app.run()
    assert app.code
    app.text_input(key="base").set_value(TINY["opt"])
    app.text_input(key="opt").set_value(TINY["base"]).run()
    assert not app.exception
    assert not app.code
    assert "row" not in app.query_params


def test_downloads_are_the_rows_of_profiler_diff(sides: Any) -> None:
    diff = api.diff(*sides)
    table = oprows.op_rows(*sides, diff)
    rows = oprows.select(table, families=["tgmm"]).drop("row")
    read = list(csv.DictReader(io.StringIO(frame_csv(rows))))
    assert [row["optimized_op"] for row in read] == [
        name or "" for name in diff.ops.filter(pl.col("family") == "tgmm")["optimized_op"]
    ]
    assert [*read[0]][: len(diff.ops.columns)] == diff.ops.columns


def test_a_program_without_hlo_says_what_would_help(open_page: Any, recordings: Path) -> None:
    name = str(recordings / "nvidia_8gpu_tf2.xplane.pb")
    app = open_page("ops", paths=(str(recordings),), base=name, opt=name)
    app.query_params["row"] = "0"
    app.run()
    assert not app.exception
    assert "the recording holds no HLO text of this op" in shown(app)
    assert not app.code


def test_a_serving_recording_has_its_own_text_of_every_op(open_page: Any, recordings: Path) -> None:
    base, opt = (str(recordings / f"tpu_qwen3_serving_{kind}.xplane.pb") for kind in ("bf16", "fp4"))
    app = open_page("ops", paths=(str(recordings),), base=base, opt=opt, force="true")
    app.query_params["row"] = "0"
    app.run()
    assert not app.exception
    assert "Replaced: matched by" in shown(app)
    assert all(each.value.startswith("%") for each in app.code)
    assert len(app.code) == 2


def test_text_of_a_recording_is_never_markup(open_page: Any, tmp_path: Path, tpu_space: Any, saved: Any) -> None:
    evil = "<img src=x onerror=alert(1)>.1"
    lines = {"XLA Ops": [(evil, 0, 100), ("$x^2$ **b** :red[c].2", 100, 50)], "XLA Modules": [("jit_step(7)", 0, 200)]}
    name = saved(tpu_space({"TPU:0": lines}))
    app = open_page("ops", paths=(str(tmp_path),), base=name, opt=name)
    app.query_params["row"] = "0"
    app.run()
    assert not app.exception
    assert not any("<img" in str(element.proto.body) for element in app.get("html"))
    for each in app.code:
        assert each.language in (None, "", "plaintext")
