"""Reading HLO protos: real ones from recordings and from JAX, built ones, damaged ones."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.errors import UnreadableError
from profiler.hlo import HloModule, kernel_to_instruction, parse
from profiler.hlo.schema import hlo
from profiler.xplane.schema import xspace

TPU_SHAPE = "(f32[5,1024,1024,256]{3,2,1,0:T(8,128)}, f32[5,1024,1024,256]{3,2,1,0:T(8,128)S(5)}, u32[]{:S(2)})"


def modules(recordings: Path, name: str) -> dict[str, HloModule]:
    """The HLO modules in a recording, by their name without the program id."""
    space = xspace().XSpace()
    space.ParseFromString((recordings / f"{name}.xplane.pb").read_bytes())
    metadata = [m.value for p in space.planes if p.name == b"/host:metadata" for m in p.event_metadata]
    return {m.name.decode().partition("(")[0]: parse(s.bytes_value) for m in metadata for s in m.stats if s.bytes_value}


@pytest.fixture(scope="module")
def jax_step() -> tuple[bytes, str, Any]:
    """A scanned and rematerialised step, compiled for the CPU: (proto, HLO text, compiled)."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def layer(x: Any, w: Any) -> Any:
        with jax.named_scope("mlp"):
            return jnp.tanh(x @ w) @ w, None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, w)[0])

        return jax.value_and_grad(loss)(w)

    compiled = jax.jit(step).lower(jnp.ones((5, 16, 16)), jnp.ones((4, 16))).compile()
    module = compiled.runtime_executable().hlo_modules()[0]
    return module.as_serialized_hlo_module_proto(), module.to_string(), compiled


