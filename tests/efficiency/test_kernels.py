"""Kernels: calls, FLOPs with their source, share of the peak and tiles, on programs with a known truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import profiler
from profiler import api
from profiler.analysis import kernelcalls
from profiler.report import render_diff, render_html, render_kernels
from profiler.report.output import Style

FORWARD = "jit(step)/jvp(student)/layers/while/body/self_attention/splash_mha_fwd_residuals/pallas_call"
BACKWARD = "jit(step)/transpose(jvp(student))/layers/while/body/self_attention/splash_mha_dkv/pallas_call"
WI = "jit(step)/jvp(student)/layers/while/body/moe_block/moe_wi_0/jit(gmm)/pallas_call"
RERUN = (
    "jit(step)/transpose(jvp(student))/layers/while/body/checkpoint/rematted_computation/moe_block/jit(gmm)/pallas_call"
)
SQUARE = 2 * 2 * 2 * 4 * 1024 * 1024 * 128  # q·k and p·v of 2 × 4 heads, T 1024, D 128


def settings(**values: Any) -> dict[str, str]:
    """As tokamax leaves them: JSON inside JSON, with a raw newline."""
    return {"kernel_metadata": '{\n"xprof_metadata":' + json.dumps(json.dumps(values)) + "\n}"}


def estimate(flops: float) -> bytes:
    return b'{"custom_call_config":{"cost_estimate":{"flops":"%d","bytes_accessed":"1"}}}' % flops


def splash(program: Any, *, rows: int | None, q: str = "bf16[2,4,1024,128]", stack: str = FORWARD, **more: Any) -> Any:
    made = program().op("q", "parameter", q).op("k", "parameter", "bf16[2,4,1024,128]")
    made.op("rows", "parameter", f"s8[{rows}]") if rows else made
    lists = ("rows", "rows") if rows else ()
    return made.op(
        "splash_mha_fwd.1", "custom-call", ("bf16[2,4,1024,128]",), (*lists, "q", "k", "k"), us=100, stack=stack, **more
    )


def test_splash_flops_are_those_of_the_blocks_that_run(program: Any, tmp_path: Path) -> None:
    made = splash(program, rows=10, config=estimate(SQUARE), attributes=settings(block_q=256, block_kv=256, q_layout=1))
    (row,) = profiler.kernels(made.write(tmp_path / "a.xplane.pb")).kernels
    assert (row.family, row.phase) == ("splash forward", "student forward")
    assert (row.calls_per_step, row.mean_time_ps) == (1, 1e8)
    assert row.flops_per_call == SQUARE * 10 / 16
    assert row.flops_sources == ("blocks",)
    assert row.tflops_per_s == pytest.approx(SQUARE * 10 / 16 / 1e8)
    assert row.peak_fraction == pytest.approx(row.tflops_per_s / 918)
    assert row.tiles == ({"block_q": 256, "block_kv": 256, "q_layout": "HEAD_DIM_MINOR"},)


def test_a_layout_turns_queries_and_not_their_flops(program: Any, tmp_path: Path) -> None:
    notes = settings(block_q=256, block_kv=256, q_layout=2)
    made = splash(program, rows=10, q="bf16[2,4,128,1024]", attributes=notes)
    (row,) = profiler.kernels(made.write(tmp_path / "a.xplane.pb")).kernels
    assert row.flops_per_call == SQUARE * 10 / 16
    assert row.tiles[0]["q_layout"] == "SEQ_MINOR"


@pytest.mark.parametrize(
    ("rows", "config", "flops", "source"),
    [
        (16, estimate(SQUARE), SQUARE / 2, "causal"),  # all blocks are listed, and the estimate counts all of them
        (16, estimate(SQUARE * 0.6), SQUARE * 0.6, "estimate"),  # an estimate that knows of the mask
        (None, b"", SQUARE, "full"),  # no mask at all
        (16, b"", SQUARE / 2, "causal"),
    ],
)
def test_without_a_list_of_blocks_the_source_says_what_is_assumed(
    program: Any, tmp_path: Path, rows: int | None, config: bytes, flops: float, source: str
) -> None:
    made = splash(program, rows=rows, config=config, attributes=settings(block_q=256, block_kv=256))
    result = profiler.kernels(made.write(tmp_path / "a.xplane.pb"))
    assert result.kernels[0].flops_per_call == int(flops)
    assert result.kernels[0].flops_sources == (source,)
    assert any(note.code == "causal_assumed" for note in result.warnings) == (source == "causal")


def test_blocks_noted_beside_the_call_count_before_its_list(program: Any, tmp_path: Path) -> None:
    notes = settings(block_q=256, block_kv=256, q_layout=1) | {"kernel_tiles": '{"executed_blocks": 7, "blocks": 16}'}
    (row,) = profiler.kernels(splash(program, rows=16, attributes=notes).write(tmp_path / "a.xplane.pb")).kernels
    assert (row.flops_per_call, row.flops_sources) == (SQUARE * 7 / 16, ("blocks",))
    assert row.tiles == ({"block_q": 256, "block_kv": 256, "q_layout": "HEAD_DIM_MINOR"},)


def test_a_fused_backward_takes_its_own_blocks_and_five_matmuls(program: Any, tmp_path: Path) -> None:
    notes = settings(block_q=256, block_q_dkv=512, block_kv_dkv=512, block_kv_dkv_compute=256)
    made = splash(program, rows=3, stack=BACKWARD, attributes=notes)
    made.computation.instructions[-1].shape.tuple_shapes[0].dimensions.insert(1, 3)  # dq as partial sums
    second = made.computation.instructions[-1].shape.tuple_shapes.add(element_type=16)
    second.dimensions.extend([2, 4, 1024, 128])
    made.ops[-1]["text"] = "%splash_mha_dkv.1 = (bf16[2,3,4,1024,128], bf16[2,4,1024,128]) custom-call(bf16[8] %x)"
    (row,) = profiler.kernels(made.write(tmp_path / "a.xplane.pb")).kernels
    assert row.family == "splash backward (fused)"
    assert row.flops_per_call == 2.5 * SQUARE * 3 / 4
    assert row.tiles == ({"block_q": 512, "block_kv": 512, "block_kv_compute": 256},)


def grouped(program: Any, **more: Any) -> Any:
    made = program().op("x", "parameter", "bf16[4096,512]").op("w", "parameter", "bf16[8,512,256]")
    made.op("sizes", "parameter", "s32[8]")
    made.op("gmm.1", "custom-call", "bf16[4096,256]", ("sizes", "x", "w"), us=50, stack=WI, **more)
    made.op("gmm.2", "custom-call", "bf16[4096,256]", ("sizes", "x", "w"), us=30, stack=RERUN)
    made.op("y", "parameter", "bf16[4096,256]")
    stack = "jit(step)/transpose(jvp(student))/layers/while/body/moe_block/jit(tgmm)/pallas_call"
    return made.op("tgmm.1", "custom-call", "bf16[8,512,256]", ("sizes", "x", "y"), us=20, stack=stack)


def test_grouped_matmuls_count_rows_times_matrices(program: Any, tmp_path: Path) -> None:
    made = grouped(program, attributes={"kernel_tiles": '{"tm":512,"tk":512,"tn":256,"groups":8}'})
    result = profiler.kernels(made.write(tmp_path / "a.xplane.pb", run_info={"layers": 4}))
    by = {(row.family, row.phase): row for row in result.kernels}
    assert set(by) == {("gmm forward", "student forward"), ("gmm forward", "re-run"), ("tgmm", "student backward")}
    assert {row.flops_per_call for row in result.kernels} == {2 * 4096 * 512 * 256}
    assert {row.flops_sources for row in result.kernels} == {("shapes",)}
    assert by["gmm forward", "student forward"].tiles == ({"tm": 512, "tk": 512, "tn": 256, "groups": 8},)
    assert by["tgmm", "student backward"].tiles == ()
    assert by["tgmm", "student backward"].calls_per_layer == 0.25


def test_a_cost_estimate_of_a_grouped_matmul_counts(program: Any, tmp_path: Path) -> None:
    row = profiler.kernels(grouped(program, config=estimate(10**9)).write(tmp_path / "a.xplane.pb")).kernels[0]
    assert (row.flops_per_call, row.flops_sources) == (1e9, ("estimate",))


def test_an_unknown_kernel_has_no_flops_and_no_rate(program: Any, tmp_path: Path) -> None:
    made = program().op("my_attention.1", "custom-call", "bf16[8]", us=5, stack="jit(f)/my_attention/pallas_call")
    result = profiler.kernels(made.write(tmp_path / "a.xplane.pb"))
    (row,) = result.kernels
    assert (row.flops_per_call, row.tflops_per_s, row.peak_fraction, row.flops_sources) == (None, None, None, ())
    assert any(note.code == "kernel_flops_unknown" for note in result.warnings)
    assert "n/a" in render_kernels(result, "text", Style()).decode()


def test_more_than_the_peak_is_flagged(program: Any, tmp_path: Path) -> None:
    result = profiler.kernels(grouped(program, config=estimate(10**12)).write(tmp_path / "a.xplane.pb"))
    assert result.kernels[0].peak_fraction == pytest.approx(1e12 / 5e7 / 918)
    assert any(note.code == "above_peak" for note in result.warnings)
    assert "%  !" in render_kernels(result, "text", Style()).decode().replace("% !", "%  !")


def test_without_the_program_shapes_come_from_the_recorded_text(program: Any, tmp_path: Path) -> None:
    text = (
        "%quantized_matmul_kernel_512_5120_2560.6 = bf16[1024,5120]{1,0:T(8,128)(2,1)} custom-call(bf16[1024,5120] "
        '%x, f4e2m1fn[5120,5120]{1,0} %param.790, f32[10,1,5120]{2,1,0} %p), custom_call_target="tpu_custom_call"'
    )
    made = program()
    made.op("quantized_matmul_kernel_512_5120_2560.6", "custom-call", "bf16[8]", us=100, stack="jit(f)/x", text=text)
    (row,) = profiler.kernels(made.write(tmp_path / "a.xplane.pb", hlo_proto=False)).kernels
    assert (row.flops_per_call, row.flops_sources) == (2 * 1024 * 5120 * 5120, ("shapes",))
    assert row.tiles == ({"block": [512, 5120, 2560]},)


def test_tiles_in_names_are_read() -> None:
    def tiles(name: str) -> Any:
        return kernelcalls.Call(name, (), (), {}).tiles("attention")

    assert tiles("RPA-bq_32-bkvp_64-p_64-.23") == {"bq": 32, "bkvp": 64, "p": 64}
    assert tiles("quantized_matmul_kernel_512_5120_2560.64") == {"block": [512, 5120, 2560]}
    assert tiles("te_fused_attn_forward_ffi.10") == {}
    assert tiles("custom-call.4") == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"tm": true, "tk": {"a": 1}}'])
def test_a_damaged_attribute_costs_its_tiles(text: str) -> None:
    assert kernelcalls.Call("gmm.1", (), (), {"kernel_tiles": text}).tiles("gmm forward") == {}


def test_a_diff_shows_calls_rates_and_the_tiles_that_differ(program: Any, tmp_path: Path) -> None:
    paths = [
        splash(program, rows=10, q=q, attributes=settings(block_q=256, block_kv=256, q_layout=layout)).write(
            tmp_path / f"{layout}.xplane.pb"
        )
        for layout, q in ((1, "bf16[2,4,1024,128]"), (2, "bf16[2,4,128,1024]"))
    ]
    diff = api.diff(*paths)
    text = render_diff(diff, "text", Style()).decode()
    assert "Tiles and layouts that differ" in text
    assert "HEAD_DIM_MINOR" in text.partition("Tiles and layouts")[2]
    assert "<small><bdi>q_layout HEAD_DIM_MINOR → SEQ_MINOR" in render_html(diff).decode()
    gone = replace(diff, optimized=replace(diff.optimized, kernels=()))
    assert "1 → 0" in render_diff(gone, "text", Style()).decode()


def test_tiles_that_only_one_side_notes_are_not_known_to_differ(program: Any, tmp_path: Path) -> None:
    paths = [
        splash(program, rows=10, attributes=settings(block_q=256, **more)).write(tmp_path / f"{len(more)}.xplane.pb")
        for more in ({}, {"block_kv": 256})
    ]
    assert "Tiles and layouts that differ" not in render_diff(api.diff(*paths), "text", Style()).decode()


def test_the_output_follows_the_schema(program: Any, tmp_path: Path, valid: Any) -> None:
    made = grouped(program, attributes={"kernel_tiles": '{"tm":512,"tk":512,"tn":256}'})
    result = profiler.kernels(made.write(tmp_path / "a.xplane.pb"))
    data = valid(render_kernels(result, "json", Style()), "kernels")
    assert [row["calls_per_step"] for row in data["variants"]] == [1, 1, 1]
    rows = render_kernels(result, "csv", Style()).decode().splitlines()
    assert rows[0].startswith("kernel,family,phase,shape,tiles,")
    assert "tm=512; tk=512; tn=256" in rows[1]


@pytest.mark.recordings
def test_serving_kernels_of_a_recording(recordings: Path) -> None:
    result = profiler.kernels(str(recordings / "tpu_qwen3_serving_fp4.xplane.pb"))
    quantized, paged = result.kernels
    assert (quantized.kernel, quantized.calls_per_step, quantized.flops_sources) == (
        "quantized_matmul_kernel", 256, ("shapes",),
    )  # fmt: skip
    assert (paged.kernel, paged.flops_per_call, paged.tiles) == ("RPA", None, ({"bq": 32, "bkvp": 32, "p": 128},))
    assert len([row for row in result.variants if row.kernel == "quantized_matmul_kernel"]) == 4
