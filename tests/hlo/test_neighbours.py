"""Instructions that lost their name stack take their place in the program from the dataflow around them."""

from __future__ import annotations

from profiler.hlo import near_op_name, parse

RERUN = "jit(f)/transpose(jvp())/checkpoint/rematted_computation/self_attention"


def near(builder, name: str) -> str | None:
    return near_op_name(parse(builder.bytes()).instructions[name])


def test_the_user_of_a_result_says_what_it_is_for(builder) -> None:
    builder.computation(
        "main",
        ("q", "parameter", (), {"op_name": "jit(f)/jvp()/self_attention/transpose"}),
        ("dot.1", "dot", ("q", "q"), {}),
        ("copy.2", "copy", ("dot.1",), {}),
        ("exp.3", "exponential", ("copy.2",), {"op_name": f"{RERUN}/exp"}),
    )
    assert near(builder, "dot.1") == RERUN


def test_without_a_named_user_what_feeds_it_does(builder) -> None:
    builder.computation(
        "main",
        ("q", "parameter", (), {"op_name": "jit(f)/jvp()/mlp/dot_general"}),
        ("copy.1", "copy", ("q",), {}),
        ("copy.2", "copy", ("copy.1",), {}),
    )
    assert near(builder, "copy.2") == "jit(f)/jvp()/mlp"


def test_of_several_users_most_decide(builder) -> None:
    builder.computation(
        "main",
        ("x", "parameter", (), {}),
        ("broadcast.1", "broadcast", ("x",), {}),
        ("a", "add", ("broadcast.1",), {"op_name": "s/backward/add"}),
        ("b", "add", ("broadcast.1",), {"op_name": "s/forward/add"}),
        ("c", "add", ("broadcast.1",), {"op_name": "s/forward/add"}),
    )
    assert near(builder, "broadcast.1") == "s/forward"


def test_nothing_named_nearby_is_unknown_and_cycles_end(builder) -> None:
    builder.computation("main", ("a", "add", ("b",), {}), ("b", "add", ("a",), {}))
    assert near(builder, "a") is None