def test_names_opcodes_and_shapes_are_those_of_the_hlo_text(jax_step):
    module, found = parse(jax_step[0]), 0
    for line in jax_step[1].splitlines():
        match = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\(", line)
        if match:
            instruction = module.instructions[match[1]]
            assert instruction.shape == re.sub(r"/\*index=\d+\*/", "", match[2])
            assert instruction.opcode == match[3]
            found += 1
    assert found == len(module.instructions)


def test_a_program_from_jax_shows_phases_sources_and_trip_counts(jax_step):
    module = parse(jax_step[0])
    assert module.name == "jit_step"
    assert module.entry in module.computations
    # The compiler wraps some dots in fusions; the innermost instruction has the stack either way.
    dots = [i for i in module.instructions.values() if i.opcode == "dot"]
    assert {i.flops for i in dots} == {2.0 * 4 * 16 * 16}
    assert {module.executions(i.name) for i in dots} == {5.0}
    assert any("rematted_computation" in name for name in module.op_names)
    assert all(Path(i.source.rpartition(":")[0]).name == Path(__file__).name for i in dots)


def test_flops_of_convolutions_are_those_of_xlas_cost_analysis():
    jax = pytest.importorskip("jax")
    images, kernel = jax.numpy.ones((3, 8, 13, 11)), jax.numpy.ones((6, 8, 3, 4))
    for options in (
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 1), "padding": ((1, 2), (0, 1)), "lhs_dilation": (1, 2), "rhs_dilation": (2, 1)},
        {"window_strides": (3, 2), "padding": ((5, 5), (7, 0)), "lhs_dilation": (3, 1), "rhs_dilation": (1, 3)},
    ):
        convolve = jax.jit(lambda x, k, options=options: jax.lax.conv_general_dilated(x, k, **options))
        compiled = convolve.lower(images, kernel).compile()
        module = parse(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
        flops = [i.flops for i in module.instructions.values() if i.opcode == "convolution"]
        assert sum(flops) == compiled.cost_analysis()["flops"]


@pytest.mark.recordings
def test_a_tpu_program_keeps_its_host_copies_and_its_static_peak(recordings):
    module = modules(recordings, "tpu_v6e_inference")["jit_f"]
    start = module.instructions["copy-start.4"]
    assert start.opcode == "copy-start"
    assert any(i.shape == TPU_SHAPE for i in module.instructions.values() if i.opcode == "copy-start")
    assert module.static_peak_bytes == 21_474_836_512  # 20.00 GiB in HBM; three more of 5 GiB lie in host memory
    assert module.buffers.allocated_bytes == 21_474_934_816
    assert module.buffers.host_bytes == 3 * 5 << 30
    assert module.instructions["broadcast_add_fusion"].fused_opcodes >= {"add", "parameter"}


@pytest.mark.recordings
def test_a_gpu_program_counts_its_library_calls(recordings):
    step = modules(recordings, "gfx950_fused_attention")["jit_loss_fn"]
    assert (
        step.instructions["custom-call.1"].flops == step.instructions["gemm_fusion_dot"].flops == 2 * 4096 * 2048 * 6144
    )
    assert step.instructions["te_fused_attn_forward_ffi.10"].flops is None
    assert step.instructions["te_fused_attn_forward_ffi.10"].op_name == "jit(loss_fn)/jvp()/te_fused_attn_forward_ffi"
    convolution = modules(recordings, "mi300x_conv_new")["jit_forward_3d_conv"]
    assert convolution.instructions["cudnn-conv.1"].flops == 32_715_571_200  # of 36.6 G, the rest is padding


@pytest.mark.recordings
def test_amd_kernels_find_their_instruction(recordings):
    module = modules(recordings, "mi300x_conv_new")["jit_forward_3d_conv"]
    assert kernel_to_instruction(module, "input_transpose_fusion_1.kd") == "input_transpose_fusion.1"
    assert kernel_to_instruction(module, "input_transpose_fusion.kd") == "input_transpose_fusion"
    assert kernel_to_instruction(module, "Im3d2Col.kd") is None


def test_a_kernel_name_that_fits_two_instructions_finds_neither(builder):
    builder.computation("main", ("add_fusion.1", "fusion", (), {}), ("add-fusion.1", "fusion", (), {}))
    assert kernel_to_instruction(parse(builder.bytes()), "add_fusion_1") is None


def test_a_pallas_call_has_the_cost_its_author_estimated(builder):
    config = (
        b'{"custom_call_config":{"body":"TUzvUgF","cost_estimate":{"flops":"1000","bytes_accessed":64},"x":"a\nb"}}'
    )
    builder.computation(
        "main",
        ("k", "custom-call", (), {"backend_config": config, "custom_call_target": b"tpu_custom_call"}),
        ("u", "custom-call", (), {"custom_call_target": b"mystery", "dims": (4,)}),
    )
    module = parse(builder.bytes())
    kernel, unknown = module.instructions["k"], module.instructions["u"]
    assert (kernel.flops, kernel.bytes_accessed, kernel.cost_estimate.transcendentals) == (1000.0, 64.0, None)
    assert (unknown.flops, unknown.bytes_accessed, unknown.cost_estimate) == (None, 16.0, None)


def test_flops_are_summed_into_fusions_and_unknown_parts_stay_unknown(builder):
    dims = hlo().DotDimensionNumbers(lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0])
    builder.computation(
        "body",
        ("a", "parameter", (), {"dims": (4, 8)}),
        ("b", "parameter", (), {"dims": (8, 2)}),
        ("dot", "dot", ("a", "b"), {"dims": (4, 2), "op_name": "jit(f)/dot_general"}),
        ("exp", "exponential", ("dot",), {"dims": (4, 2), "op_name": "jit(f)/exp"}),
    )
    builder.module.computations[0].instructions[2].dot_dimension_numbers.CopyFrom(dims)
    builder.computation("opaque", ("call", "custom-call", (), {}))
    builder.computation(
        "main",
        ("x", "parameter", (), {"dims": (4, 8)}),
        ("fusion", "fusion", ("x",), {"calls": ("body",), "dims": (4, 2)}),
        ("other", "fusion", ("x",), {"calls": ("body", "opaque")}),
    )
    module = parse(builder.bytes())
    fusion = module.instructions["fusion"]
    assert fusion.flops == 2 * 4 * 8 * 2
    assert fusion.bytes_accessed == 4 * (4 * 8 + 4 * 2)
    assert fusion.fused_op_names == ("jit(f)/dot_general", "jit(f)/exp")
    assert module.instructions["other"].flops is None
    assert module.instructions["x"].bytes_accessed == 0.0


