"""The kernel model against sums done by hand, and what it reads from a program."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from distill.aot.model import GroupedMatmul, KernelModel, Splash, causal_blocks
from distill.aot.model_body import body_of, parse_attributes
from distill.aot.model_calls import describe
from distill.aot.model_constants import BLOCK_CYCLES, VISIT_CYCLES, Constant, Constants, constants_of
from profiler import hlo
from profiler.hardware import CHIPS
from profiler.hlo import Instruction
from profiler.hlo.schema import hlo as messages
from profiler.xplane.schema import BYTES, build_messages

TPU_V7X = next(chip for chip in CHIPS if chip.key == "tpu-v7x")
TPUS = [chip for chip in CHIPS if chip.vendor == "Google"]


def plain(**values: float) -> Constants:
    """Constants that make sums easy: 1 cycle is 1 s, 1 byte takes 1 s, nothing else costs anything."""
    numbers = {"clock": 1.0, "hbm": 1.0, "kernel_hbm_share": 1.0, "mxu": 1.0, "gmm_mxu_share": 1.0}
    numbers |= {"step_overhead": 0.0, "splash_partial_block": 1.0, "splash_row": 0.0}
    numbers |= {"splash_forward_cycles": 1.0, "splash_backward_cycles": 2.0} | values
    return Constants({name: Constant(value, value, value, "", "test") for name, value in numbers.items()})


def gmm(kernel: str = "gmm", **changes: int) -> GroupedMatmul:
    sizes = {"m": 1024, "k": 256, "n": 128, "tm": 512, "tk": 256, "tn": 128, "groups": 4, "item_bytes": 2} | changes
    return GroupedMatmul(kernel, **sizes)


@pytest.mark.parametrize(("sequences", "visits"), [(4, 639), (6, 895), (8, 1151)])
def test_every_boundary_between_experts_adds_a_tile_of_rows(sequences: int, visits: int) -> None:
    """128 experts, 8192 tokens that each visit 8 of them, as in qwen3-30b."""
    assert gmm(m=sequences * 8192 * 8, groups=128).visits == visits


def test_a_compute_bound_gmm_takes_its_visits_times_its_tiles_times_the_cycles_of_a_tile() -> None:
    call = gmm(k=512, n=256)  # two k tiles, two n tiles
    model = KernelModel(plain(hbm=1e30))
    # 2 tiles of rows and 3 boundaries; a tile is 2 · 512 · 256 · 128 FLOP at 1 FLOP a cycle
    assert model.grouped_matmul(call) == pytest.approx(5 * 4 * 2 * 512 * 256 * 128)


def test_a_matrix_that_is_one_k_tile_is_fetched_once_per_expert() -> None:
    model = KernelModel(plain(mxu=1e30))
    rows_in, rows_out, matrix = 512 * 256 * 2, 512 * 128 * 2, 256 * 128 * 2
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * (rows_in + rows_out) + 4 * matrix)


def test_k_tiles_take_turns_so_each_step_fetches_its_part_of_the_matrix() -> None:
    model = KernelModel(plain(mxu=1e30))
    rows_in, rows_out, matrix = 512 * 128 * 2, 512 * 128 * 2, 128 * 128 * 2
    assert model.grouped_matmul(gmm(tk=128)) == pytest.approx(5 * 2 * (rows_in + matrix + rows_out / 2))


def test_tgmm_stores_a_result_per_expert() -> None:
    model = KernelModel(plain(mxu=1e30))
    rows_in, rows_out, matrix = 512 * 256 * 2, 512 * 128 * 2, 256 * 128 * 2
    assert model.grouped_matmul(gmm("tgmm")) == pytest.approx(5 * (rows_in + rows_out) + 4 * matrix)


def test_a_tile_narrower_than_a_register_is_computed_padded() -> None:
    model = KernelModel(plain(hbm=1e30))
    assert model.grouped_matmul(gmm(n=64, tn=64)) == pytest.approx(model.grouped_matmul(gmm()))


def test_every_grid_step_costs_its_overhead() -> None:
    model = KernelModel(plain(hbm=1e30, mxu=1e30, step_overhead=3.0))
    assert model.grouped_matmul(gmm(k=512)) == pytest.approx(5 * 2 * 3.0)


def test_cycles_of_a_known_shape_come_before_the_share_of_the_matrix_unit() -> None:
    key = ("gmm", 512, 256, 128, 256, 128)
    model = KernelModel(plain(hbm=1e30, mxu=1e30), {key: 7.0})
    assert model.known(gmm())
    assert not model.known(gmm("tgmm"))
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * 7.0)


def test_known_cycles_below_what_the_matrix_unit_needs_are_raised_to_that() -> None:
    model = KernelModel(plain(hbm=1e30), {("gmm", 512, 256, 128, 256, 128): 7.0})
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * 2 * 512 * 256 * 128)


def test_a_tile_of_1024_over_768_costs_more_than_one_that_spans_it() -> None:
    """Padding alone is 1.33 times the work; the bundles of both shapes agree with that order."""
    model = KernelModel(constants_of(TPU_V7X), VISIT_CYCLES["tpu-v7x"])
    old = gmm(m=262144, k=2048, n=1024, tk=1024, tn=1024, groups=128)
    new = gmm(m=262144, k=2048, n=768, tk=2048, tn=768, groups=128)
    assert model.known(old)
    assert model.known(new)
    assert model.grouped_matmul(old) / model.grouped_matmul(new) > 1.3


@pytest.mark.parametrize(
    ("length", "block_q", "block_kv", "whole", "cut"),
    [
        (8192, 1024, 1024, 28, 8),
        (8192, 2048, 2048, 6, 4),
        (32768, 2048, 2048, 120, 16),
        (8, 2, 4, 2, 4),
        (8, 4, 2, 2, 4),
    ],
)
def test_blocks_of_a_causal_mask(length: int, block_q: int, block_kv: int, whole: int, cut: int) -> None:
    assert causal_blocks(length, block_q, block_kv) == (whole, cut)


@pytest.mark.parametrize(("length", "block_q", "block_kv"), [(24, 4, 6), (24, 6, 4), (16, 8, 2), (16, 2, 8)])
def test_blocks_of_a_causal_mask_are_those_that_a_mask_shows(length: int, block_q: int, block_kv: int) -> None:
    blocks = [
        [query >= key for query in range(i, i + block_q) for key in range(j, j + block_kv)]
        for i in range(0, length, block_q)
        for j in range(0, length, block_kv)
    ]
    whole = sum(all(block) for block in blocks)
    assert causal_blocks(length, block_q, block_kv) == (whole, sum(any(block) for block in blocks) - whole)


def splash(**changes: object) -> Splash:
    fields = {"direction": "forward", "heads": 3, "block_q": 4, "block_kv": 8, "block_kv_compute": 8, "head_dim": 64}
    fields |= {"layout": 1, "full": 5, "partial": 2, "rows": 2} | changes
    return Splash(**fields)  # type: ignore[arg-type]


def test_splash_takes_heads_times_blocks_rows_and_overheads() -> None:
    model = KernelModel(plain(splash_partial_block=1.5, splash_row=10.0, step_overhead=1.0))
    # 32 scores a block at 1 cycle each
    assert model.splash(splash(skipped=4)) == pytest.approx(3 * (5 * 32 + 2 * 1.5 * 32 + 2 * 10 + (5 + 2 + 4) * 1.0))


def test_the_backward_pass_has_a_rate_of_its_own() -> None:
    model = KernelModel(plain())
    assert model.splash(splash(direction="backward")) == pytest.approx(2 * model.splash(splash()))


def test_a_block_known_in_the_other_layout_is_taken_from_there() -> None:
    model = KernelModel(plain(), block_cycles={("forward", 4, 8, 8, 64, 1): 9.0})
    assert model.known(splash(layout=2))
    assert model.splash(splash(layout=2)) == pytest.approx(3 * 7 * 9.0)


def test_a_teacher_of_narrow_heads_costs_more_than_a_student_of_wide_ones() -> None:
    """32 heads of 128 against 16 of 256: equal cost estimates, but the matrix unit is half filled."""
    model = KernelModel(constants_of(TPU_V7X), block_cycles=BLOCK_CYCLES["tpu-v7x"])
    shape = {"block_q": 1024, "block_kv": 1024, "block_kv_compute": 512, "full": 28, "partial": 8, "rows": 8}
    teacher = model.splash(splash(heads=32, head_dim=128, **shape))
    student = model.splash(splash(heads=16, head_dim=256, **shape))
    assert 1.5 < teacher / student < 1.75


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.key)
def test_every_constant_has_a_source_and_lies_within_its_range(chip: object) -> None:
    for name, constant in constants_of(chip).table.items():  # type: ignore[arg-type]
        assert constant.source, name
        assert min(constant.fast, constant.slow) <= constant.value <= max(constant.fast, constant.slow), name


def test_the_clock_of_tpu_v7x_follows_from_its_peak() -> None:
    assert constants_of(TPU_V7X)["clock"] == pytest.approx(2.2e9, rel=1e-3)


def test_an_end_of_the_ranges_is_read_for_all_constants() -> None:
    constants = constants_of(TPU_V7X)
    assert constants.at("fast")["all_gather"] == pytest.approx(4 * constants["all_gather"])
    assert (
        constants.at("fast")["step_overhead"] == 0 < constants["step_overhead"] < constants.at("slow")["step_overhead"]
    )


def test_a_measured_constant_replaces_the_default() -> None:
    measured = Constant(2e11, 2e11, 2e11, "B/s", "a recording")
    assert constants_of(TPU_V7X, {"all_gather": measured})["all_gather"] == 2e11


ATTRIBUTES = """dimension_semantics = [#tpu.dimension_semantics<parallel>], iteration_bounds = array<i64: 2,
-9223372036854775808, 1>, scalar_prefetch = 4 : i64, window_params = [{transform_indices = @transform_0, window_bounds =
array<i64: 512, 128>}, {transform_indices = @transform_1, window_bounds = array<i64: 1, 128, 64>}]""".replace("\n", " ")


def test_grid_and_blocks_are_read_from_the_kernel_s_entry_function() -> None:
    body = parse_attributes(ATTRIBUTES)
    assert body is not None
    assert body.grid == (2, None, 1)
    assert body.windows == ((512, 128), (1, 128, 64))
    assert body.prefetched == 4


def test_a_function_without_blocks_is_no_entry() -> None:
    assert parse_attributes('"func.func"() ({ }) {sym_name = "transform_0"} : () -> ()') is None


@pytest.mark.parametrize("config", [b"", b'{"body":"****"}', b'{"body":"TUzvUg=="}'])
def test_a_kernel_that_cannot_be_read_has_no_grid(config: bytes) -> None:
    assert body_of(config) is None


# --- calls, read from programs ----------------------------------------------------------------------------------------

BF16, S8, TUPLE = 16, 2, 13


def instruction(computation: Any, name: str, opcode: str, operands: Sequence[Any] = (), **fields: Any) -> Any:
    """Adds an instruction proto; its id follows from its name."""
    found = computation.instructions.add(name=name.encode(), opcode=opcode.encode(), id=zlib.crc32(name.encode()))
    found.operand_ids.extend(each.id for each in operands)
    found.shape.element_type = fields.pop("type", BF16)
    found.shape.dimensions.extend(fields.pop("dims", ()))
    for key, value in fields.items():
        setattr(found, key, value)
    computation.root_id = found.id
    return found


def kernel_call(config: bytes, shapes: Sequence[tuple[int, ...]], result: tuple[int, ...], op_name: str) -> Instruction:
    """A Pallas call on bf16 arrays, as a program holds it."""
    module = messages().HloModuleProto(name=b"jit_step", entry_computation_name=b"main")
    main = module.computations.add(name=b"main", id=1)
    operands = [instruction(main, f"p{i}", "parameter", dims=dims) for i, dims in enumerate(shapes)]
    call = instruction(main, "kernel.1", "custom-call", operands, dims=result, custom_call_target=b"tpu_custom_call")
    call.backend_config, call.metadata.op_name = config, op_name.encode()
    return hlo.parse(module.SerializeToString()).instructions["kernel.1"]


def lowered(function: Any, *shapes: tuple[tuple[int, ...], Any]) -> bytes:
    """The backend config of the one Pallas call of a function, lowered for TPU; no TPU compiler is needed."""
    abstract = [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in shapes]
    text = jax.jit(function).trace(*abstract).lower(lowering_platforms=("tpu",)).as_text()
    match = re.search(r'backend_config = "((?:[^"\\]|\\.)*)"', text[text.index("@tpu_custom_call") :])
    assert match is not None
    return match[1].replace("\\22", '"').replace("\\0A", "\n").encode()


@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_of_a_gmm_are_read_from_its_compiled_kernel(transposed: bool) -> None:
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    matrices = (8, 384, 256) if transposed else (8, 256, 384)

    def run(rows: Any, matrices: Any, sizes: Any) -> Any:
        return kernels.gmm(rows, matrices, sizes, jnp.bfloat16, (128, 128, 384), transpose_rhs=transposed)

    config = lowered(run, ((1024, 256), jnp.bfloat16), (matrices, jnp.bfloat16), ((8,), jnp.int32))
    found = describe(
        kernel_call(config, [(1024, 256), matrices], (1024, 384), "jit(step)/moe_wi_0/jit(gmm)/pallas_call")
    )
    kernel = "gmm transposed" if transposed else "gmm"
    assert found == GroupedMatmul(kernel, 1024, 256, 384, 128, 128, 384, groups=8, item_bytes=2)


def test_tiles_of_a_tgmm_are_read_from_its_compiled_kernel() -> None:
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")

    def run(rows: Any, gradients: Any, sizes: Any) -> Any:
        return kernels.tgmm(rows, gradients, sizes, jnp.bfloat16, (128, 256, 128))

    config = lowered(run, ((256, 1024), jnp.bfloat16), ((1024, 384), jnp.bfloat16), ((8,), jnp.int32))
    call = kernel_call(config, [(1024, 256), (1024, 384)], (8, 256, 384), "jit(step)/moe_wi_0/jit(tgmm)/pallas_call")
    assert describe(call) == GroupedMatmul("tgmm", 1024, 256, 384, 128, 256, 128, groups=8, item_bytes=2)


def splash_call(mask: bytes, direction: str, layout: int, *, in_loop: bool) -> Instruction:
    """A tokamax splash call whose block mask is a constant of the entry, with or without a loop in between."""
    module = messages().HloModuleProto(name=b"jit_step", entry_computation_name=b"main")
    body = module.computations.add(name=b"body", id=1)
    main = module.computations.add(name=b"main", id=2)
    literal = build_messages("test.literal", {"LiteralProto": {"s8s": (15, BYTES)}}).LiteralProto(s8s=mask)
    constant = instruction(
        main, "mask", "constant", type=S8, dims=[len(mask)], literal=literal.SerializeToString()
    )  # fmt: skip
    if in_loop:
        start = instruction(main, "init", "tuple", [constant], type=TUPLE)
        loop = instruction(main, "while.1", "while", [start], type=TUPLE)
        loop.called_computation_ids.extend([1])
        state = instruction(body, "state", "parameter", type=TUPLE)
        constant = instruction(body, "element", "get-tuple-element", [state], type=S8, dims=[len(mask)], tuple_index=0)
    place = body if in_loop else main
    q = instruction(place, "q", "parameter", dims=[2, 3, 64, 4096] if layout == 2 else [2, 3, 4096, 64])
    call = instruction(place, "kernel.1", "custom-call", [constant, q, q, q], dims=[2, 3, 4096, 64])
    call.metadata.op_name = f"jit(step)/vmap(splash_mha_{direction}_segmented_no_residuals)/pallas_call".encode()
    suffix = "_dkv" if direction == "dkv" else ""
    settings = {
        f"block_q{suffix}": 1024,
        f"block_kv{suffix}": 2048,
        f"block_kv{suffix}_compute": 512,
        "q_layout": layout,
    }
    metadata = json.dumps({"xprof_metadata": json.dumps(settings)})
    call.frontend_attributes.map.add(key=b"kernel_metadata", value=metadata.encode())
    return hlo.parse(module.SerializeToString()).instructions["kernel.1"]


@pytest.mark.parametrize("in_loop", [False, True])
def test_blocks_of_a_splash_call_are_those_of_the_mask_that_the_program_holds(in_loop: bool) -> None:
    """1 is a block that the mask cuts, 2 a whole one, 0 an empty one: a window leaves few."""
    found = describe(splash_call(bytes([1, 2, 2, 1, 0, 0, 0, 1]), "fwd", 1, in_loop=in_loop))
    assert found == Splash("forward", 6, 1024, 2048, 512, 64, 1, full=2, partial=3, rows=4, skipped=3)


def test_the_head_width_is_found_in_either_layout_and_the_backward_pass_has_key_rows() -> None:
    found = describe(splash_call(bytes([2, 1]), "dkv", 2, in_loop=True))
    assert found == Splash("backward", 6, 1024, 2048, 512, 64, 2, full=1, partial=1, rows=2, skipped=0)


@pytest.mark.parametrize("layout", ["HEAD_DIM_MINOR", "SEQ_MINOR"])
def test_blocks_of_jax_s_splash_are_read_from_its_compiled_kernel(layout: str) -> None:
    kernels = import_module("jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel")
    masks = import_module("jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask")
    blocks = kernels.BlockSizes(
        block_q=512, block_kv=1024, block_kv_compute=256, q_layout=kernels.QKVLayout[layout],
        block_q_dkv=512, block_kv_dkv=1024, block_kv_dkv_compute=256, block_q_dq=512, block_kv_dq=1024,
    )  # fmt: skip
    mask = masks.MultiHeadMask([masks.CausalMask((2048, 2048))] * 3)
    run = jax.vmap(kernels.make_splash_mha(mask, block_sizes=blocks, head_shards=1, q_seq_shards=1))
    array = ((2, 3, 2048, 128), jnp.bfloat16)
    config = lowered(lambda q, k, v: run(q, k, v), array, array, array)
    q = (2, 3, 2048, 128) if layout == "HEAD_DIM_MINOR" else (2, 3, 128, 2048)
    call = kernel_call(config, [q, array[0], array[0]], array[0], "jit(step)/splash_mha_fwd_no_residuals/pallas_call")
    number = 1 if layout == "HEAD_DIM_MINOR" else 2
    assert describe(call) == Splash("forward", 6, 512, 1024, 1024, 128, number, full=2, partial=4, rows=4)


def test_without_a_mask_a_causal_one_is_taken() -> None:
    found = describe(splash_call(b"", "fwd", 1, in_loop=False))
    assert isinstance(found, Splash)
    assert (found.full, found.partial) == causal_blocks(4096, 1024, 2048)


def test_other_kernels_are_not_described() -> None:
    assert describe(kernel_call(b"{}", [(8, 8)], (8, 8), "jit(step)/my_kernel/pallas_call")) is None
    assert describe(kernel_call(b"{}", [(8, 8), (8, 8, 8)], (8, 8), "jit(step)/jit(gmm)/pallas_call")) is None
