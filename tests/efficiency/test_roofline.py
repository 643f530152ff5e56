"""Roofline: bound, distance and wasted time, on ops with known FLOPs, bytes and times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiler
from profiler import api
from profiler.report import render_ops, render_roofline
from profiler.report.output import Style

US = 10**6
PEAK, BANDWIDTH = 918e12, 1638e9  # TPU v6e
STACK = "jit(step)/jvp(layers)/mlp"


@pytest.fixture
def ops(program: Any) -> Any:
    """A matmul at half the peak, an elementwise op at half the bandwidth, an op above it, one of unknown FLOPs."""
    made = program().op("x", "parameter", "bf16[8]")
    made.op("dot.1", "dot", "bf16[8]", us=100, stack=f"{STACK}/dot_general", flops=int(PEAK * 50e-6), bytes=10**6)
    made.op("add.1", "add", "bf16[8]", us=40, stack=f"{STACK}/add", flops=10**6, bytes=int(BANDWIDTH * 20e-6))
    made.op("multiply.7", "multiply", "bf16[8]", us=10, stack=f"{STACK}/mul", flops=0, bytes=int(BANDWIDTH * 20e-6))
    made.op("mine.1", "custom-call", "bf16[8]", us=30, stack=f"{STACK}/mine/pallas_call")
    made.op("copy-start.2", "copy-start", "bf16[8]", us=1, bytes=10**9)
    return made.op("copy-done.2", "copy-done", "bf16[8]", us=19, bytes=10**9)


@pytest.fixture
def result(ops: Any, tmp_path: Path) -> Any:
    info = {"model_tflops_per_device_per_step": PEAK * 40e-6 / 1e12}
    return profiler.roofline(ops.write(tmp_path / "a.xplane.pb", run_info=info))


def by_name(result: Any) -> dict[str, Any]:
    return {row.op: row for row in result.ops}


def test_a_matmul_is_bound_by_arithmetic_and_an_addition_by_memory(result: Any) -> None:
    dot, add = by_name(result)["dot.1"], by_name(result)["add.1"]
    assert (dot.bound, add.bound) == ("compute", "memory")
    assert dot.roof_time_ps_per_step == pytest.approx(50 * US)
    assert dot.roof_fraction == pytest.approx(0.5)
    assert add.roof_fraction == pytest.approx(0.5)
    assert add.gb_per_s == pytest.approx(BANDWIDTH / 2 / 1e9)
    assert result.ridge_flops_per_byte == pytest.approx(PEAK / BANDWIDTH)


def test_ops_are_ranked_by_wasted_time(result: Any) -> None:
    assert [row.op for row in result.ops[:2]] == ["dot.1", "add.1"]
    assert [row.wasted_time_ps_per_step for row in result.ops[:2]] == pytest.approx([50 * US, 20 * US])


def test_an_op_above_its_roof_is_flagged_and_wastes_nothing(result: Any) -> None:
    row = by_name(result)["multiply.7"]
    assert row.roof_fraction == pytest.approx(2)
    assert row.wasted_time_ps_per_step == 0
    assert any(note.code == "above_roof" for note in result.warnings)
    family = next(row for row in result.families if row.family == "norm / elementwise")
    assert family.wasted_time_ps_per_step == pytest.approx(20 * US)
    assert family.roof_fraction == pytest.approx(1 - 20 / 50)


def test_unknown_flops_give_no_roof(result: Any) -> None:
    row = by_name(result)["mine.1"]
    assert (row.bound, row.roof_fraction, row.wasted_time_ps_per_step, row.flops_per_call) == (None,) * 4
    assert "unknown: mine.1" in render_roofline(result, "text", Style()).decode()


def test_transfers_are_left_out_with_their_halves(result: Any) -> None:
    assert not {"copy-start.2", "copy-done.2"} & set(by_name(result))
    assert sum(row.time_ps_per_step for row in result.left_out) == 20 * US


def test_mfu_and_hfu_stand_apart(result: Any) -> None:
    assert result.mfu == pytest.approx(40 / 200)
    assert result.hfu == pytest.approx(50 / 200, rel=1e-3)


def test_layers_that_differ_in_their_numbers_are_one_row(program: Any, tmp_path: Path) -> None:
    made = program()
    for layer in range(3):
        stack = f"jit(step)/jvp(layers_{layer})/mlp/dot_general"
        made.op(f"dot.{layer}", "dot", "bf16[8]", us=10, stack=stack, flops=10**9, bytes=10**6)
    (row,) = profiler.roofline(made.write(tmp_path / "a.xplane.pb")).ops
    assert (row.instructions, row.calls_per_step, row.mean_time_ps) == (3, 3, 10 * US)


def test_without_a_known_chip_nothing_has_a_roof(ops: Any, tmp_path: Path) -> None:
    ops.device = "TPU of tomorrow"
    path = ops.write(tmp_path / "a.xplane.pb")
    result = profiler.roofline(path)
    assert {row.bound for row in result.ops} == {None}
    assert result.ridge_flops_per_byte is None
    assert any(note.code == "no_roof" for note in result.warnings)
    given = profiler.roofline(path, api.Options(peak_tflops=918.0), hbm_gb_per_s=1638.0)
    assert by_name(given)["add.1"].roof_fraction == pytest.approx(0.5)


def test_a_matmul_kernel_without_bytes_takes_those_of_its_arrays(program: Any, tmp_path: Path) -> None:
    made = program().op("x", "parameter", "bf16[1024,512]").op("w", "parameter", "bf16[8,512,256]")
    made.op("gmm.1", "custom-call", "bf16[1024,256]", ("x", "w"), us=10, stack="jit(f)/jvp(m)/jit(gmm)/pallas_call")
    (row,) = profiler.roofline(made.write(tmp_path / "a.xplane.pb")).ops
    assert row.bytes_per_call == 2 * (1024 * 512 + 8 * 512 * 256 + 1024 * 256)


def test_the_halves_of_an_async_op_have_no_bandwidth_in_the_op_table(ops: Any, tmp_path: Path) -> None:
    text = render_ops(profiler.ops(ops.write(tmp_path / "a.xplane.pb")), "text", Style()).decode()
    for op in ("copy-start.2", "copy-done.2"):
        assert next(line for line in text.splitlines() if line.startswith(op)).split()[-2:] == ["–", "–"]


def test_the_output_follows_the_schema(result: Any, valid: Any) -> None:
    data = valid(render_roofline(result, "json", Style()), "roofline")
    assert [row["op"] for row in data["ops"]][:2] == ["dot.1", "add.1"]
    assert len(valid(render_roofline(result, "json", Style(), 1), "roofline")["ops"]) == 1
    assert len(render_roofline(result, "csv", Style()).decode().splitlines()) == 1 + len(result.ops)


@pytest.mark.recordings
def test_a_recorded_op_reaches_most_of_the_bandwidth(recordings: Path) -> None:
    result = profiler.roofline(str(recordings / "tpu_v6e_inference.xplane.pb"))
    row = result.ops[0]
    assert (row.family, row.bound) == ("norm / elementwise", "memory")
    assert 0.8 < row.roof_fraction < 0.9
    assert not any("copy" in each.op for each in result.ops)
