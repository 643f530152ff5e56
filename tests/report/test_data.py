"""JSON and CSV: the contract that other programs rely on."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from profiler import results
from profiler.report import render_diff, render_ops, render_peaks, render_summary
from profiler.report.output import Style

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"
STYLE = Style()


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))


def closed(node: Any) -> Any:
    """The schema with no property allowed that it does not describe: every key we write is documented."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        if "properties" in node:
            node["additionalProperties"] = False
        return node
    return [closed(item) for item in node] if isinstance(node, list) else node


def strict(text: bytes) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    return json.loads(text, parse_constant=refuse)


def assert_valid(data: Any, name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    jsonschema.validate(data, closed(schema(name)), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("kind", ["training", "serving", "evil"])
def test_a_diff_and_its_summaries_follow_the_schema(make: Any, kind: str) -> None:
    diff = getattr(make, kind)()
    assert_valid(strict(render_diff(diff, "json", STYLE)), "diff")
    assert_valid(strict(render_summary(diff.baseline, "json", STYLE)), "summary")


def test_an_op_table_follows_the_schema(make: Any) -> None:
    assert_valid(strict(render_ops(make.op_table(make.hostile), "json", STYLE)), "ops")


def test_the_parts_of_a_diff_sum_exactly(make: Any) -> None:
    for diff in (make.training(), make.serving()):
        data = strict(render_diff(diff, "json", STYLE))
        parts = data["contributions"]
        time = data["delta"]["optimized_time_ps"] - data["delta"]["baseline_time_ps"]
        points = data["delta"]["mfu_points"]
        if points is None:
            assert math.isclose(sum(part["time_ps"] for part in parts), time, rel_tol=1e-9)
        else:
            assert math.isclose(sum(part["mfu_points"] for part in parts), points, abs_tol=1e-9)
            for part in parts:
                split = part["calls_points"] + part["per_call_points"]
                assert math.isclose(part["mfu_points"], split, abs_tol=1e-9)


def test_the_unknown_is_null_and_nothing_is_nan(make: Any) -> None:
    data = strict(render_summary(make.serving().baseline, "json", STYLE))
    assert data["mfu"] is None
    assert data["run_info"]["loss"] is None
    assert set(data["memory"].values()) == {None}


def test_a_program_id_is_text_since_doubles_would_round_it(make: Any) -> None:
    row = strict(render_ops(make.op_table(), "json", STYLE))["ops"][0]
    assert row["program_id"] == "12190760917235803885"


def test_top_limits_the_rows_and_the_total_stays(make: Any) -> None:
    table = make.op_table()
    assert len(strict(render_ops(table, "json", STYLE))["ops"]) == 3
    assert len(strict(render_ops(table, "json", STYLE, 0))["ops"]) == 3
    limited = strict(render_ops(table, "json", STYLE, 1))
    assert (len(limited["ops"]), limited["ops_total"]) == (1, 3)
    assert len(strict(render_diff(make.training(), "json", STYLE, 2))["ops"]) == 2


def test_names_come_back_unchanged(make: Any) -> None:
    names = [row["op"] for row in strict(render_ops(make.op_table(make.hostile), "json", STYLE))["ops"]]
    assert names == [name.encode("utf-8", "replace").decode() for name in make.hostile]
    codes = [note["code"] for note in strict(render_diff(make.evil(), "json", STYLE))["warnings"]]
    assert codes == [name.encode("utf-8", "replace").decode() for name in make.hostile]


def test_json_is_ascii_and_the_same_every_time(make: Any) -> None:
    text = render_diff(make.evil(), "json", STYLE)
    assert text.isascii()
    assert text == render_diff(make.evil(), "json", STYLE)
    assert list(json.loads(text))[:4] == ["schema_version", "comparable", "normalization", "verdict"]


def test_the_documented_summary_fields_are_the_dataclass(make: Any) -> None:
    assert set(schema("summary")["properties"]) == {"schema_version", *results.Summary.__dataclass_fields__}
    assert set(schema("diff")["properties"]) == {"schema_version", *results.Diff.__dataclass_fields__}


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8"), newline="")))


def test_csv_holds_raw_figures_with_units_in_the_header(make: Any) -> None:
    rows = read(render_ops(make.op_table(), "csv", STYLE))
    assert float(rows[0]["self_time_ps"]) == 9e9
    assert rows[0]["phase"] == ""
    families = read(render_summary(make.training().baseline, "csv", STYLE))
    assert sum(float(row["time_ps_per_step"]) for row in families) == pytest.approx(5.292e12)
    assert {row["match"] for row in read(render_diff(make.training(), "csv", STYLE))} >= {"added", "removed"}
    assert len(read(render_peaks("csv", STYLE))) == len(strict(render_peaks("json", STYLE))["chips"])


def test_no_name_becomes_a_formula(make: Any) -> None:
    names = ("=1+1", "@SUM(A1)", "+1", "-1", "-x", " =1", "   @x", "＝1", "＋1", "－1", "＠x", "  ＝1")
    rows = read(render_ops(make.op_table(names), "csv", STYLE))
    assert [row["op"] for row in rows] == [f"'{name}" for name in names]
    harmless = ("a=1", " a", "x-1", "\t=1", "\u3000=1")  # other white space appears as an escape
    rows = read(render_ops(make.op_table(harmless), "csv", STYLE))
    assert not any(row["op"].startswith(("'", "=", "\t", "\u3000")) for row in rows)


def test_hostile_names_keep_to_their_row(make: Any) -> None:
    names = tuple(name[:1000] for name in make.hostile)  # the csv module reads no field of a megabyte
    rows = read(render_ops(make.op_table(names), "csv", STYLE))
    assert len(rows) == len(names)
    assert all(None not in row for row in rows)
    assert len(render_ops(make.op_table(names), "csv", STYLE).splitlines()) == len(names) + 1


def test_parquet_reads_back_as_the_same_frame(make: Any) -> None:
    table = make.op_table()
    assert pl.read_parquet(render_ops(table, "parquet", STYLE)).equals(table.ops)


def test_peaks_name_the_dtype_and_give_both_peaks() -> None:
    data = strict(render_peaks("json", STYLE))
    v7x = next(chip for chip in data["chips"] if chip["key"] == "tpu-v7x")
    assert (data["dtype"], v7x["peak_tflops"], v7x["chip_peak_tflops"]) == ("bf16", 1153.5, 2307.0)
