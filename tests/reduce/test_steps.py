"""Which spans are steps, and how that is said."""

from __future__ import annotations

import json

import pytest

import profiler
from profiler.api import Options
from profiler.xplane.write import Ref, SpaceBuilder


def steps(path: str, **options):
    return profiler.summary(path, Options(**options)).steps


def test_the_steps_line_comes_first_and_a_step_lasts_to_the_next_start(tpu_space, saved) -> None:
    ops = [("add.1", 100 * i, 60) for i in range(4)]
    marks = [(str(i), 100 * i, 60) for i in range(4)]
    found = steps(saved(tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks, "XLA Modules": [("jit_f(7)", 0, 360)]}})))
    assert (found.source, found.unit, found.count, found.mean_ps) == ("Steps line", "step", 3, 100.0)


def test_a_step_of_no_length_and_a_cut_first_step_are_left_out(tpu_space, saved) -> None:
    ops = [("add.1", 80, 10)] + [(f"add.{j}", 100 * i + 20 * j, 10) for i in range(1, 5) for j in range(4)]
    marks = [("0", 50, 50), ("x", 300, 0)] + [(str(i), 100 * i, 90) for i in range(1, 5)]
    summary = profiler.summary(saved(tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks}})))
    assert (summary.steps.count, summary.steps.mean_ps) == (3, 100.0)
    dropped = [note.message for note in summary.warnings if note.code == "steps_dropped"]
    assert dropped == ["1 of zero length and 1 cut or empty left out of the steady steps"]


def test_annotations_of_the_host_come_next(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 10 + 100 * i, 60) for i in range(4)]}})
    line = space.plane("/host:CPU").line("python")
    for i in range(4):
        line.event("train", 100 * i, 80, stats={"step_num": i})
    found = steps(saved(space))
    assert (found.source, found.count, found.mean_ps) == ("step_num annotations", 3, 100.0)


def test_then_repeats_of_the_program_that_takes_the_most_time_the_last_to_its_end(tpu_space, saved) -> None:
    ops = [("add.1", 100 * i, 60) for i in range(3)]
    modules = [("jit_f(7)", 100 * i, 60) for i in range(3)] + [("jit_small(8)", 100 * i + 70, 2) for i in range(3)]
    found = steps(saved(tpu_space({"TPU:0": {"XLA Ops": ops, "XLA Modules": modules}})))
    assert (found.source, found.count) == ("repeats of the dominant program", 3)
    assert found.mean_ps == (100 + 100 + 60) / 3


def test_without_a_repeat_the_recording_is_one_run_from_the_first_to_the_last_op(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 500, 60), ("multiply.2", 700, 50)]}})
    space.plane("/host:CPU").line("python").event("main", 0, 10_000)
    summary = profiler.summary(saved(space))
    assert (summary.steps.unit, summary.steps.count, summary.steps.mean_ps) == ("run", 1, 250.0)
    assert summary.busy_fraction == pytest.approx(110 / 250)
    assert "no_steps" in {note.code for note in summary.warnings}


def test_one_step_of_a_compiled_profile_is_a_step(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 10, 60)], "Steps": [("0", 0, 100)]}})
    space.plane("/host:run_info", stats={"run_info": json.dumps({"kind": "compiled"})})
    found = steps(saved(space))
    assert (found.source, found.unit, found.count, found.mean_ps) == ("Steps line", "step", 1, 100.0)


def test_steps_can_be_chosen_and_skipped(tpu_space, saved) -> None:
    starts = [0, 100, 300, 600, 1000]
    marks = [(str(i), start, 50) for i, start in enumerate(starts)]
    ops = [("add.1", start, 40) for start in starts]
    path = saved(tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks}}))
    assert steps(path).mean_ps == 250
    assert steps(path, skip_first=1).mean_ps == 300
    assert steps(path, steps=(1, 3)).mean_ps == 250
    assert steps(path, steps=(None, -1)).mean_ps == 200


def test_the_whole_recording_can_be_asked_for(tpu_space, saved) -> None:
    ops = [("add.1", 100 * i, 60) for i in range(4)]
    marks = [(str(i), 100 * i, 60) for i in range(4)]
    found = steps(saved(tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks}})), normalize="run")
    assert (found.unit, found.count, found.mean_ps) == ("run", 1, 360.0)


def gpu_space(runs: list[int | None]) -> SpaceBuilder:
    """Each execution: two kernels of one program, 100 ps apart; the run id where the runtime gives one."""
    space = SpaceBuilder()
    line = space.plane("/device:GPU:0", stats={"device_vendor": "Nvidia"}).line("Stream #1(Kernel)")
    for i, run in enumerate(runs):
        for name, start, duration in (("fusion_1", 0, 20), ("gemm", 30, 30)):
            stats = {"hlo_op": Ref(name), "hlo_module": Ref("jit_f"), "program_id": 7}
            line.event(name, 100 * i + start, duration, stats=stats if run is None else stats | {"run_id": run})
    return space


def test_on_a_gpu_executions_come_from_the_run_id(saved) -> None:
    found = steps(saved(gpu_space([11, 12, 13])))
    assert (found.count, found.mean_ps) == (3, (100 + 100 + 60) / 3)


def test_else_from_an_op_that_runs_once_in_each(saved) -> None:
    found = steps(saved(gpu_space([None] * 3)))
    assert (found.source, found.count, found.mean_ps) == ("repeats of the dominant program", 3, (100 + 100 + 60) / 3)


def test_a_slow_first_step_is_pointed_at(tpu_space, saved) -> None:
    starts = [0, 150, 250, 350, 450, 550]
    marks = [(str(i), start, 50) for i, start in enumerate(starts)]
    path = saved(tpu_space({"TPU:0": {"XLA Ops": [("add.1", start, 40) for start in starts], "Steps": marks}}))
    notes = {note.code: note.message for note in profiler.summary(path).warnings}
    assert notes["slow_first_step"].startswith("the first step took 50% longer")
    assert "slow_first_step" not in {note.code for note in profiler.summary(path, Options(skip_first=1)).warnings}


def test_a_device_without_steps_does_not_mix_into_those_that_have_some(tpu_space, saved) -> None:
    marks, ops = ([(name or str(i), 100 * i, 60) for i in range(4)] for name in ("", "add.1"))
    other = [("add.1", 0, 60), ("subtract.2", 5000, 9)]
    space = tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks}, "TPU:1": {"XLA Ops": other}})
    summary = profiler.summary(saved(space))
    assert (summary.steps.unit, summary.steps.mean_ps) == ("step", 100.0)
    assert [note.message for note in summary.warnings if note.code == "devices_without_steps"] == [
        "no step repeats on TPU:1: left out of all times per step"
    ]