def test_impossible_dimensions_are_unknown_not_a_crash(builder):
    builder.computation(
        "main",
        ("huge", "dot", (), {"dims": (2**62,) * 60}),
        ("deep", "add", (), {"dims": (2,) * 10_000}),
        ("negative", "add", (), {"dims": (-5,)}),
        ("fusion", "add", ("huge", "deep"), {"dims": (2,)}),
        ("gemm", "dot", ("huge", "huge"), {"dims": (2**62,) * 60}),
    )
    module = parse(builder.bytes())
    assert [module.instructions[n].bytes_accessed for n in ("huge", "deep", "negative", "fusion")] == [None] * 4
    assert module.instructions["gemm"].flops is None


def test_source_comes_from_the_frame_table_where_the_instruction_has_only_a_frame(builder):
    builder.computation("main", ("a", "add", (), {}), ("b", "add", (), {}))
    index = builder.module.stack_frame_index
    index.file_names.append(b"model.py")
    index.file_locations.add(file_name_id=1, line=42)
    index.stack_frames.add(file_location_id=1)
    builder.module.computations[0].instructions[0].metadata.stack_frame_id = 1
    builder.module.computations[0].instructions[1].metadata.stack_frame_id = 99
    module = parse(builder.bytes())
    assert (module.instructions["a"].source, module.instructions["b"].source) == ("model.py:42", "")


def test_a_name_that_is_not_utf8_costs_one_name(builder):
    builder.computation("main", ("a", "add", (), {"op_name": "jit(f)/add"}))
    builder.module.computations[0].instructions[0].name = b"caf\xe9"
    (instruction,) = parse(builder.bytes()).instructions.values()
    assert instruction.name == "caf\ufffd"
    assert instruction.op_name == "jit(f)/add"


@pytest.mark.parametrize("data", [b"", b"\x00", b"not a proto at all", b"\x0a\x03abc", b"\xff" * 64])
def test_anything_else_is_unreadable(data):
    with pytest.raises(UnreadableError, match="not an HLO program"):
        parse(data)


def test_a_cut_program_is_unreadable_rather_than_partly_believed(builder):
    builder.computation("main", ("a", "add", (), {"op_name": "jit(f)/add"}))
    with pytest.raises(UnreadableError):
        parse(builder.bytes()[:-3])


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), position=st.integers(0, 10**6))
def test_damage_is_an_unreadable_error_or_a_readable_module(jax_step, data, position):
    damaged = bytearray(jax_step[0])
    start = position % len(damaged)
    damaged[start : start + len(data)] = data
    try:
        module = parse(bytes(damaged))
    except UnreadableError:
        return
    for instruction in module.instructions.values():
        assert isinstance(instruction.shape, str)
        assert instruction.flops is None or instruction.flops >= 0
        assert instruction.bytes_accessed is None or instruction.bytes_accessed >= 0
        assert instruction.source is not None
        module.executions(instruction.name)


@pytest.mark.slow
def test_a_ten_megabyte_program_is_parsed_in_proportion_to_its_size(builder):
    stack = "jit(step)/transpose(jvp(student))/layers/while/body/checkpoint/self_attention/" + "x" * 150
    seconds = []
    for name, count in (("main", 3_500), ("more", 31_500)):
        builder.computation(
            name, *((f"{name}.{n}", "fusion", (), {"op_name": stack, "dims": (8, 128)}) for n in range(count))
        )
        data = builder.bytes()
        tries = []
        for _ in range(3):
            begin = time.process_time()
            assert len(parse(data).instructions) in (3_500, 35_000)
            tries.append(time.process_time() - begin)
        seconds.append(min(tries))
    assert len(data) > 9_000_000
    assert seconds[1] < 30 * seconds[0]
