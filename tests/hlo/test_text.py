"""Instructions are written as XLA writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.api import load
from profiler.hlo import HloModule, parse
from profiler.hlo.attributes import MOST_CONFIG, clean, quoted
from profiler.hlo.schema import hlo
from profiler.hlo.text import MOST_LETTERS, MOST_LINES, MOST_OPERANDS, bodies, bounded, constant, line, notes

_INSTRUCTION = re.compile(r"^  (ROOT )?%([\w.\-]+) = ")
_INDEX = re.compile(r"/\*index=\d+\*/")  # XLA numbers long lists; here nobody counts them
_RANKED = re.compile(r"= \w+\[\d+,[\d,]*\]\S* constant\(")  # of larger constants only the first dimension is spelled


def compiled_by_xla():
    """Programs for a CPU, with as many kinds of instructions as a small function gives."""
    jax = pytest.importorskip("jax")
    jnp, lax = jax.numpy, jax.lax

    def many(x, w):
        y, sums = lax.scan(lambda c, _: ((h := jnp.tanh(c @ w)), h.sum()), x, None, length=4)
        picked = jnp.take(y, jnp.array([0, 3, 2]), axis=0)
        window = w[:3, :3].reshape(1, 1, 3, 3)
        return (
            lax.conv_general_dilated(y.reshape(1, 1, 8, 8), window, (2, 1), "SAME", rhs_dilation=(1, 2)),
            lax.dot_general(y.reshape(2, 4, 8), y.reshape(2, 4, 8), (((2,), (2,)), ((0,), (0,))), precision="highest"),
            jnp.sort(y, axis=1),
            jnp.pad(y, ((1, 1), (0, 2))).sum(),
            y[1:3, ::2],
            lax.dynamic_update_slice(y, picked, (0, 0)),
            y.at[jnp.array([0, 2])].add(picked[:2]),
            jnp.argmax(y, axis=1),
            lax.reduce_precision(y, 8, 7),
            lax.cond(sums[0] > 0, lambda a: a * 2, lambda a: a @ a, y),
            lax.while_loop(lambda c: c[0] < x[0, 0], lambda c: (c[0] + 1, c[1] * 2), (0.0, y))[1],
            lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME"),
            jax.random.normal(jax.random.key(0), (8,)),
            jnp.concatenate([y, y], 1).T * 1e-5,
            y.astype(jnp.float16) * jnp.float16(0.3),
        )

    def loss(x, w):
        return jnp.sum(jnp.tanh(x @ w) * jnp.sort(x)) + jnp.sum(many(x, w)[11])

    arguments = jnp.ones((8, 8)), jnp.ones((8, 8))
    for function in (many, jax.grad(loss)):
        yield jax.jit(function).lower(*arguments).compile().runtime_executable().hlo_modules()[0]


@pytest.mark.parametrize("operand_shapes", [True, False])
def test_lines_are_those_that_xla_prints(operand_shapes: bool) -> None:
    printing = pytest.importorskip("jaxlib._hlo").HloPrintOptions
    seen = set()
    for module in compiled_by_xla():
        options = printing()
        options.print_metadata = options.print_backend_config = options.print_large_constants = False
        options.print_operand_shape = operand_shapes
        ours = parse(module.as_serialized_hlo_module_proto())
        for text in _INDEX.sub("", module.to_string(options)).split("\n"):
            if (match := _INSTRUCTION.match(text)) and not _RANKED.search(text):
                instruction = ours.instructions[match[2]]
                assert f"  {match[1] or ''}{line(instruction, operand_shapes=operand_shapes)}" == text
                seen.add(instruction.opcode)
    assert {"dot", "fusion", "convolution", "while", "sort", "constant", "get-tuple-element"} <= seen
    assert len(seen) > 30


def test_metadata_names_the_line_of_the_source(builder) -> None:
    builder.computation("main", ("p", "parameter", (), {"op_name": 'jit(f)/"quoted"'}))
    proto = builder.module.computations[0].instructions[0]
    proto.metadata.source_file, proto.metadata.source_line = b"model.py", 7
    (only,) = notes(parse(builder.bytes()).instructions["p"])
    assert only == 'metadata={op_name="jit(f)/\\"quoted\\"" source_file="model.py" source_line=7}'


def test_a_program_of_a_recording_says_what_the_recording_spells(recordings) -> None:
    trace = load(str(recordings / "tpu_v6e_inference.xplane.pb"))
    modules = {program: module for (_, program), module in trace.programs.items()}
    for op, program, text in trace.ops.select("op", "program_id", "hlo_text").iter_rows():
        assert line(modules[program].instructions[op], operand_shapes=True) == text


def test_the_body_of_a_fusion_stands_below_it_with_what_it_calls(builder) -> None:
    builder.computation("add", ("a", "parameter", (), {}), ("b", "add", ("a", "a"), {}))
    builder.computation(
        "fused", ("q", "parameter", (), {"dims": [8]}), ("r", "reduce", ("q",), {"dims": [], "calls": ["add"]})
    )
    builder.computation(
        "main",
        ("p", "parameter", (), {"dims": [8]}),
        ("f", "fusion", ("p",), {"calls": ["fused"], "fusion_kind": b"kLoop"}),
    )
    instruction = parse(builder.bytes()).instructions["f"]
    assert line(instruction, operand_shapes=True).endswith("fusion(f32[8] %p), kind=kLoop, calls=%fused")
    body = bodies(instruction).split("\n")
    assert body[0] == "%fused (q: f32[8]) -> f32[] {"
    assert body[2] == "  ROOT %r = f32[] reduce(%q), dimensions={}, to_apply=%add"
    assert body[5].startswith("%add ")


def test_long_bodies_end_with_what_is_left_out(builder) -> None:
    rows = [(f"i{n}", "add", (), {"dims": [2]}) for n in range(MOST_LINES + 1234)]
    builder.computation("fused", *rows)
    builder.computation("main", ("f", "fusion", (), {"calls": ["fused"]}))
    body = bodies(parse(builder.bytes()).instructions["f"])
    assert body.count("\n") < MOST_LINES + 10
    assert body.endswith("// 1,234 more instructions")


def test_no_line_is_longer_than_a_person_reads() -> None:
    assert bounded("x" * MOST_LETTERS) == "x" * MOST_LETTERS
    assert bounded("x" * (MOST_LETTERS + 1500)).endswith("x /* … 1,500 letters more */")


def test_loops_do_not_spell_their_bodies(builder) -> None:
    builder.computation("body", ("a", "parameter", (), {}))
    builder.computation("condition", ("b", "parameter", (), {}))
    builder.computation("main", ("w", "while", (), {"calls": ["body", "condition"]}))
    instruction = parse(builder.bytes()).instructions["w"]
    assert bodies(instruction) == ""
    assert line(instruction, operand_shapes=True).endswith("while(), condition=%condition, body=%body")


def test_computations_that_call_each_other_are_written_once(builder) -> None:
    builder.computation("one", ("a", "fusion", (), {"calls": ["two"]}))
    builder.computation("two", ("b", "fusion", (), {"calls": ["one"]}))
    body = bodies(parse(builder.bytes()).instructions["a"])
    assert (body.count("%two ()"), body.count("%one ()")) == (1, 1)


def test_long_operand_lists_and_kernels_are_cut(builder) -> None:
    names = tuple(f"p{n}" for n in range(MOST_OPERANDS + 5))
    builder.computation(
        "main",
        *((name, "parameter", (), {"dims": [2]}) for name in names),
        ("call", "custom-call", names, {"custom_call_target": b"tpu_custom_call", "backend_config": b"x" * 99_999}),
    )
    instruction = parse(builder.bytes()).instructions["call"]
    assert "/* 5 more */), custom_call_target=" in line(instruction, operand_shapes=True)
    assert notes(instruction) == ["backend_config=/* 99,999 bytes */"]
    assert MOST_CONFIG < 99_999


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (hlo().OpSharding(), "{replicated}"),
        (hlo().OpSharding(type=4), "{manual}"),
        (hlo().OpSharding(type=1, tile_assignment_devices=[3]), "{maximal device=3}"),
        (hlo().OpSharding(type=3, tile_assignment_dimensions=[2, 1], iota_reshape_dims=[2]), "{devices=[2,1]<=[2]}"),
        (
            hlo().OpSharding(
                type=3,
                tile_assignment_dimensions=[2, 4],
                iota_reshape_dims=[4, 2],
                iota_transpose_perm=[1, 0],
                replicate_on_last_tile_dim=True,
            ),
            "{devices=[2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
        ),
        (
            hlo().OpSharding(type=2, tuple_shardings=[hlo().OpSharding(), hlo().OpSharding(type=4)]),
            "{{replicated}, {manual}}",
        ),
    ],
)
def test_shardings_are_written_out(builder, proto, text: str) -> None:
    builder.computation("main", ("p", "parameter", (), {}))
    builder.module.computations[0].instructions[0].sharding.CopyFrom(proto)
    assert line(parse(builder.bytes()).instructions["p"], operand_shapes=True).endswith(f"sharding={text}")


@given(data=st.binary(max_size=40))
def test_damaged_parts_cost_an_attribute_and_nothing_else(data: bytes) -> None:
    module = hlo().HloModuleProto(name=b"m")
    computation = module.computations.add(name=b"main", id=1)
    instruction = computation.instructions.add(name=b"x", opcode=b"pad", id=1)
    instruction.padding_config = instruction.gather_dimension_numbers = data
    instruction.precision_config = instruction.literal = data
    instruction.slice_dimensions.append(data)
    parsed = HloModule("m", 1, "main", module)
    assert "\n" not in line(parsed.instructions["x"], operand_shapes=True)
    instruction.shape.element_type = 11
    assert isinstance(constant(instruction), str)


@given(st.text())
def test_text_of_a_recording_never_ends_its_line(text: str) -> None:
    assert clean(text).isprintable() or not clean(text)
    assert quoted(text)[1:-1].replace('\\"', "").count('"') == 0
