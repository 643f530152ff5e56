"""Rematerialisation: what keeping a tensor would save, on a layer whose dataflow is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import profiler
import sample_profiles
from profiler.analysis import keeping
from profiler.report import render_remat
from profiler.report.output import Style

US = 10**6
AGAIN = "jit(step)/transpose(jvp(student))/layers/while/body/checkpoint/rematted_computation"
BACK = "jit(step)/transpose(jvp(student))/layers/while/body/checkpoint"
FORWARD = "jit(step)/jvp(student)/layers/while/body"
HEADS = "bf16[2,4,1024,128]"
TOKENS = "bf16[2,1024,512]"


@pytest.fixture
def layer(program: Callable[..., Any]) -> Any:
    """One layer's backward pass: attention and one expert matmul run again; times in µs tell the ops apart."""
    made = (
        program()
        .op("x", "parameter", TOKENS)
        .op("w", "parameter", "bf16[8,512,256]")
        .op("sizes", "parameter", "s32[8]")
    )
    made.op("forward.1", "dot", TOKENS, ("x", "x"), us=100, stack=f"{FORWARD}/self_attention/out_proj/dot_general")
    for number, name in enumerate(("query", "key", "value"), 1):
        made.op(f"dot.{number}", "dot", HEADS, ("x",), us=10, stack=f"{AGAIN}/self_attention/{name}_proj/dot_general")
    made.op("multiply.1", "multiply", HEADS, ("dot.1",), us=3, stack=f"{AGAIN}/self_attention/rope/mul")
    made.op(
        "splash_mha_fwd_residuals.1", "custom-call", (HEADS, "f32[2,4,1024]"), ("multiply.1", "dot.2", "dot.3"), us=50,
        stack=f"{AGAIN}/self_attention/splash_mha_fwd_residuals/pallas_call",
    )  # fmt: skip
    made.op("o", "get-tuple-element", HEADS, ("splash_mha_fwd_residuals.1",), index=0)
    made.op("lse", "get-tuple-element", "f32[2,4,1024]", ("splash_mha_fwd_residuals.1",), index=1)
    made.op("all-gather.1", "all-gather", "bf16[8,512,256]", ("w",), us=5, stack=f"{AGAIN}/moe_block/gather/all_gather")
    made.op(
        "all-gather.2", "all-gather", "bf16[512,512]", ("x",), us=7, stack=f"{AGAIN}/self_attention/out_proj/gather"
    )
    out = f"{AGAIN}/self_attention/out_proj/dot_general"
    made.op("dot.4", "dot", TOKENS, ("o", "all-gather.2"), us=20, stack=out)
    made.op(
        "gmm.1", "custom-call", "bf16[2048,256]", ("sizes", "dot.4", "all-gather.1"), us=30,
        stack=f"{AGAIN}/moe_block/moe_wi_0/jit(gmm)/pallas_call",
    )  # fmt: skip
    made.op("multiply.2", "multiply", "bf16[2048,256]", ("gmm.1",), us=4, stack=f"{AGAIN}/moe_block/activation/mul")
    made.op(
        "splash_mha_dkv.1", "custom-call", HEADS, ("multiply.1", "dot.2", "dot.3", "lse"), us=60,
        stack=f"{BACK}/self_attention/splash_mha_dkv/pallas_call",
    )  # fmt: skip
    made.op(
        "dot.5", "dot", TOKENS, ("multiply.2", "all-gather.1"), us=40, stack=f"{BACK}/moe_block/moe_wi_0/dot_general"
    )
    made.op(
        "dot.6", "dot", HEADS, ("dot.1", "splash_mha_dkv.1"), us=8, stack=f"{BACK}/self_attention/qk_norm/dot_general"
    )
    return made.op("root", "tuple", ("bf16[1]",), ("dot.5", "dot.6", "forward.1"))


@pytest.fixture
def report(layer: Any, tmp_path: Path) -> Any:
    return profiler.remat(layer.write(tmp_path / "a.xplane.pb", run_info={"layers": 1}))


