"""Ops are matched by what they are, not by what this compile called them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiler
from profiler.compare.align import scope, stable_name, stable_shape, stable_stack
from profiler.xplane.write import SpaceBuilder

STACK = "jit(step)/jvp(student)/layers/while/body"


def space_of(ops: list[dict]) -> SpaceBuilder:
    """One TPU, one program: ops with name, stack, category, shape, calls and time per call, one after another."""
    space = SpaceBuilder()
    plane = space.plane("/device:TPU:0", stats={"device_type_string": "TPU v6 Lite"})
    line = plane.line("XLA Ops")
    now = 0
    for number, op in enumerate(ops):
        category = op.get("category", "loop fusion")
        opcode = {"custom-call": "custom-call"}.get(category, "fusion")
        for _ in range(op.get("calls", 1)):
            line.event(
                f"%{op['name']} = {op.get('shape', 'f32[8]{0}')} {opcode}(f32[8]{{0}} %x)",
                now,
                op["time"],
                display_name=op["name"],
                metadata_stats={
                    "program_id": op.get("program", 7),
                    "symbol_id": number + 1,
                    "hlo_category": category,
                    "shape_with_layout": op.get("shape", "f32[8]{0}"),
                    "tf_op": op.get("stack", f"{STACK}/add") + ":",
                    "source": op.get("source", "model.py:1"),
                },
            )
            now += op["time"]
    plane.line("XLA Modules").event("jit_step(7)", 0, now)
    return space


@pytest.fixture
def diff_of(saved):
    def run(baseline: list[dict], optimized: list[dict]):
        return profiler.diff(saved(space_of(baseline), "base.xplane.pb"), saved(space_of(optimized), "opt.xplane.pb"))

    return run


DOT, CALL = "convolution fusion", "custom-call"
MODEL = [
    {"name": name, "stack": f"{STACK}/{stack}", "category": category, "time": time}
    for name, stack, category, time in (
        ("fusion.1", "self_attention/query/dot_general", DOT, 900),
        ("splash_mha_fwd.2", "self_attention/splash_mha_fwd/pallas_call", CALL, 800),
        ("fusion.3", "moe_block/router/dot_general", DOT, 100),
        ("gmm.4", "moe_block/jit(gmm)/pallas_call", CALL, 700),
        ("multiply_add_fusion.5", "norm/mul", "loop fusion", 50),
        ("copy.6", "transpose", "data formatting", 30),
    )
]


def test_a_file_against_itself_is_the_same_in_everything(diff_of) -> None:
    diff = diff_of(MODEL, MODEL)
    assert diff.matched_time_fraction == 1
    assert set(diff.ops["match"]) == {"same"}
    assert set(diff.ops["delta_time_ps"]) == {0.0}
    assert all(part.time_ps == 0 for part in diff.contributions)
    assert diff.delta.step_time_ratio == 1
    assert diff.findings == ()


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_renumbering_and_shuffling_instructions_changes_nothing(tmp_path_factory, rng: random.Random) -> None:
    folder = tmp_path_factory.mktemp("shuffle")
    numbers = rng.sample(range(1000, 9999), len(MODEL))
    renamed = [
        op | {"name": f"{op['name'].rsplit('.', 1)[0]}.{number}", "program": 99}
        for op, number in zip(MODEL, numbers, strict=True)
    ]
    rng.shuffle(renamed)
    before = space_of(MODEL).write(folder / "a.xplane.pb")
    after = space_of(renamed).write(folder / "b.xplane.pb")
    diff = profiler.diff(str(before), str(after))
    assert diff.matched_time_fraction == 1
    assert set(diff.ops["match"]) == {"same"}
    assert diff.ops["delta_time_ps"].abs().sum() == 0
    assert all(part.time_ps == 0 for part in diff.contributions)
    assert diff.findings == ()


def test_a_kernel_whose_tiles_changed_is_one_changed_op(diff_of) -> None:
    stack = "jit(f)/attn/RPA-bq_32-bkvp_{}-p_64-/pallas_call"
    base = [{"name": "RPA-bq_32-bkvp_64-p_64-.17", "stack": stack.format(64), "category": "custom-call", "time": 170}]
    opt = [{"name": "RPA-bq_32-bkvp_32-p_64-.23", "stack": stack.format(32), "category": "custom-call", "time": 205}]
    rows = diff_of(base, opt).ops
    assert rows.select("match", "family", "delta_time_ps").rows() == [("changed", "attention", 35.0)]


def test_matmuls_that_became_quantized_kernels_are_replaced_one_for_one_by_scope(diff_of) -> None:
    base = [
        {"name": f"fusion.{i}", "stack": f"jit(f)/{layer}/mn,pn->mp/dot_general", "category": DOT, "time": 100}
        for i, layer in enumerate(["up", "up", "down"])
    ]
    kernel = "quantized_matmul_kernel_512"
    opt = [
        {"name": f"{kernel}.{i}", "stack": f"jit(f)/{layer}/{kernel}/pallas_call", "category": CALL, "time": 60}
        for i, layer in enumerate(["up", "down", "up"])
    ]
    diff = diff_of(base, opt)
    rows = diff.ops.sort("baseline_calls")
    assert rows.select("match", "baseline_calls", "optimized_calls", "delta_time_ps").rows() == [
        ("replaced", 1.0, 1.0, -40.0),
        ("replaced", 2.0, 2.0, -80.0),
    ]
    assert diff.findings[0].title.startswith("dense matmul replaced by quantized matmul")
    assert diff.findings[0].time_ps == -120


def test_instructions_beyond_one_for_one_are_added(diff_of) -> None:
    one = {"name": "fusion.1", "stack": f"{STACK}/norm/mul", "time": 10}
    more = [one | {"name": f"fusion.{i}"} for i in range(5)]
    rows = {row["match"]: row for row in diff_of([one], more).ops.iter_rows(named=True)}
    assert (rows["same"]["baseline_calls"], rows["same"]["optimized_calls"]) == (1, 1)
    assert (rows["added"]["optimized_calls"], rows["added"]["optimized_time_ps"]) == (4, 40)
    assert rows["added"]["baseline_op"] is None


def test_one_instruction_that_runs_twice_as_often_is_one_row_with_more_calls(diff_of) -> None:
    op = {"name": "fusion.1", "stack": f"{STACK}/norm/mul", "time": 10}
    (row,) = diff_of([op | {"calls": 4}], [op | {"calls": 8}]).ops.iter_rows(named=True)
    assert (row["match"], row["baseline_calls"], row["optimized_calls"]) == ("same", 4, 8)
    assert (row["calls_time_ps"], row["per_call_time_ps"]) == (40, 0)


def test_the_phase_keeps_a_re_run_apart_from_the_forward_it_repeats(diff_of) -> None:
    forward = {
        "name": "fusion.1",
        "stack": "jit(step)/jvp()/layer/dot_general",
        "category": "convolution fusion",
        "time": 10,
    }
    rerun = forward | {
        "name": "fusion.2",
        "stack": "jit(step)/transpose(jvp())/checkpoint/rematted_computation/layer/dot_general",
    }
    diff = diff_of([forward, rerun], [forward])
    assert {row["match"]: row["phase"] for row in diff.ops.iter_rows(named=True)} == {
        "same": "forward",
        "removed": "re-run",
    }
    assert diff.baseline.remat.rerun_calls_per_step == 1
    assert diff.optimized.remat.rerun_calls_per_step == 0


def test_no_time_is_ever_dropped(diff_of) -> None:
    diff = diff_of(MODEL, [*MODEL[2:], {"name": "new.9", "stack": "jit(step)/elsewhere/sort", "time": 123}])
    for which, summary in (("baseline", diff.baseline), ("optimized", diff.optimized)):
        busy = sum(row.time_ps_per_step for row in summary.families if row.category != "idle")
        assert diff.ops[f"{which}_time_ps"].sum() == pytest.approx(busy)


def test_what_changes_between_compiles_is_left_out_of_names() -> None:
    assert stable_name("fusion.123.remat2") == stable_name("fusion.7")
    assert stable_name("jit_f(12190760917235803885)") == stable_name("jit_f(42)")
    assert stable_stack("a/layers_12/mul;b/c") == "a/layers_#/mul"
    assert stable_shape("bf16[4,128]{1,0:T(8,128)(2,1)S(1)}") == "bf16[4,128]"
    assert scope("jit(f)/MLP/mn,pn->mp/dot_general") == "MLP"
    assert scope("jit(f)/MLP/shard_map/jit(k)/k_512/pallas_call") == "MLP"
