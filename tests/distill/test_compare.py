"""Two runs held against each other: losses, attention calls, ladders, reports."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import profiler
import sample_profiles
from distill.agreement import at_equal_tokens, compare_losses
from distill.calls import attention_calls
from distill.compare import describe_losses
from distill.config import load
from distill.ladder import rungs
from distill.runs import Plan, Run

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = [
    "student_overrides.base_num_decoder_layers=2",
    "teacher_overrides.base_num_decoder_layers=2",
    "max_target_length=64",
    "per_device_batch_size=2",
    "skip_first_n_steps_for_profiler=3",
]


def steps(losses, tokens_per_step=100):
    return [
        {
            "step": i,
            "tokens": (i + 1) * tokens_per_step,
            "loss": loss,
            "cross_entropy": loss,
            "perplexity": loss and math.exp(loss),
        }
        for i, loss in enumerate(losses)
    ]


def config(**changes):
    return load("tiny-qwen3-base").config.to_dict() | changes


def curve(n, seed=0, noise=0.01, offset=0.0):
    rng = np.random.default_rng(seed)
    return [2 + 2 * math.exp(-i / 5) + offset + noise * rng.standard_normal() for i in range(n)]


def test_equal_losses_are_unchanged_step_by_step():
    found = compare_losses(
        steps(curve(30)), steps(curve(30)), config(), config(remat_policy="custom", context="device")
    )
    assert (found.kind, found.unchanged, found.difference) == ("steps", True, 0.0)
    assert found.falls


def test_a_rounding_difference_is_unchanged_and_a_larger_one_is_not():
    base = curve(30)
    close, far = list(base), list(base)
    close[7] *= 1 + 1e-6
    far[7] *= 1 + 1e-3
    assert compare_losses(steps(base), steps(close), config(), config()).unchanged
    found = compare_losses(steps(base), steps(far), config(), config())
    assert not found.unchanged
    assert found.at == 7
    assert found.difference == pytest.approx(1e-3, rel=1e-3)
    assert "CHANGED" in " ".join(describe_losses(found))


def test_bfloat16_is_held_to_its_own_tolerance():
    base = curve(30)
    other = [each * (1 + 2e-3) for each in base]
    low = config(dtype="bfloat16")
    assert compare_losses(steps(base), steps(other), low, low).unchanged
    assert not compare_losses(steps(base), steps(other), config(), config()).unchanged


def test_a_loss_that_is_not_a_number_is_never_unchanged():
    other = curve(30)
    other[5] = None
    assert not compare_losses(steps(curve(30)), steps(other), config(), config()).unchanged


def test_another_batch_is_compared_at_equal_tokens_and_says_so():
    base = steps(curve(60, seed=1), 100)
    same = steps([curve(60, seed=2)[round(1.5 * i)] for i in range(40)], 150)
    found = compare_losses(base, same, config(), config(per_device_batch_size=6))
    assert (found.kind, found.unchanged) == ("tokens", True)
    assert found.at == 4500
    assert "step-wise equality is not expected" in " ".join(describe_losses(found))
    worse = steps([each["loss"] + 0.1 for each in same], 150)
    assert not compare_losses(base, worse, config(), config(per_device_batch_size=6)).unchanged


def test_the_statistical_tolerance_holds_its_level():
    inside = 0
    for seed in range(200):
        difference, error, _ = at_equal_tokens(
            steps([3.0 + 0.1 * x for x in np.random.default_rng(seed).standard_normal(30)]),
            steps([3.0 + 0.1 * x for x in np.random.default_rng(1000 + seed).standard_normal(30)]),
        )
        inside += abs(difference) <= 2 * error
    assert 0.88 <= inside / 200 <= 0.99


def test_too_few_steps_give_no_certainty():
    difference, error, _ = at_equal_tokens(steps([3.0, 2.0, 1.9]), steps([3.0, 2.0], 150))
    assert math.isfinite(difference)
    assert math.isinf(error)


def test_other_settings_give_no_verdict():
    found = compare_losses(steps(curve(30)), steps(curve(30)), config(), config(learning_rate=1.0))
    assert (found.kind, found.unchanged, found.settings) == ("settings", None, ("learning_rate",))
    assert "no verdict" in " ".join(describe_losses(found))


def test_runs_go_forth_and_back():
    assert Plan(30, repeats=2).order(2) == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert Plan(30, repeats=1).order(3) == [(0, 0), (1, 0), (2, 0)]


def test_a_ladder_leads_from_one_configuration_to_the_other():
    base, opt = (load(f"qwen3-30b-{side}").config for side in ("base", "opt"))
    ladder = rungs(base, opt)
    assert [each.name for each in ladder] == [
        "baseline",
        "per_device_batch_size",
        "rematerialisation",
        "sa_q_layout",
        "grouped matmul tiles",
    ]
    assert load("qwen3-30b-base", ladder[-1].overrides).config == opt


# --- real runs -----------------------------------------------------------------------------------------------------


def distill(*arguments, code=0, timeout=600):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "distill", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    done = distill("compare", "tiny-qwen3-base", "tiny-qwen3-opt", "--steps", 8, "--repeats", 1, "-o", out, *SMALL)
    return out, done.stdout


def test_the_report_says_what_changed_and_what_it_was_worth(small):
    out, text = small
    assert "unchanged within" in text
    assert "remat_policy full → custom" in text
    assert "the student's go 2 → 1 per layer; the teacher's are untouched" in text
    assert "worth: re-run attention took" in text
    assert (out / "compare.txt").read_text() == text
    assert "<html" in (out / "diff.html").read_text().lower()
    assert str(ROOT) not in text


def test_attention_runs_forward_twice_in_the_baseline_and_once_in_the_optimized_run(small):
    out, _ = small
    expected = {"base": (1, 1, 1), "opt": (1, 1, 0)}
    for side, counts in expected.items():
        shape = load(f"tiny-qwen3-{side}", SMALL).config
        calls = attention_calls(str(out / f"{side}-1"), shape)
        assert (calls.teacher, calls.forward, calls.rerun) == counts


def test_both_sides_saw_the_same_batches_and_agree_to_rounding(small):
    out, _ = small
    base, opt = (Run(out / f"{side}-1").steps for side in ("base", "opt"))
    assert [each["loss"] for each in opt] == pytest.approx([each["loss"] for each in base], rel=1e-5)
    assert base[-1]["loss"] < base[0]["loss"]


def test_a_configuration_that_is_not_possible_fails_before_any_run(tmp_path):
    out = tmp_path / "out"
    done = distill("compare", "tiny-qwen3-base", "tiny-qwen3-opt", "-o", out, "remat_policy=most", code=2)
    assert "remat_policy" in done.stderr
    assert not out.exists()


def test_a_side_that_fails_ends_the_comparison_with_its_own_message(tmp_path):
    done = distill("compare", "tiny-qwen3-base", "tiny-qwen3-opt", "ici_data_parallelism=3", "-o", tmp_path, code=1)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert "ici_data_parallelism=3" in errors[0]
    assert "exit code 2" in errors[1]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-gpt-oss"])
def test_thirty_steps_of_a_tiny_recipe_take_minutes_and_show_the_case(model, tmp_path):
    start = time.monotonic()
    text = distill("compare", f"{model}-base", f"{model}-opt", "--repeats", 1, "-o", tmp_path).stdout
    assert time.monotonic() - start < 300
    assert "unchanged within" in text
    assert "2 → 1 per layer; the teacher's are untouched" in text
    runs = [json.loads(line) for line in (tmp_path / "base-1" / "metrics.jsonl").read_text().splitlines()]
    assert len(runs) == 30
    assert runs[-1]["loss"] < 0.7 * runs[0]["loss"]


@pytest.mark.slow
def test_a_ladder_shows_every_rung(tmp_path):
    text = distill(
        "ladder", "tiny-qwen3-base", "tiny-qwen3-opt", "--steps", 8, "--repeats", 1, "-o", tmp_path, *SMALL
    ).stdout
    rows = [line for line in text.splitlines() if line[:2].strip().isdigit()]
    assert [row.split()[-1] for row in rows[1:3]] == ["unchanged", "unchanged"]
    assert rows[0].split()[-2:] == ["2", "–"]  # attention runs forward twice in the baseline
    assert rows[1].split()[-2] == "1"
    assert (tmp_path / "ladder.txt").read_text() == text


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-gpt-oss"])
def test_the_sample_pairs_show_the_case(model):
    paths = {side: sample_profiles.path(f"{model}/{side}.xplane.pb.gz") for side in ("baseline", "optimized")}
    calls = [attention_calls(str(path), load(f"{model}-base").config) for path in paths.values()]
    assert [(each.teacher, each.forward, each.rerun) for each in calls] == [(1, 1, 1), (1, 1, 0)]
    for path in paths.values():
        assert path.stat().st_size < 800_000
        metrics = profiler.load(str(path)).run_info["metrics"]
        assert [each["step"] for each in metrics] == [10, 11, 12, 13, 14, 15]
