"""Findings name the knob, the count and the price; what to try next rests on the figures of the optimized side."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import profiler
from profiler.compare.advice import suggestions
from profiler.compare.comparable import model_notes
from profiler.compare.effects import groups_of, parts_of
from profiler.compare.findings import _order
from profiler.compare.knob_table import TIME
from profiler.compare.phrases import duration, percent, points, signed
from profiler.results import Contribution, FamilyRow, Finding, Knob, Memory
from profiler.xplane.write import SpaceBuilder

STUDENT = "jit(step)/jvp(student)/layers/while/body"
RERUN = "jit(step)/transpose(jvp(student))/layers/while/body/checkpoint/rematted_computation"
SPLASH = "self_attention/splash_mha_fwd/pallas_call"
GMM = "moe_block/jit(gmm)/pallas_call"
LAYERS, US = 4, 10**6


def space(ops: list[tuple[str, str, int]], config: dict, batch: float = 1.0) -> SpaceBuilder:
    """A TPU step of custom calls (name, stack, time per call in ps), each run once a layer, with run info."""
    built = SpaceBuilder()
    plane = built.plane("/device:TPU:0", stats={"device_type_string": "TPU v6 Lite"})
    line, now = plane.line("XLA Ops"), 0
    for number, (name, stack, time) in enumerate(ops):
        for _ in range(LAYERS):
            line.event(
                f"%{name} = f32[8]{{0}} custom-call(f32[8]{{0}} %x)",
                now,
                time,
                display_name=name,
                metadata_stats={
                    "program_id": 7, "symbol_id": number + 1, "hlo_category": "custom-call", "tf_op": f"{stack}:",
                    "shape_with_layout": "f32[8]{0}",
                },
            )  # fmt: skip
            now += time
    plane.line("XLA Modules").event("jit_step(7)", 0, now)
    info = {"config": config, "layers": LAYERS, "model_tflops_per_device_per_step": 1e-3 * batch, "distillation": True}
    built.plane("/host:run_info", stats={"run_info": json.dumps(info)})
    return built


OPS = [
    ("splash_mha_fwd.1", f"{STUDENT}/{SPLASH}", 5 * US),
    ("gmm.2", f"{STUDENT}/{GMM}", 4 * US),
    ("splash_mha_fwd.3", f"{RERUN}/{SPLASH}", 5 * US),
    ("gmm.4", f"{RERUN}/{GMM}", 4 * US),
]
CONFIG = {"remat_policy": "full", "steps": 3}
CHANGED = CONFIG | {"remat_policy": "custom", "context": "device", "wi_tile_fwd_mlp_dim": 768}


@pytest.fixture
def case(saved):
    faster = [(name, stack, 3 * US if "gmm" in name else time) for name, stack, time in OPS if name != OPS[2][0]]
    base, opt = space(OPS, CONFIG), space(faster, CHANGED)
    return profiler.diff(saved(base, "base.xplane.pb"), saved(opt, "opt.xplane.pb"))


def test_vanished_re_runs_name_their_knob_and_the_halved_count(case) -> None:
    first = case.findings[0]
    assert first.title == (
        "splash forward re-runs 4 → 0 per run through context=device: 20.00 µs → 0.00 µs"
    )  # one execution is a run
    assert "with the forward pass 8 → 4 calls per run, half as many; per layer 2 → 1" in first.evidence
    assert first.knobs == ("context", "remat_policy")
    assert first.time_ps == -20 * US
    assert "splash forward re-runs 4 → 0 per run through context=device" in case.verdict


def test_cheaper_calls_of_all_phases_are_one_finding_of_their_tiles(case) -> None:
    (tiles,) = (each for each in case.findings if each.knobs == ("wi_tile_fwd_mlp_dim",))
    assert tiles.title == "gmm forward cheaper per call through wi_tile_fwd_mlp_dim=768: 32.00 µs → 24.00 µs"
    assert tiles.evidence[0] == "gmm forward 4.00 µs → 3.00 µs a call (re-run, student forward)"


def test_swapped_sides_find_the_same_causes_whatever_the_batch(saved) -> None:
    larger = [(name, stack, 3 * time) for name, stack, time in OPS]
    larger[0] = (*larger[0][:2], round(15.5 * US))  # 0.9 % of the step for equal work
    base, opt = saved(space(OPS, CONFIG), "base.xplane.pb"), saved(space(larger, CHANGED, 3.0), "opt.xplane.pb")
    there, back = profiler.diff(base, opt), profiler.diff(opt, base)
    assert len(there.findings) == len(back.findings) == 1
    assert there.findings[0].mfu_points == pytest.approx(-back.findings[0].mfu_points, abs=1e-9)


def moved(family: str, before: float, after: float, phase: str | None = None) -> Contribution:
    """A contribution of as many calls whose time changed."""
    delta = after - before
    return Contribution("compute", family, phase, None, before, after, 4, 4, None, None, delta, 0.0, delta)


def test_a_bigger_batch_amortises_and_makes_nothing_dearer() -> None:
    (batch,) = groups_of([Knob("per_device_batch_size", 4, 6)], {})
    assert batch.moves(moved("optimizer", 300, 200), TIME)
    assert not batch.moves(moved("all-gather", 100, 400), TIME)
    (smaller,) = groups_of([Knob("per_device_batch_size", 6, 4)], {})
    assert smaller.moves(moved("all-gather", 100, 400), TIME)
    assert batch.amortises(moved("optimizer", 300, 200))


def test_what_another_model_moves_is_no_tiles_alone() -> None:
    knobs = [
        Knob("model_name", "a", "b", group="model"),
        Knob("wi_tile_fwd_mlp_dim", 1024, 768, group="grouped matmul tiles"),
    ]
    (part,) = parts_of([moved("gmm forward", 400, 300)], groups_of(knobs, {}))
    assert part.owners == ("model", "grouped matmul tiles")
    assert [note.code for note in model_notes(knobs)] == ["model_differs"]


def test_figures_in_sentences_are_never_a_nothing_with_a_sign() -> None:
    assert duration(3.6e9, 78e12) == ("3.60 ms", "78.00 s")
    assert duration(0.0, 2e9) == ("0.00 ms", "2.00 ms")
    assert signed(0.9e9, -3e9) == ("+0.90 ms", "−3.00 ms")
    assert (percent(1.05), percent(21.3), points(-0.001)) == ("+5.0 %", "21×", "0.00 points")


def test_effects_and_contributions_sum_to_the_delta(case) -> None:
    for parts in (case.effects, case.contributions):
        assert sum(part.mfu_points or 0.0 for part in parts) == pytest.approx(case.delta.mfu_points, abs=1e-9)


def test_what_costs_comes_first_among_equals() -> None:
    win, cost, larger = (Finding(name, None, time) for name, time in (("a", -100.2), ("b", 100.1), ("c", -200.0)))
    ordered = sorted((win, cost, larger), key=lambda each: _order(each, 1e5))
    assert [each.title for each in ordered] == ["c", "b", "a"]


# --- what to try next

GIB = 1 << 30


def side(capacity: int | None = 32 * GIB, config: dict | None = None, families=(), idle: float = 0.0, on="tpu"):
    buffers = SimpleNamespace(argument_bytes=10 * GIB)
    return SimpleNamespace(
        trace=SimpleNamespace(
            run_info={"config": {"remat_policy": "full", "per_device_batch_size": 4} if config is None else config},
            programs={"a": SimpleNamespace(buffers=buffers)},
            devices=[SimpleNamespace(platform=on)],
        ),
        times=SimpleNamespace(step_ps=4000e9, idle_ps=idle, unit="step"),
        summary=SimpleNamespace(
            memory=Memory(static_peak_bytes=14 * GIB, static_allocated_bytes=15 * GIB, capacity_bytes=capacity),
            families=families, mfu=0.2, remat=SimpleNamespace(rerun_calls_per_step=96),
        ),
    )  # fmt: skip


def titles(found) -> list[str]:
    return [each.title.split(":")[0] for each in found]


@pytest.fixture
def options(monkeypatch):
    """What the re-run analysis says of the side."""
    from profiler.analysis import rerun
    from profiler.results_efficiency import KeepOption

    found = tuple(
        KeepOption(name, (), None, 48, None, size * GIB, time, 48, 0.0, 0.0)
        for name, size, time in (("context", 12.0, 240e9), ("moe_mlpwi_0", 18.0, 60e9), ("key_proj", 1.0, 1e9))
    )
    monkeypatch.setattr(rerun, "remat", lambda _: SimpleNamespace(options=found))


def test_re_runs_are_worth_keeping_only_where_they_fit(options) -> None:
    (context,) = suggestions(side())  # 12 GiB of 17; the expert's matmul takes 18, the keys save next to nothing
    assert context.title.startswith("keep context (remat_policy=custom, context=device)")
    assert context.evidence[1] == "takes about 12.00 GiB, and 17.00 GiB are left"
    assert context.mfu_points == pytest.approx(100 * 0.2 * 240 / (4000 - 240))
    assert suggestions(side(capacity=26 * GIB)) == ()
    assert suggestions(side(capacity=None)) == ()
    assert suggestions(side(config={})) == ()


def test_a_bigger_batch_is_suggested_where_it_fits_and_amortises_something(options) -> None:
    families = (FamilyRow("compute", "optimizer", "optimizer", 1, 400e9, 0.1),)
    found = suggestions(side(families=families))
    assert "per_device_batch_size 4 → 5" in titles(found)
    assert "takes at most 1.25 GiB more, and 17.00 GiB are left" in found[-1].evidence
    assert titles(suggestions(side(capacity=16 * GIB, families=families))) == []


def test_exposed_communication_and_idle_time_are_named() -> None:
    families = (FamilyRow("communication", "all-gather", None, 1, 400e9, 0.1),)
    found = titles(suggestions(side(capacity=None, families=families, idle=800e9)))
    assert found == ["shorten idle time", "hide or shrink all-gather"]
    assert titles(suggestions(side(capacity=None, idle=800e9, on="cpu"))) == []
