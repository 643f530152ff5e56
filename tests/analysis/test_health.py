"""How far a recording can be trusted: coverage that sums, sources of assumed figures, warnings, and the answers."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sample_profiles
from profiler import api
from profiler.analysis import grades, health
from profiler.analysis.remedies import CODES, GROUPS, KNOW, problems
from profiler.errors import UnreadableError
from profiler.results import Note
from profiler.results_health import Coverage, Health

ROOT = Path(__file__).resolve().parents[2]
RECORDED = (
    "gfx950_fused_attention", "mi300x_conv_new", "mi300x_conv_old", "nvidia_8gpu_tf2", "tpu_qwen3_serving_bf16",
    "tpu_qwen3_serving_fp4", "tpu_v6e_inference",
)  # fmt: skip
SAMPLES = ("cpu-remat", "tiny-qwen3", "tiny-gpt-oss", "gpt-oss-20b", "qwen3-30b", "qwen3-30b-pdbs8")


def sample(pair: str, side: str = "baseline") -> str:
    folder = ROOT / "sample_profiles" / pair
    return str(next(folder.glob(f"{side}.xplane.pb*")))


def answers(found: Health) -> dict[str, str]:
    return {each.question: each.answer for each in found.grades}


def row(found: Health, name: str) -> Coverage:
    return next(each for each in found.coverage if each.name == name)


def origins(found: Health) -> dict[str, str]:
    return {each.name: each.origin for each in found.assumptions}


def assert_sums(side: Any) -> Health:
    """What is covered and what is not sum to the busy time; no part is larger than it."""
    found = api.health(side)
    busy = side.times.step_ps - side.times.idle_ps
    assert math.isclose(found.busy_ps, busy, rel_tol=1e-12)
    for each in found.coverage:
        total = each.covered_ps + each.uncovered_ps
        if each.scope == health.ALL:
            assert math.isclose(total, busy, rel_tol=1e-12), each.name
        assert total <= busy * (1 + 1e-12)
        assert 0 <= each.covered_ops <= each.ops <= side.trace.ops.height
        assert (each.ops == 0) == (each.ops_fraction is None)
    return found


@pytest.mark.recordings
@pytest.mark.parametrize("name", RECORDED)
def test_covered_and_uncovered_time_of_a_recording_sum_to_its_busy_time(recordings: Path, name: str) -> None:
    assert_sums(api.measured(str(recordings / f"{name}.xplane.pb")))


@pytest.mark.parametrize("pair", SAMPLES)
def test_covered_and_uncovered_time_of_a_sample_sum_to_its_busy_time(pair: str) -> None:
    side = api.measured(sample(pair))
    found = assert_sums(side)
    assert api.health(side) == found
    assert len(found.devices) == len(side.trace.devices)
    assert [each.events for each in found.devices] == [len(each) for each in side.trace.timelines]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=20))
def test_any_mix_of_ops_sums(
    tpu_space: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int]]
) -> None:
    names = ("fusion.1", "all-reduce.2", "copy-start.3", "custom-call.4")
    events = [(names[kind], start * 1000, 1 + length * 1000) for start, length, kind in spans]
    path = tpu_space({"TPU:0": {"XLA Ops": events}}).write(tmp_path_factory.mktemp("any") / "a.xplane.pb")
    assert_sums(api.measured(str(path)))


@pytest.mark.recordings
def test_the_answers_of_real_recordings(recordings: Path) -> None:
    def of(name: str) -> dict[str, str]:
        return answers(api.health(str(recordings / f"{name}.xplane.pb")))

    old = of("nvidia_8gpu_tf2")  # no HLO at all, no steps
    assert old[grades.TIMES] == "with care"
    assert old[grades.MATCHED] == old[grades.SPLIT] == old[grades.RATES] == old[grades.CAUSES] == "no"
    serving = of("tpu_qwen3_serving_bf16")  # name stacks, no programs, no allocator events
    assert (serving[grades.MATCHED], serving[grades.MEMORY]) == ("yes", "no")
    v6e = of("tpu_v6e_inference")  # programs and allocator events, but copies without a place in the model
    assert (v6e[grades.MATCHED], v6e[grades.MEMORY]) == ("with care", "yes")


@pytest.mark.recordings
def test_two_clocks_are_told_from_one(recordings: Path) -> None:
    both = api.health(str(recordings / "tpu_v6e_inference.xplane.pb"))
    assert [round(each.clock_ppm or 0) for each in both.devices] == [-15] * 4
    one = api.health(str(recordings / "tpu_qwen3_serving_bf16.xplane.pb"))
    assert {each.clock_ppm for each in one.devices} == {None}


@pytest.mark.recordings
def test_a_file_that_is_lost_is_named_for_what_it_is(recordings: Path) -> None:
    with pytest.raises(UnreadableError, match="UTF-8"):
        api.health(str(recordings / "corrupt_utf8.xplane.pb"))


def test_a_recording_that_says_what_it_is_can_be_explained_and_its_chip_cannot() -> None:
    found = api.health(sample("tiny-qwen3"))
    told = answers(found)
    assert told[grades.TIMES] == told[grades.MATCHED] == told[grades.CAUSES] == "yes"
    assert told[grades.SPLIT] == "no"
    assert next(each.remedy for each in found.grades if each.question == grades.SPLIT) == "--peak-tflops"
    assert answers(api.health(sample("tiny-qwen3"), api.Options(peak_tflops=1.0)))[grades.SPLIT] == "yes"


def test_times_of_a_compiled_profile_are_never_just_trusted() -> None:
    found = api.health(sample("qwen3-30b"))
    assert found.kind == "compiled"
    assert answers(found)[grades.TIMES] == answers(found)[grades.SPLIT] == "with care"
    assert "estimates" in found.grades[0].reason


def test_every_figure_says_where_it_comes_from(tmp_path: Path) -> None:
    carried = origins(api.health(sample("qwen3-30b")))
    assert carried["peak (dense bf16)"] == carried["HBM bandwidth"] == "chip table"
    assert carried["model FLOPs per step"] == carried["tokens per step"] == carried["HBM capacity"] == "run info"
    options = api.Options(model_tflops=5.0, tokens_per_step=64.0, peak_tflops=2.0)
    typed = origins(api.health(sample("cpu-remat"), options))
    assert {typed[name] for name in ("peak (dense bf16)", "model FLOPs per step", "tokens per step")} == {
        "command line"
    }
    config = tmp_path / "run.yml"
    config.write_text("model_tflops_per_device_per_step: 3\nlayers: 2\nremat_policy: full\n")
    stated = api.health(sample("cpu-remat"), api.Options(config=config))
    assert origins(stated)["model FLOPs per step"] == origins(stated)["layers"] == "--config"
    assert origins(stated)["tokens per step"] == "unknown"
    assert next(each for each in stated.presence if each.name == "knobs").detail == "1 keys"


def test_a_cut_file_is_not_trusted_as_a_whole_one(tmp_path: Path) -> None:
    data = gzip.decompress(Path(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz")).read_bytes())
    cut = tmp_path / "cut.xplane.pb"
    cut.write_bytes(data[: int(len(data) * 0.999)])
    found = api.health(str(cut))
    assert found.files[0].bytes == int(len(data) * 0.999)
    assert "truncated" in {each.code for each in found.problems if each.group == "lost"}
    assert answers(found)[grades.TIMES] == "with care"
    assert "the file is cut" in found.grades[0].reason


def test_steps_that_are_few_or_none_are_said_to_be(tpu_space: Callable[..., Any], saved: Callable[..., str]) -> None:
    once = api.health(saved(tpu_space({"TPU:0": {"XLA Ops": [("fusion.1", 0, 10)]}})))
    assert (once.grades[0].answer, once.steps.unit) == ("with care", "run")
    assert "no_steps" in {each.code for each in once.problems}
    steps = [(str(number), number * 10, 10) for number in range(3)]
    ops = [("fusion.1", number * 10, 5) for number in range(3)]
    two = api.health(saved(tpu_space({"TPU:0": {"Steps": steps, "XLA Ops": ops}}), "two.xplane.pb"))
    assert two.steps.count == 2
    assert "only 2 whole steps" in two.grades[0].reason


def test_the_same_file_twice_is_no_recording_to_trust() -> None:
    one = sample("cpu-remat")
    found = api.health(f"{one},{one}")
    assert answers(found)[grades.TIMES] == "no"
    assert found.recordings == 2


def test_tiles_and_groups_count_only_what_can_have_them() -> None:
    found = api.health(sample("qwen3-30b"))
    assert row(found, "tiles").ops == row(found, "tiles").covered_ops > 0
    assert row(found, "groups").fraction == 1.0
    alone = api.health(sample("cpu-remat"))
    assert (row(alone, "groups").ops, row(alone, "groups").fraction) == (0, None)
    assert answers(alone)[grades.COLLECTIVES] == "nothing to tell"


def test_every_code_of_a_warning_has_a_group() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "profiler").rglob("*.py"))
    codes = set(re.findall(r'\bNote\(\s*"(\w+)"', source)) | {"above_peak", "recorder_error", "recorder_warning"}
    assert codes <= set(CODES)
    assert {group for group, _ in CODES.values()} == set(GROUPS)


def test_warnings_are_grouped_in_order_each_once_and_the_unknown_is_worth_knowing() -> None:
    notes = [Note("new_code", "x"), Note("peak_differs", "y"), Note("truncated", "z"), Note("truncated", "z")]
    found = problems(notes)
    assert [(each.group, each.code) for each in found] == [
        ("lost", "truncated"), ("assumed", "peak_differs"), (KNOW, "new_code")
    ]  # fmt: skip
    assert found[2].remedy is None


def test_an_impossible_mfu_is_not_split() -> None:
    found = api.health(sample("cpu-remat"), api.Options(model_tflops=1e6, peak_tflops=1.0))
    assert answers(found)[grades.SPLIT] == "no"
    assert "above 100 %" in found.grades[2].reason


def test_a_share_of_nothing_is_all_of_it() -> None:
    empty = row(api.health(sample("cpu-remat")), "groups")
    assert grades.share(empty) == 1.0
    assert grades.share(replace(empty, ops=4, covered_ops=1, ops_fraction=0.25)) == 0.25
