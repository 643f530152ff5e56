"""Cycles from a kernel's code: dumps written by hand, calls taken out of programs, and kernels that libtpu compiles."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from distill.aot import Cache, bundles, find
from distill.aot.bundles import kernel_code
from distill.aot.bundles_call import call_alone, kernel_key
from distill.aot.bundles_dump import QUEUE, Unreadable, read_cycles
from distill.aot.model import KernelCycles
from distill.aot.model_constants import constants_of
from distill.aot.timing import Timer
from distill.config import load
from profiler import hlo
from profiler.hardware import CHIPS
from profiler.hlo import HloModule, Instruction

CHIP = next(chip for chip in CHIPS if chip.key == "tpu-v7x")
HEADER = "= control target key start\nLB: loop body\nPF: predicated region fallthrough\n= control target key end\n\n"

# --- dumps ------------------------------------------------------------------------------------------------------------


def matmul(unit: int = 0, kind: str = "bf16") -> str:
    """A matmul as it is written in a dump; of bf16 it takes its unit for eight cycles."""
    return f"%7 = vmatmul.mubr.{kind}.gmra.mrb[0].mxu{unit} %v1"


def idle(count: int) -> list[str]:
    return ["%s1 = sadd.s32 1, %s2"] * count


def skip(region: int) -> str:
    """A branch over the bundles up to where ``region`` starts."""
    return f"%9 = sbr.rel (%p1) target = $region{region}"


def lands(region: int) -> str:
    """The bundle that a branch to ``region`` goes to."""
    return f"%s3 = sld [smem:[#allocation1]] }} /* Start/End empty region {region} */"


def dump(bundles: Iterable[str]) -> list[str]:
    """A file of final bundles, one statement a bundle."""
    lines = HEADER.splitlines()
    return lines + [f"{at:#6x}   : > {{ {text} }} /* a note\nhlo: kernel */" for at, text in enumerate(bundles)]


def grid(*body: str, before: int = 3, after: int = 2) -> list[str]:
    """A kernel whose grid loop is ``body``, a first bundle that the loop goes back to, and a last that does."""
    first, last = "%s0 = smov.u32 0 } /* Start region 90 */ {", "%36 = sbr.rel (!%p3) target = $region90"
    return dump([*idle(before), first, *body, last, *idle(after)])


def test_a_bundle_is_a_cycle_and_what_is_around_the_grid_s_loop_does_not_count() -> None:
    assert read_cycles(grid(matmul(), *idle(20))) == KernelCycles(0.0, (23.0,), 0.0)
    assert read_cycles(grid(matmul(), *idle(20), before=50, after=70)) == KernelCycles(0.0, (23.0,), 0.0)


def test_matmuls_closer_together_than_a_unit_takes_them_wait_once_its_queue_is_full() -> None:
    count = 20
    assert read_cycles(grid(*[matmul()] * count)).blocks[0] == pytest.approx(count * 8 + 1, abs=1)
    assert read_cycles(grid(*[matmul()] * QUEUE, *idle(40))).blocks[0] == QUEUE + 42


def test_each_matrix_unit_has_a_queue_of_its_own() -> None:
    both = [matmul(unit) for _ in range(20) for unit in (0, 1)]
    assert read_cycles(grid(*both)).blocks[0] == pytest.approx(20 * 8, abs=3)


def test_a_register_of_f32_has_half_the_rows_of_one_of_bf16_and_a_slower_unit_takes_twice_as_long() -> None:
    code = grid(*[matmul(kind="f32")] * 20)
    assert read_cycles(code).blocks[0] == pytest.approx(20 * 4, abs=2)
    assert read_cycles(code, rows_per_cycle=1).blocks[0] == pytest.approx(20 * 8, abs=2)


def test_code_that_a_branch_skips_is_a_block_if_it_has_matmuls_and_else_an_edge() -> None:
    code = grid(
        *idle(4),
        skip(1), *idle(30), lands(1),
        skip(2), *idle(40), matmul(), lands(2),
        skip(3), *idle(60), matmul(), lands(3),
        skip(4), *idle(50), lands(4),
        *idle(6),
    )  # fmt: skip
    found = read_cycles(code)
    # The matmul in the last bundle of a block runs on for seven cycles more.
    assert found.blocks == (40 + 8, 60 + 8)
    assert found.edges == 30 + 50
    assert found.step == 4 + 6 + 8 + 2


def test_blocks_inside_a_skipped_part_leave_the_rest_of_it_to_every_step() -> None:
    inner = [skip(2), *idle(40), matmul(), lands(2), skip(3), *idle(60), matmul(), lands(3)]
    found = read_cycles(grid(*idle(4), skip(1), *idle(5), *inner, *idle(7), lands(1)))
    assert found.blocks == (48, 68)
    assert found.edges == 0
    assert found.step == 4 + 5 + 7 + 6 + 2


def test_the_halves_of_an_if_are_two_blocks() -> None:
    code = grid(skip(1), *idle(40), matmul(), skip(2), lands(1), *idle(60), matmul(), lands(2))
    found = read_cycles(code)
    assert [round(block, -1) for block in found.blocks] == [50, 70]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (dump([matmul()]), "no loop"),
        ([], "no loop"),
        (["\0garbage", "0x1 : {"], "no loop"),
        (grid(*idle(5)), "no loop"),
        (grid(matmul(kind="s8")), "s8"),
        (grid("} /* Start region 5 */ {", matmul(), "%3 = sbr.rel (%p1) target = $region5"), "loop inside"),
        (grid(matmul(), "} /* Start region 5 */ {", "%3 = sbr.rel (%p1) target = $region5"), "loop inside"),
    ],
)
def test_code_that_does_not_tell_is_refused(code: list[str], why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_cycles(code)


# --- calls ------------------------------------------------------------------------------------------------------------


def program(
    m: int = 2048, tm: int = 512, k: int = 256, n: int = 256, *, masked: bool = False, transposed: bool = False
) -> HloModule:
    """One gmm, lowered for TPU: no compiler is needed. ``masked`` leaves it to the kernel to cut the last k tile."""
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    tiles = (tm, 2 * k // 3 // 128 * 128 if masked else k, n)

    def run(rows: Any, matrices: Any, sizes: Any) -> Any:
        return kernels.gmm(rows, matrices, sizes, jnp.bfloat16, tiles, transpose_rhs=transposed)

    matrices = (4, n, k) if transposed else (4, k, n)
    shapes = [((m, k), jnp.bfloat16), (matrices, jnp.bfloat16), ((4,), jnp.int32)]
    arguments = [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in shapes]
    lowered = jax.jit(run).trace(*arguments).lower(lowering_platforms=("tpu",))
    return hlo.parse(lowered.compiler_ir(dialect="hlo").as_serialized_hlo_module_proto())


def kernel(module: HloModule) -> Instruction:
    return next(each for each in module.instructions.values() if each.custom_call_target == "tpu_custom_call")


def test_a_call_is_taken_out_of_its_program_with_its_code_and_shapes() -> None:
    call = call_alone(kernel(program()))
    assert call is not None
    assert call["operands"][-2:] == [("bf16", [2048, 256]), ("bf16", [4, 256, 256])]
    assert call["results"] == [("bf16", [2048, 256])]
    assert "body" in call["config"]["custom_call_config"]
    assert "cost_estimate" not in call["config"]["custom_call_config"]


def test_calls_that_differ_in_rows_only_share_their_cycles_and_others_do_not() -> None:
    key = kernel_key(kernel(program()))
    assert key is not None
    assert kernel_key(kernel(program(m=4096))) == key
    others = [program(tm=256), program(n=512), program(k=384), program(k=384, masked=True), program(transposed=True)]
    assert len({key, *(kernel_key(kernel(each)) for each in others)}) == 6


def test_a_time_from_a_kernel_s_own_code_says_so() -> None:
    call = kernel(program())
    timer = Timer(CHIP, constants_of(CHIP))
    assert timer.estimate(call).source == "kernel model"
    cycles = {kernel_key(call) or "": KernelCycles(100.0, (22000.0,), 50.0)}
    found = Timer(CHIP, constants_of(CHIP), kernels=cycles).estimate(call)
    assert found.source == "kernel code"
    visits = 2048 // 512 + 4 - 1
    assert found.duration_ps == pytest.approx(visits * 22100 / constants_of(CHIP)["clock"] * 1e12)


# --- compiles ---------------------------------------------------------------------------------------------------------

CONFIG, SLICE = load("tiny-qwen3-base").config, find("tpu7x-2x2x1")
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None and not os.environ.get("CI"),
    reason="no TPU compiler: libtpu is missing",
)


def test_without_a_compiler_there_are_no_cycles_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "versions", lambda: {"libtpu": None})
    found = kernel_code(program(), CONFIG, SLICE, cache=Cache(tmp_path))
    assert not found.cycles
    assert "libtpu is not installed" in found.notes[0]


@pytest.mark.parametrize(("python", "says"), [("/bin/false", "exit code 1"), ("/bin/true", "the compiler ended")])
def test_a_compiler_that_ends_early_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, says: str
) -> None:
    monkeypatch.setattr(bundles, "versions", lambda: {"libtpu": "0"})
    monkeypatch.setattr(bundles.sys, "executable", python)
    found = kernel_code(program(), CONFIG, SLICE, cache=Cache(tmp_path))
    assert not found.cycles
    assert says in found.notes[0]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("content", ["", '{"step": 1', '{"step": 1}', "[]"])
def test_a_damaged_file_of_a_kernel_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(bundles, "versions", lambda: {"libtpu": "0"})
    monkeypatch.setattr(bundles.sys, "executable", "/bin/true")
    key = kernel_key(kernel(program()))
    folder = tmp_path / "kernels" / bundles._surroundings(bundles.compiler_flags(CONFIG, os.environ), SLICE)
    folder.mkdir(parents=True)
    (folder / f"{key}.json").write_text(content)
    found = kernel_code(program(), CONFIG, SLICE, cache=Cache(tmp_path))
    assert not found.cycles
    assert "the compiler ended" in found.notes[0]
    assert not [*folder.iterdir()]


def test_a_compiler_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "slow"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(bundles, "versions", lambda: {"libtpu": "0"})
    monkeypatch.setattr(bundles.sys, "executable", str(script))
    monkeypatch.setattr(bundles, "LIMIT_S", 0.5)
    seen: list[str] = []
    found = kernel_code(
        program(), CONFIG, SLICE, cache=Cache(tmp_path / "cache"), progress=lambda phase, *_: seen.append(phase)
    )
    assert "not compiled after" in found.notes[0]
    assert set(seen) == {"kernels"}


@needs_libtpu
@pytest.mark.slow
def test_libtpu_s_code_of_a_gmm_is_read_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 rows through a whole expert of qwen3-30b: 3072 cycles of matmuls at the least, in 2331 bundles."""
    module = program(k=2048, n=768)
    config = load("tiny-qwen3-base", ["xla_flags=[--xla_tpu_scoped_vmem_limit_kib=61440]"]).config
    found = kernel_code(module, config, SLICE, cache=Cache(tmp_path))
    assert found.notes == ()
    ((key, cycles),) = found.cycles.items()
    assert key == kernel_key(kernel(module))
    (block,) = cycles.blocks
    assert block > 3072
    assert cycles.step + block == pytest.approx(3451, rel=0.07)
    monkeypatch.setattr(bundles, "_compile", None)
    assert kernel_code(module, config, SLICE, cache=Cache(tmp_path)).cycles == found.cycles
    assert [file.suffix for file in tmp_path.rglob("*") if file.is_file()] == [".json"]


@needs_libtpu
@pytest.mark.slow
def test_a_kernel_that_libtpu_refuses_is_a_note_and_the_others_have_their_cycles(tmp_path: Path) -> None:
    good = call_alone(kernel(program()))
    assert good is not None
    bad = good | {"config": {"custom_call_config": {"body": "TUzvUg==", "serialization_format": 1}}}
    assert bundles._compile({"bad": bad, "good": good}, CONFIG, SLICE, tmp_path, None) == ""
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("bad", "good")}
    assert "failed" in found["bad"]
    assert len(found["good"]["blocks"]) == 1