def test_what_runs_again_is_listed_by_scope_and_sums_to_the_summary(report: Any) -> None:
    assert report.rerun_time_ps_per_step == sum(row.time_ps_per_step for row in report.ops) == 149 * US
    first = report.ops[0]
    assert (first.scope, first.family, first.calls_per_step) == ("self_attention", "splash forward", 1)
    assert (first.time_ps_per_step, first.calls_per_layer) == (50 * US, 1)
    assert {row.scope for row in report.ops} >= {
        "self_attention/query_proj",
        "moe_block/moe_wi_0",
        "moe_block/activation",
    }


def options(report: Any) -> dict[str, Any]:
    return {row.tensor: row for row in report.options}


def test_keeping_the_context_saves_the_attention_kernel_and_not_its_inputs(report: Any) -> None:
    context = options(report)["context"]
    assert context.saved_time_ps_per_step == 50 * US
    assert context.bytes == context.bytes_per_layer == 2 * 4 * 1024 * 128 * 2 + 2 * 4 * 1024 * 4
    assert context.still_time_ps_per_step == (10 + 10 + 10 + 3) * US  # q, k and v, which dkv needs as well
    assert "log-sum-exp" in context.note


def test_a_projection_that_a_norm_needs_runs_again_all_the_same(report: Any) -> None:
    query, key = options(report)["query_proj"], options(report)["key_proj"]
    assert (query.saved_time_ps_per_step, query.still_time_ps_per_step) == (3 * US, 10 * US)
    assert query.still_families == ("dense matmul",)
    assert (key.saved_time_ps_per_step, key.still_time_ps_per_step) == (10 * US, 0)
    assert query.bytes == key.bytes == 2 * 4 * 1024 * 128 * 2


def test_what_is_computed_only_for_a_kept_tensor_goes_with_it(report: Any) -> None:
    found = options(report)
    assert found["out_proj"].saved_time_ps_per_step == (20 + 7) * US
    assert found["moe_mlpwi_0"].saved_time_ps_per_step == (30 + 20 + 7) * US
    assert found["moe_mlpwi_0"].saved_calls_per_step == 3


def test_keeping_all_of_them_is_more_than_the_sum_of_none(report: Any) -> None:
    everything = report.options[-1]
    assert everything.tensor == "all of these"
    # What is left: the first projection, the activation and the gather of weights that the backward pass uses.
    assert everything.saved_time_ps_per_step == (149 - 10 - 4 - 5) * US
    assert everything.bytes == sum(row.bytes for row in report.options[:-1])


def test_a_gather_that_the_backward_pass_needs_is_told_from_one_it_does_not(report: Any) -> None:
    found = {row.scope: row for row in report.collectives}
    assert found["moe_block/gather"].needed_by_backward is True
    assert found["self_attention/out_proj"].needed_by_backward is False
    assert found["self_attention/out_proj"].exposed_time_ps_per_step == 7 * US


def test_tensors_that_are_not_seen_are_named(report: Any) -> None:
    note = next(note for note in report.warnings if note.code == "tensors_not_seen")
    assert "moe_mlpwi_1, moe_mlpwo" in note.message


def test_without_the_program_the_saving_is_unknown(layer: Any, tmp_path: Path) -> None:
    report = profiler.remat(layer.write(tmp_path / "a.xplane.pb", hlo_proto=False))
    assert report.rerun_time_ps_per_step == 149 * US
    assert report.options == ()
    assert {row.needed_by_backward for row in report.collectives} == {None}
    assert any(note.code == "no_programs" for note in report.warnings)


def test_a_step_without_reruns_says_so(program: Any, tmp_path: Path) -> None:
    made = program().op("dot.1", "dot", TOKENS, us=5, stack=f"{FORWARD}/mlp/dot_general")
    report = profiler.remat(made.write(tmp_path / "a.xplane.pb"))
    assert report.ops == report.options == ()
    assert any(note.code == "no_reruns" for note in report.warnings)
    assert "nothing seen" in render_remat(report, "text", Style()).decode()


def test_the_output_follows_the_schema(report: Any, valid: Any) -> None:
    data = valid(render_remat(report, "json", Style()), "remat")
    assert data["options"][0]["tensor"] == "moe_mlpwi_0"
    rows = render_remat(report, "csv", Style()).decode().splitlines()
    assert len(rows) == 1 + len(report.options)
    assert "What keeping a tensor would cost and save" in render_remat(report, "markdown", Style()).decode()


