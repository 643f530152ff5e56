"""``profiler memory`` and the memory tables of a diff, as people and programs read them."""

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
from profiler.report import render_diff, render_memory
from profiler.report.output import Style
from profiler.report.plot import HEIGHT, Plot, plot_lines

GIB = 1 << 30
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "memory.schema.json"


def closed(node: Any) -> Any:
    """The schema with no property allowed that it does not describe."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        return {**node, "additionalProperties": False} if "properties" in node else node
    return [closed(item) for item in node] if isinstance(node, list) else node


def tensor(name: str | None = "mlp/wi", size: int = 2 * GIB, **kw: Any) -> results.MemoryTensor:
    given = {"group": "temporaries", "part": "forward", "stack": "layers", "shape": "bf16[48,6,8192,2048]", **kw}
    return results.MemoryTensor(
        tensor=name, bytes=size, count=2, instruction="fusion.3", name_stack="jit(f)/mul", **given
    )


def report(**changes: Any) -> results.MemoryReport:
    point = results.MemoryPoint(5, 4 * GIB, "backward", "fusion.9", "mlp")
    allocator = results.AllocatorRow("device 0", "h", False, 7 * GIB, 5 * GIB, 2 * GIB, 6 * GIB, 95 * GIB, 0.1)
    full = results.MemoryReport(
        file="run.xplane.pb",
        label="run",
        kind="recorded",
        devices=(results.DeviceInfo("TPU:0", "TPU7x", 1153.5, 96 * GIB),),
        memory=results.Memory(4 * GIB, 7 * GIB, 6 * GIB, 95 * GIB, 5 * GIB, 12 * GIB),
        capacity_source="the allocator's limit",
        fragmentation_bytes=GIB,
        static_headroom_bytes=90 * GIB,
        window_headroom_bytes=88 * GIB,
        program="jit_step",
        programs=(results.ProgramMemory("jit_step", "18446744073709551615", 4 * GIB, 5 * GIB, GIB, 12 * GIB),) * 2,
        groups=(
            results.MemoryGroup("parameters", GIB, 0.25),
            results.MemoryGroup("temporaries", 3 * GIB, 0.75),
            results.MemoryGroup("inputs", 100, 0.0),
            results.MemoryGroup("constants", 200, 0.0),
        ),
        stacks=(results.MemoryStack("layers", 3 * GIB, 0.75), results.MemoryStack(None, GIB, 0.25)),
        tensors=(tensor(), tensor(None, GIB), tensor("w", GIB, group="parameters", part="teacher parameters")),
        curve=results.MemoryCurve(9, (results.MemoryPoint(2, GIB, "forward"), point), (point,)),
        allocators=(allocator, allocator),
        warnings=(results.Note("no_heap_trace", "no heap trace"),),
    )  # fmt: skip
    return replace(full, **changes)


def unknown() -> results.MemoryReport:
    gone = dict.fromkeys(
        ("capacity_source", "fragmentation_bytes", "static_headroom_bytes", "window_headroom_bytes", "program", "curve")
    )
    empty = dict.fromkeys(("programs", "groups", "stacks", "tensors", "allocators"), ())
    return report(memory=results.Memory(), **gone, **empty)


def text(found: results.MemoryReport, width: int = 100, **style: Any) -> str:
    return render_memory(found, "text", Style(width=width, **style)).decode()


@pytest.mark.parametrize("make", [report, unknown])
def test_the_json_follows_its_schema(make: Any) -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(render_memory(make(), "json", Style()))
    jsonschema.validate(data, closed(schema), cls=jsonschema.Draft202012Validator)
    assert set(schema["properties"]) == {"schema_version", *results.MemoryReport.__dataclass_fields__}


def test_the_three_peaks_are_named_each_with_its_kind() -> None:
    out = text(report())
    assert "static peak    4.000 GiB (jit_step)" in out
    assert "allocated      5.000 GiB: the static peak and 1.000 GiB lost to fragmentation" in out
    assert "window peak    7.000 GiB (device 0: 5.000 GiB reserved by programs, 2.000 GiB allocated)" in out
    assert "lifetime peak  6.000 GiB" in out
    assert "90.00 GiB above what the plan allocates; 88.00 GiB above the window's peak" in out
    assert "host memory    12.00 GiB in the plan" in out


def test_the_unknown_is_not_available_and_not_zero() -> None:
    out = text(unknown())
    assert out.count("n/a") == 7
    assert " 0" not in out.replace("run", "")


def test_groups_sum_to_the_peak_and_small_ones_share_a_row() -> None:
    out = text(report())
    assert "constants, inputs" in out or "inputs, constants" in out
    assert "sum = static peak" in out


@pytest.mark.parametrize("width", [60, 80, 100])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in text(report(), width).splitlines()) <= width


def test_a_terminal_without_unicode_gets_none() -> None:
    assert text(report(), unicode=False).isascii()


def test_the_csv_holds_the_tensors() -> None:
    rows = list(csv.DictReader(io.StringIO(render_memory(report(), "csv", Style()).decode())))
    assert [row["tensor"] for row in rows] == ["mlp/wi", "", "w"]
    assert rows[0]["bytes"] == str(2 * GIB)


def test_markdown_has_the_curve_in_a_fence() -> None:
    out = render_memory(report(), "markdown", Style()).decode()
    assert "```text\n" in out
    assert "B backward" in out


def test_a_plot_reaches_the_top_where_the_peak_is_and_names_the_phases() -> None:
    lines = list(plot_lines(Plot((1, 4, 2, 0), ("teacher", "student forward", "student backward", None)), width=4))
    assert len(lines) == HEIGHT + 3
    assert lines[0].endswith("│ █")
    assert lines[-2].endswith("TFB·")
    assert lines[-1].strip() == "T teacher, F student forward, B student backward"
    assert list(plot_lines(Plot((), ()))) == []


def test_a_diff_says_what_came_and_went_at_the_peak(make: Any) -> None:
    group, change = results.MemoryGroupDelta, results.MemoryTensorDelta
    found = results.MemoryDelta(
        "jit_step",
        "jit_step",
        (group("parameters", GIB, GIB), group("saved for backward", GIB, 19 * GIB)),
        (
            change("came", *["saved for backward"] * 2, "layers", "splash", None, "bf16[8]", 0, 18 * GIB, 0, 1),
            change("shrank", "temporaries", "backward", None, None, "f32[4]", "f32[2]", 4 * GIB, 2 * GIB, 1, 1),
        ),
        GIB,
        GIB // 2,
        None,
        None,
    )  # fmt: skip
    out = render_diff(replace(make.training(), memory=found), "text", Style()).decode()
    assert "HBM at the peak" in out
    assert any(line.split()[:3] == ["saved", "for", "backward"] and "+18.00" in line for line in out.splitlines())
    assert "sum of the groups = static peak" in out
    assert "headroom" not in out
    assert any(line.startswith("came") and "splash" in line for line in out.splitlines())
    assert "unnamed, outside the layers" in out
    same = replace(found, groups=found.groups[:1], tensors=())
    assert "the same on both sides" in render_diff(replace(make.training(), memory=same), "text", Style()).decode()
