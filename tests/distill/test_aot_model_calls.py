"""What the kernel model reads from a program: shapes, tiles, and blocks really executed."""

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

from distill.aot import model_calls
from distill.aot.model import GroupedMatmul, Splash, causal_blocks
from distill.aot.model_body import body_of, parse_attributes, structure_of
from distill.aot.model_calls import describe
from profiler import hlo
from profiler.hlo import Instruction
from profiler.hlo.schema import hlo as messages
from profiler.xplane.schema import BYTES, build_messages

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
    assert structure_of(config) is None


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


def splash_call(
    mask: bytes,
    direction: str,
    layout: int,
    *,
    in_loop: bool,
    batch: tuple[int, ...] = (2,),
    listed: int | None = None,
) -> Instruction:
    """A tokamax splash call whose block mask is a constant of the entry, with or without a loop in between.

    ``listed``: the program sorts the mask and hands on a list of so many blocks.
    """
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
    if listed is not None:
        keys = instruction(place, "keys", "iota", dims=[len(mask)])
        ordered = instruction(place, "sort.1", "sort", [keys, constant], type=TUPLE)
        second = instruction(place, "second", "get-tuple-element", [ordered], type=S8, dims=[len(mask)], tuple_index=1)
        constant = instruction(place, "fusion.1", "fusion", [second], type=S8, dims=[listed])
    q = instruction(place, "q", "parameter", dims=[*batch, 3, *((64, 4096) if layout == 2 else (4096, 64))])
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


def test_a_mask_that_the_program_sorts_is_found_behind_the_sort() -> None:
    found = describe(splash_call(bytes([1, 2, 1, 1]), "fwd", 1, in_loop=True, listed=4))
    assert found == Splash("forward", 6, 1024, 2048, 512, 64, 1, full=1, partial=3, rows=4, skipped=0)


@pytest.mark.parametrize(("rows", "blocks", "whole", "cut"), [(16, 31, 0, 31), (16, 16, 0, 16), (4, 9, 3, 6)])
def test_the_blocks_of_a_band_are_whole_between_its_edges(rows: int, blocks: int, whole: int, cut: int) -> None:
    assert model_calls._band(rows, blocks) == (whole, cut)


def test_a_batch_of_one_sequence_has_no_axis() -> None:
    found = describe(splash_call(bytes([2, 1]), "fwd", 2, in_loop=True, batch=()))
    assert found == Splash("forward", 3, 1024, 2048, 512, 64, 2, full=1, partial=1, rows=4, skipped=0)


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