def test_a_recorded_layer_says_what_its_matmuls_would_cost() -> None:
    report = profiler.remat(str(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz")))
    found = options(report)
    assert set(found) >= {"out_proj", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo"}
    wide = found["moe_mlpwo"]
    assert (wide.layers, wide.bytes_per_layer, wide.bytes) == (4, 4096 * 128 * 4, 4 * 4096 * 128 * 4)
    assert 0 < wide.saved_time_ps_per_step < report.rerun_time_ps_per_step
    assert any(row.tensor == "decoder_layer_input" for row in report.kept)


def test_what_lies_on_the_host_has_the_name_of_the_offloaded_tensor(program: Any, tmp_path: Path) -> None:
    made = program().op("dot.1", "dot", TOKENS, us=5, stack=f"{AGAIN}/mlp/wi/dot_general")
    made.op("dot.2", "dot", TOKENS, ("dot.1",), us=5, stack=f"{BACK}/mlp/dot_general")
    body = made.module.computations.add(name=b"body", id=9)
    done = body.instructions.add(name=b"dynamic-update-slice-done.1", opcode=b"async-done", id=900)
    done.shape.element_type = 16
    done.shape.dimensions.extend([48, 8, 1024])
    done.shape.layout.memory_space = 5
    info = {"config": {"remat_policy": "custom", "decoder_layer_input": "offload"}}
    (row,) = profiler.remat(made.write(tmp_path / "a.xplane.pb", run_info=info)).kept
    assert (row.tensor, row.memory, row.bytes) == ("decoder_layer_input", "host", 48 * 8 * 1024 * 2)


def test_stacks_that_only_the_loss_reads_are_not_kept_for_the_backward_pass(program: Any, tmp_path: Path) -> None:
    made = program().op("x", "parameter", "bf16[4,8]")
    made.op("dot.1", "dot", TOKENS, us=5, stack=f"{AGAIN}/mlp/wi/dot_general")
    for place, reader in (
        ("teacher", "jit(step)/teacher/features/slice"),
        ("jvp(student)", "jit(step)/jvp(student)/features/slice"),
        ("jvp(student)", f"{BACK}/mlp/dot_general"),
    ):
        number = len(made.module.computations)
        inner = made.module.computations.add(name=f"body.{number}".encode(), id=10 + number, root_id=901 + 10 * number)
        stack = inner.instructions.add(name=f"stack.{number}".encode(), opcode=b"dynamic-update-slice")
        stack.id = 900 + 10 * number
        stack.metadata.op_name = f"jit(step)/{place}/layers/while/body/mlp{number}/dynamic_update_slice".encode()
        stack.shape.element_type = 16
        stack.shape.dimensions.extend([48, 8])
        root = inner.instructions.add(name=f"state.{number}".encode(), opcode=b"tuple", id=stack.id + 1)
        root.operand_ids.append(stack.id)
        made.op(f"while.{number}", "while", ("bf16[48,8]",), ("x",), stack=f"jit(step)/{place}/layers/while")
        made.computation.instructions[-1].called_computation_ids.append(inner.id)
        made.op(f"taken.{number}", "get-tuple-element", "bf16[48,8]", (f"while.{number}",))
        made.op(f"read.{number}", "slice", "bf16[1,8]", (f"taken.{number}",), us=5, stack=reader)
    (row,) = profiler.remat(made.write(tmp_path / "a.xplane.pb")).kept
    assert (row.tensor, row.bytes) == ("mlp3", 48 * 8 * 2)


@pytest.mark.parametrize(
    ("scope", "tensor"),
    [
        ("moe_block/moe_wi_0", "moe_mlpwi_0"), ("moe_block/mlp/wi_1", "moe_mlpwi_1"), ("moe_block/wo", "moe_mlpwo"),
        ("mlp/wi_0", "mlpwi_0"), ("mlp/wo", "mlpwo"), ("self_attention/out_proj", "out_proj"),
        ("self_attention/out", "out_proj"), ("self_attention/query_proj", None), ("router", None),
    ],
)  # fmt: skip
def test_a_scope_tells_the_tensor_of_a_matmul(scope: str, tensor: str | None) -> None:
    assert keeping._matmul_tensor(scope) == tensor
