"""``profiler comm`` and its table in a diff, as people and programs read them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from profiler import results
from profiler.analysis import comm
from profiler.report import render_comm, render_diff, render_summary
from profiler.report.output import Style

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "comm.schema.json"
MS = 1e9
WHOLE = results.WholeRecording(
    2000 * MS, 1500 * MS, (results.WholeRow("transfer", "host transfer", 900 * MS, 0.45, 0.6),)
)


def closed(node: Any) -> Any:
    """The schema with no property allowed that it does not describe."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        return {**node, "additionalProperties": False} if "properties" in node else node
    return [closed(item) for item in node] if isinstance(node, list) else node


def report(**changes: Any) -> results.CommReport:
    row = results.CommRow
    full = results.CommReport(
        file="run.xplane.pb",
        label="run",
        kind="recorded",
        devices=(results.DeviceInfo("TPU:0", "TPU7x", 1153.5, 96 << 30),) * 2,
        unit="step",
        step_ps=100 * MS,
        busy_ps=95 * MS,
        compute_ps=70 * MS,
        rows=(
            row("communication", "all-gather", "fsdp", 32, 48, 3 << 30, 30 * MS, 20 * MS, 10 * MS, 1e11, 0.17),
            row("communication", "all-reduce", None, 8, 2, None, 4 * MS, 1 * MS, 3 * MS, None, None),
            row("transfer", "host transfer", "to host", None, 4, 1 << 30, 9 * MS, 4 * MS, 5 * MS, 1e11, None),
            row("transfer", "async copy", None, None, 4, 8, 10, 1, 9, 1e9, None),
        ),
        totals=(
            results.CommTotal("communication", 31 * MS, 21 * MS, 10 * MS),
            results.CommTotal("transfer", 9 * MS, 4 * MS, 5 * MS),
            results.CommTotal(None, 38 * MS, 25 * MS, 13 * MS),
        ),
        waits=(
            results.WaitRow(comm.HOST, 5 * MS, 0.05),
            results.WaitRow(comm.INPUT, 1 * MS, 0.01),
        ),
        whole=WHOLE,
        link_bytes_per_s=600e9,
        link_source="TPU v7x",
        mesh={"data": 4, "fsdp": 32},
        warnings=(),
    )  # fmt: skip
    return replace(full, **changes)


def nothing() -> results.CommReport:
    gone = dict.fromkeys(("whole", "link_bytes_per_s", "link_source", "mesh"))
    return report(rows=(), totals=(), waits=(), compute_ps=100 * MS, **gone)


def text(found: results.CommReport, width: int = 100, **style: Any) -> str:
    return render_comm(found, "text", Style(width=width, **style)).decode()


@pytest.mark.parametrize("make", [report, nothing])
def test_the_json_follows_its_schema(make: Any) -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(render_comm(make(), "json", Style()))
    jsonschema.validate(data, closed(schema), cls=jsonschema.Draft202012Validator)
    assert set(schema["properties"]) == {"schema_version", *results.CommReport.__dataclass_fields__}


def test_the_verdict_says_what_no_compute_hides() -> None:
    out = text(report())
    assert out.startswith("25.00 ms of the step (25.0 %) is communication and transfers that no compute hides")
    assert "mostly all-gather (20.00 ms); 13.00 ms is hidden" in " ".join(out.split())
    assert text(nothing()).startswith("No communication and no transfers in the step.")


def test_the_axis_is_the_meshs_or_not_available_with_the_size_of_the_groups() -> None:
    out = text(report())
    assert "data 4 × fsdp 32" in out
    assert any(line.startswith("all-gather     fsdp") for line in out.splitlines())
    assert "n/a (groups of 8)" in out
    assert "of the transfers, 1.000 ms is waiting for input (infeed)" in out


def test_the_parts_of_the_step_sum_to_it() -> None:
    lines = [line.split() for line in text(report()).splitlines()]
    assert ["sum", "100.00", "100.0", "%"] in lines


@pytest.mark.parametrize("width", [60, 80, 100])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in text(report(), width).splitlines()) <= width


def test_small_rows_are_left_out_and_counted() -> None:
    assert "async copy" not in text(report())
    assert "… 1 smaller (--format json has all)" in text(report())


def test_a_compiled_profile_is_marked_wherever_it_shows_a_time() -> None:
    out = text(report(kind="compiled", whole=None))
    assert "every time is an estimate" in out
    assert "(est.)" in out


def test_the_csv_holds_the_rows() -> None:
    rows = list(csv.DictReader(io.StringIO(render_comm(report(), "csv", Style()).decode())))
    assert [row["where"] for row in rows] == ["fsdp", "", "to host", ""]
    assert rows[1]["bytes_per_step"] == ""


def test_a_diff_sets_both_sides_beside_each_other_and_says_what_a_recording_waits_for(make: Any) -> None:
    row = results.CommDeltaRow
    found = results.CommDelta(
        (
            row("communication", "all-gather", "fsdp", 96, 48, 40 * MS, 30 * MS, 20 * MS, 5 * MS, 20 * MS, 25 * MS),
            row("transfer", "host transfer", "to host", None, 8, None, 9 * MS, None, 4 * MS, None, 5 * MS),
        )
    )
    diff = make.training()
    diff = replace(diff, communication=found, baseline=replace(diff.baseline, whole=WHOLE))
    out = render_diff(diff, "text", Style()).decode()
    line = next(line for line in out.splitlines() if line.split()[:2] == ["all-gather", "fsdp"])
    assert "40.00 → 30.00" in line
    assert "20.00 → 5.00" in line
    assert "−15.00" in line
    assert "The baseline recording mostly waits for host transfer: 45.0 % of all of it, 60.0 % of busy time." in out
    assert "Communication and transfers" not in render_diff(make.training(), "text", Style()).decode()


def test_a_summary_says_what_the_whole_recording_waits_for(make: Any) -> None:
    summary = replace(make.training().baseline, whole=WHOLE)
    out = " ".join(render_summary(summary, "text", Style()).decode().split())
    assert "2.000 s per device, 75.0 % busy; 45.0 % is host transfer that no compute hides (60.0 % of busy time)" in out
