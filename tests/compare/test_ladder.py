"""A chain of runs: the rungs sum to the whole, in one unit of work, and every format says the same."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler import api
from profiler.api import Options
from profiler.compare.attribute import Work, contributions
from profiler.compare.ladder import _rows, _scaled, _unit
from profiler.errors import NotComparableError
from profiler.report import render_ladder
from profiler.report.output import Style
from profiler.results import FamilyRow, Rung

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "ladder.schema.json"
PEAK = 1153.5


@pytest.fixture
def run(tpu_space, saved):
    """Writes a recording of four steps with two ops; lengths in ps."""

    def write(name: str, forward: int, other: int, info: dict | None = None, kind: str = "TPU v6 Lite") -> str:
        length = forward + other
        ops = [op for i in range(4) for op in (("add.1", i * length, forward), ("dot.2", i * length + forward, other))]
        marks = [(str(i), i * length, length) for i in range(5)]
        space = tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks}}, device_type_string=kind)
        if info:
            space.plane("/host:run_info", stats={"run_info": json.dumps(info)})
        return f"{name}={saved(space, f'{name}.xplane.pb')}"

    return write


@pytest.fixture
def chain(run):
    flops = [{"model_tflops_per_device_per_step": 1e-6 * n, "config": {"batch": n, "steps": 3}} for n in (2, 2, 3)]
    paths = [run("a", 4000, 2000, flops[0]), run("b", 3000, 2000, flops[1]), run("c", 4500, 2500, flops[2])]
    return api.ladder(paths, [Options()] * 3)


def test_one_recording_many_times_is_a_ladder_without_change(run) -> None:
    same = run("a", 4000, 2000)
    found = api.ladder([same, same, same], [Options()] * 3)
    assert [each.time_ps for rung in found.rungs for each in rung.contributions if each.time_ps] == []
    assert found.delta.significant is False


def test_the_rungs_sum_to_the_whole(chain) -> None:
    parts = [part.mfu_points for rung in chain.rungs for part in rung.contributions]
    assert sum(parts) == pytest.approx(chain.delta.mfu_points, abs=1e-9)
    assert sum(rung.delta.mfu_points for rung in chain.rungs) == pytest.approx(chain.delta.mfu_points, abs=1e-9)
    assert sum(row.total_mfu_points for row in chain.rows) == pytest.approx(chain.delta.mfu_points, abs=1e-9)
    time = chain.delta.optimized_time_ps - chain.delta.baseline_time_ps
    assert sum(row.total_time_ps for row in chain.rows) == pytest.approx(time, rel=1e-9)
    assert chain.rungs[-1].from_first.mfu_points == pytest.approx(chain.delta.mfu_points)


def test_times_are_for_the_work_of_the_first_run(chain) -> None:
    assert chain.normalization == "flop"
    (last,) = {sum(part.optimized_time_ps for part in chain.rungs[-1].contributions)}
    assert last == pytest.approx(7000 * 2 / 3)
    assert [rung.from_first.optimized_time_ps for rung in chain.rungs] == pytest.approx([5000, 7000 * 2 / 3])


def test_every_rung_names_its_knobs(chain) -> None:
    assert [[knob.key for knob in rung.knobs] for rung in chain.rungs] == [[], ["batch"]]
    assert [rung.label for rung in chain.rungs] == ["b", "c"]


def test_a_unit_that_one_run_does_not_know_is_not_taken(run) -> None:
    known = {"tokens_per_device_per_step": 8, "model_tflops_per_device_per_step": 1e-6}
    paths = [
        run("a", 4000, 2000, known),
        run("b", 3000, 2000, {"tokens_per_device_per_step": 8}),
        run("c", 1, 1, known),
    ]
    assert api.ladder(paths, [Options()] * 3).normalization == "token"
    assert _unit([SimpleNamespace(model_flops=None, tokens=None, times=SimpleNamespace(unit="run"))], "auto") == "run"


def test_runs_that_do_not_compare_are_refused_until_forced(run) -> None:
    paths = [run("a", 4, 2), run("b", 3, 2), run("c", 3, 2, kind="TPU v5")]
    with pytest.raises(NotComparableError, match="the devices differ"):
        api.ladder(paths, [Options()] * 3)
    forced = api.ladder(paths, [Options(force=True)] * 3)
    assert not forced.comparable
    assert any(note.message.startswith("2 → 3: ") for note in forced.warnings)


def test_every_format_says_it(chain) -> None:
    data = json.loads(render_ladder(chain, "json", Style()))
    jsonschema.validate(data, json.loads(SCHEMA.read_text("utf-8")))
    text = render_ladder(chain, "text", Style()).decode()
    assert text.startswith("3 runs: MFU ")
    assert "1 → 2  2 → 3" in text
    assert "knobs: batch 2 → 3" in text
    assert "| 1 → 2 | 2 → 3 | sum |" in render_ladder(chain, "markdown", Style()).decode()
    rows = list(csv.DictReader(io.StringIO(render_ladder(chain, "csv", Style()).decode())))
    assert {row["rung"] for row in rows} == {"1", "2"}
    assert sum(float(row["mfu_points"]) for row in rows) == pytest.approx(chain.delta.mfu_points, abs=1e-9)


def test_the_command_line_takes_any_number_of_runs(run, run_cli) -> None:
    paths = [run(name, 4000 + 100 * i, 2000) for i, name in enumerate("abcd")]
    done = run_cli("ladder", *paths, "--model-tflops", "1e-6,1e-6,1e-6,2e-6", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rungs"]) == 3
    assert run_cli("ladder", paths[0]).returncode == 2
    wrong = run_cli("ladder", *paths, "--model-tflops", "1,2")
    assert (wrong.returncode, "2 values for 4 runs" in wrong.stderr) == (2, True)


# --- exactness on random chains

amount = st.floats(1e3, 1e13)
families = st.dictionaries(
    st.sampled_from(["gmm forward", "splash forward", "tgmm", "optimizer"]), st.tuples(st.integers(1, 600), amount)
)


def side(rows: dict, idle: float, flops: float):
    found = tuple(FamilyRow("compute", name, None, calls, time, 0.0) for name, (calls, time) in rows.items())
    found += (FamilyRow("idle", "idle", None, None, idle, 0.0),)
    return SimpleNamespace(
        summary=SimpleNamespace(families=found), model_flops=flops, peak_tflops=PEAK,
        times=SimpleNamespace(step_ps=sum(row.time_ps_per_step for row in found)),
    )  # fmt: skip


@settings(max_examples=50)
@given(st.lists(st.builds(side, families, amount, st.floats(1e12, 1e16)), min_size=2, max_size=6))
def test_rungs_of_random_chains_sum_to_the_mfu_delta(runs) -> None:
    rungs = []
    for before, after in pairwise(runs):
        parts = contributions(before, after, Work("flop", before.model_flops, after.model_flops))
        scale = runs[0].model_flops / before.model_flops
        rungs.append(Rung("", "", None, None, tuple(_scaled(part, scale) for part in parts)))
    rows = _rows(rungs)
    mfu = [100 * run.model_flops / (run.times.step_ps * PEAK) for run in runs]
    size = sum(mfu) + sum(abs(value) for row in rows for value in row.mfu_points)
    assert sum(row.total_mfu_points for row in rows) == pytest.approx(mfu[-1] - mfu[0], abs=1e-12 * size)
    equal = [run.times.step_ps * runs[0].model_flops / run.model_flops for run in runs]
    assert sum(row.total_time_ps for row in rows) == pytest.approx(equal[-1] - equal[0], abs=1e-11 * sum(equal))
