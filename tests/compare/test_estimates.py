"""What a pair of compiled profiles says of its own estimates: the band of the ratio, and what it cannot see."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import profiler

CENTER, FAST, SLOW = 1e-9, 0.8e-9, 1.25e-9  # seconds of a step


@pytest.fixture
def compiled(tpu_space, saved):
    """Writes a compiled profile of one op and one step; ``estimates`` goes to its run info."""

    def write(name: str, step_ps: int, config=None, **estimates) -> str:
        space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, step_ps)], "Steps": [("0", 0, step_ps)]}})
        info = {
            "kind": "compiled",
            "model_tflops_per_device_per_step": 1e-6,
            "config": config or {},
            "estimates": {"step_s": step_ps / 1e12, **estimates},
        }
        space.plane("/host:run_info", stats={"run_info": json.dumps(info)})
        return saved(space, f"{name}.xplane.pb")

    return write


def test_a_constant_that_both_sides_rest_on_alike_leaves_the_ratio_certain(compiled) -> None:
    base = compiled("base", 1000, sensitivity={"clock": [0.8e-9, 1.25e-9]})
    opt = compiled("opt", 500, sensitivity={"clock": [0.4e-9, 0.625e-9]})
    assert profiler.diff(base, opt).delta.band == pytest.approx((0.5, 0.5))


def test_a_constant_that_moves_one_side_makes_a_band_around_the_ratio(compiled) -> None:
    base = compiled("base", 1000, sensitivity={"all_gather": [FAST, SLOW]})
    opt = compiled("opt", 500, sensitivity={})
    low, high = profiler.diff(base, compiled("same", 500, sensitivity={"clock": [5e-10, 5e-10]})).delta.band
    assert (low, high) == pytest.approx((0.5 * 0.8, 0.5 * 1.25))
    assert profiler.diff(base, opt).delta.band is None  # a side that does not say what it rests on
    text = " ".join(str(note) for note in profiler.diff(base, opt).warnings)
    assert "effect_not_estimated" not in text


def test_independent_constants_add_as_squares(compiled) -> None:
    both = {"all_gather": [FAST, CENTER], "sparsecore": [FAST, CENTER]}
    base = compiled("base", 1000, sensitivity=both)
    opt = compiled("opt", 1000, sensitivity={"clock": [1e-9, 1e-9]})
    low, high = profiler.diff(base, opt).delta.band
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(1.25**2**0.5)


@given(st.lists(st.tuples(st.floats(0.5, 1), st.floats(1, 2)), min_size=1, max_size=5))
def test_the_ratio_lies_in_its_band_and_swapping_the_sides_inverts_it(ends) -> None:
    from types import SimpleNamespace

    from profiler.compare.estimates import band

    def side(sensitivity):
        info = {"estimates": {"step_s": 1.0, "sensitivity": sensitivity}}
        return SimpleNamespace(trace=SimpleNamespace(kind="compiled", run_info=info))

    uncertain = side({f"c{i}": list(pair) for i, pair in enumerate(ends)})
    certain = side({"clock": [1.0, 1.0]})
    low, high = band(uncertain, certain, 1.0)
    assert low <= 1 <= high
    assert band(certain, uncertain, 1.0) == pytest.approx((1 / high, 1 / low))


def test_a_knob_whose_effect_no_estimate_contains_is_named(compiled) -> None:
    unseen = {"sa_q_layout": "what a layout changes at run time is not in these estimates"}
    base = compiled("base", 1000, {"sa_q_layout": "HEAD_DIM_MINOR", "steps": 3}, unseen_knobs=unseen)
    opt = compiled("opt", 1000, {"sa_q_layout": "SEQ_MINOR", "steps": 4}, unseen_knobs=unseen)
    found = [note.message for note in profiler.diff(base, opt).warnings if note.code == "effect_not_estimated"]
    assert found == ["sa_q_layout differs: what a layout changes at run time is not in these estimates"]


KERNELS = {"kernel code": {"core_s": 5e-10}}
MODELLED = {"kernel model": {"core_s": 5e-10}, "kernel code": {"core_s": 1e-15}}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {"constants": {"permute": {"value": 9e10}}},
            {"constants": {"permute": {"value": 7e10}}},
            "other constants: permute",
        ),
        ({"sources": KERNELS}, {"sources": MODELLED}, "kernels by kernel code against kernel model"),
    ],
)
def test_estimates_made_differently_give_no_cause_and_no_band(compiled, before, after, words) -> None:
    sensitivity = {"clock": [0.8e-9, 1.25e-9]}
    base = compiled("base", 1000, {"ici_fsdp_parallelism": 2}, sensitivity=sensitivity, **before)
    opt = compiled("opt", 500, {"ici_fsdp_parallelism": 4}, sensitivity=sensitivity, **after)
    found = profiler.diff(base, opt)
    assert [words in note.message for note in found.warnings if note.code == "estimates_differ"] == [True]
    assert found.verdict.startswith(f"Unclear, since the two estimates are made differently ({words})")
    assert "Mostly" not in found.verdict
    assert found.delta.band is None
    assert {each.confidence for each in found.findings} <= {"low"}
    assert profiler.diff(base, base).verdict.startswith("No change")


def test_estimated_times_are_never_of_high_confidence(compiled) -> None:
    found = profiler.diff(compiled("base", 1000), compiled("opt", 500))
    assert [each.confidence for each in found.findings] == ["medium"]


@pytest.mark.parametrize(
    "bad", [None, 3, "x", [], {"all": None}, {"kernel code": [1]}, {"kernel code": {"core_s": "x"}}]
)
def test_sources_and_constants_of_any_shape_are_no_difference(compiled, bad) -> None:
    base = compiled("base", 1000, sources=bad, constants=bad, sensitivity=bad, unseen_knobs=bad)
    opt = compiled("opt", 500, sources=KERNELS, constants={"a": {"value": 1.0}})
    assert "estimates_differ" not in {note.code for note in profiler.diff(base, opt).warnings}
