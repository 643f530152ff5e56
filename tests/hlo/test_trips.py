"""Trip counts and how often instructions run."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.hlo import HloModule, parse


def loop(
    builder: Any, *, start: int = 0, limit: int = 48, step: int = 1, direction: str = "LT", **fields: Any
) -> HloModule:
    """``for (i = start; i direction limit; i += step)`` as the TPU compiler writes it, without a noted trip count."""
    builder.computation(
        "body",
        ("state.b", "parameter", (), {}),
        ("i.b", "get-tuple-element", ("state.b",), {"tuple_index": 0}),
        ("x.b", "get-tuple-element", ("state.b",), {"tuple_index": 1}),
        ("step", "constant", (), {"constant": step}),
        ("next", "add", ("i.b", "step"), {}),
        ("work", "multiply", ("x.b", "x.b"), {}),
        ("out", "tuple", ("next", "work"), {}),
    )
    builder.computation(
        "condition",
        ("state.c", "parameter", (), {}),
        ("i.c", "get-tuple-element", ("state.c",), {"tuple_index": 0}),
        ("limit", "constant", (), {"constant": limit}),
        ("compare", "compare", ("i.c", "limit"), {"comparison_direction": direction.encode()}),
    )
    builder.computation(
        "main",
        ("start", "constant", (), {"constant": start}),
        ("x", "parameter", (), {}),
        ("init", "tuple", ("start", "x"), {}),
        ("while", "while", ("init",), {"calls": ("body", "condition"), **fields}),
    )
    return parse(builder.bytes())


@pytest.mark.parametrize(
    ("start", "limit", "step", "direction", "expected"),
    [
        (0, 48, 1, "LT", 48.0),
        (1, 48, 1, "LT", 47.0),  # host offload peels the first iteration
        (0, 48, 1, "LE", 49.0),
        (0, 7, 2, "LT", 4.0),
        (10, 0, -1, "GT", 10.0),
        (10, 0, -3, "GE", 4.0),
        (0, 6, 2, "NE", 3.0),
        (5, 5, 1, "LT", 0.0),
        (0, 5, 0, "LT", None),
        (0, 5, -1, "LT", None),
        (0, 5, 2, "NE", None),
        (0, 5, 1, "EQ", None),
    ],
)
def test_a_trip_count_follows_from_start_limit_and_step(builder, start, limit, step, direction, expected):
    module = loop(builder, start=start, limit=limit, step=step, direction=direction)
    assert module.executions("work") == expected
    assert module.executions("compare") == (None if expected is None else expected + 1)
    assert module.executions("while") == 1.0


def test_a_trip_count_that_the_compiler_noted_is_believed(builder):
    module = loop(builder, direction="EQ", backend_config=b'{"known_trip_count":{"n":"6"},"other":1}')
    assert module.executions("work") == 6.0


def test_a_condition_inside_a_fusion_is_understood(builder):
    builder.computation(
        "fused",
        ("p0", "parameter", (), {"parameter_number": 0}),
        ("p1", "parameter", (), {"parameter_number": 1}),
        ("less", "compare", ("p1", "p0"), {"comparison_direction": b"GT"}),
    )
    builder.computation(
        "body",
        ("state.b", "parameter", (), {}),
        ("i.b", "get-tuple-element", ("state.b",), {"tuple_index": 0}),
        ("one", "constant", (), {"constant": 1}),
        ("next", "add", ("one", "i.b"), {}),
        ("n.b", "get-tuple-element", ("state.b",), {"tuple_index": 1}),
        ("out", "tuple", ("next", "n.b"), {}),
    )
    builder.computation(
        "condition",
        ("state.c", "parameter", (), {}),
        ("i.c", "get-tuple-element", ("state.c",), {"tuple_index": 0}),
        ("n.c", "get-tuple-element", ("state.c",), {"tuple_index": 1}),
        ("fusion", "fusion", ("i.c", "n.c"), {"calls": ("fused",)}),
    )
    builder.computation(
        "main",
        ("zero", "constant", (), {"constant": 0}),
        ("eight", "constant", (), {"constant": 8}),
        ("init", "tuple", ("zero", "eight"), {}),
        ("while", "while", ("init",), {"calls": ("body", "condition")}),
    )
    module = parse(builder.bytes())
    assert module.executions("next") == 8.0  # the limit is carried through the loop
    assert module.executions("less") == 9.0


def test_nested_loops_multiply_and_call_sites_add_up(builder):
    known = {"backend_config": b'{"known_trip_count":{"n":"3"}}'}
    builder.computation("leaf", ("work", "add", (), {}))
    builder.computation("c1", ("t1", "compare", (), {}))
    builder.computation("c2", ("t2", "compare", (), {}))
    builder.computation(
        "inner", ("call.1", "call", (), {"calls": ("leaf",)}), ("call.2", "fusion", (), {"calls": ("leaf",)})
    )
    builder.computation("outer", ("w2", "while", (), {"calls": ("inner", "c2"), **known}))
    builder.computation("main", ("w1", "while", (), {"calls": ("outer", "c1"), **known}))
    module = parse(builder.bytes())
    assert module.executions("work") == 18.0
    assert module.executions("t2") == 12.0


def test_branches_reducers_and_dead_code_are_unknown(builder):
    for name in ("yes", "no", "sum", "dead"):
        builder.computation(name, (f"in.{name}", "add", (), {}))
    builder.computation(
        "main", ("if", "conditional", (), {"calls": ("yes", "no")}), ("r", "reduce", (), {"calls": ("sum",)})
    )
    module = parse(builder.bytes())
    assert [module.executions(f"in.{name}") for name in ("yes", "no", "sum", "dead")] == [None] * 4
    assert module.executions("if") == 1.0
    assert module.executions("no such instruction") is None


def test_an_asynchronous_computation_runs_once_for_its_start_and_done(builder):
    builder.computation("wrapped", ("slice", "slice", (), {}))
    builder.computation(
        "main",
        ("start", "async-start", (), {"calls": ("wrapped",)}),
        ("done", "async-done", ("start",), {"calls": ("wrapped",)}),
    )
    module = parse(builder.bytes())
    assert module.executions("slice") == 1.0
    assert module.instructions["done"].fused_opcodes == {"slice"}


def test_cycles_and_missing_ids_neither_hang_nor_crash(builder):
    builder.computation("a", ("to.b", "call", ("to.b",), {"calls": ("b",)}))
    builder.computation("b", ("to.a", "fusion", ("gone",), {"calls": ("a", "b")}))
    builder.computation(
        "main", ("go", "call", (), {"calls": ("a", "nowhere")}), ("w", "while", ("go",), {"calls": ("a", "b")})
    )
    module = parse(builder.bytes())
    assert module.executions("to.b") is None
    assert module.executions("go") == 1.0
    assert module.instructions["to.a"].flops == 0.0
    assert module.instructions["to.a"].operands == ()


def test_a_very_long_chain_of_calls_is_walked(builder):
    builder.computation("c0", ("i0", "add", (), {}))
    for n in range(1, 5000):
        builder.computation(f"c{n}", (f"i{n}", "fusion", (), {"calls": (f"c{n - 1}",)}))
    module = parse(builder.bytes())
    assert module.executions("i0") == 1.0
    assert module.instructions["i4999"].flops == 0.0
