"""Two runs that are compared for speed should compute the same: their losses say whether they do."""

from __future__ import annotations

import math

import pytest

import profiler
import sample_profiles
from profiler.compare.knobs import config_delta
from profiler.compare.loss import loss_delta, loss_notes
from profiler.report import render_diff
from profiler.report.output import Style


def info(losses, *, tokens: int = 100, first: int = 10, **config):
    metrics = [
        {
            "step": first + i,
            "tokens": tokens * (i + 1),
            "loss": loss,
            "perplexity": None if loss is None else math.exp(loss),
        }
        for i, loss in enumerate(losses)
    ]
    return {"metrics": metrics, "config": {"dtype": "float32", **config}}


def compared(before, after):
    return loss_delta(before, after, config_delta(before, after).knobs)


def test_the_same_losses_up_to_rounding_are_unchanged() -> None:
    found = compared(info([2.0, 1.9]), info([2.0, 1.9 * (1 + 1e-6)], context="device"))
    assert (found.kind, found.unchanged, found.count) == ("steps", True, 2)
    assert found.difference == pytest.approx(1e-6)
    assert found.text.startswith("unchanged within 1e-06, relative, over 2 steps")
    assert (found.baseline_loss, found.baseline_perplexity[1]) == ((2.0, 1.9), pytest.approx(math.exp(1.9)))
    assert loss_notes(found) == ()


def test_losses_that_differ_by_more_than_rounding_are_a_warning() -> None:
    found = compared(info([2.0, 1.9, 1.8]), info([2.0, 1.95, 1.8]))
    assert (found.unchanged, found.at) == (False, 11)
    (note,) = loss_notes(found)
    assert note.code == "loss_differs"
    assert "the runs do not compute the same: loss differs by 2.6 % at step 11" in note.message
    assert compared(info([2.0], dtype="bfloat16"), info([2.01], dtype="bfloat16")).unchanged is True


def test_a_loss_that_is_no_number_differs() -> None:
    assert compared(info([2.0, 1.9]), info([2.0, None])).unchanged is False


def test_another_batch_is_compared_at_equal_tokens() -> None:
    def curve(tokens: int, count: int, shift: float = 0.0):
        wiggle = [0.01 * (-1) ** i for i in range(count)]
        losses = [3 - 0.001 * tokens * (i + 1) + w + shift for i, w in enumerate(wiggle)]
        return info(losses, tokens=tokens, per_device_batch_size=tokens)

    same, other = compared(curve(40, 12), curve(60, 8)), compared(curve(40, 12), curve(60, 8, shift=0.5))
    assert (same.kind, same.unchanged) == ("tokens", True)
    assert (other.unchanged, other.difference) == (False, pytest.approx(0.5, abs=0.02))
    assert "+0.5" in other.text


def test_too_few_losses_at_equal_tokens_give_no_verdict() -> None:
    found = compared(info([2.0, 1.9], tokens=40), info([2.0, 1.9], tokens=60))
    assert (found.unchanged, found.difference) == (None, None)


def test_other_settings_give_no_verdict_and_are_named() -> None:
    found = compared(info([2.0, 1.9, 1.8, 1.7], learning_rate=1e-4), info([2.0, 1.8, 1.6, 1.4], learning_rate=2e-4))
    assert (found.kind, found.unchanged, found.settings) == ("settings", None, ("learning_rate",))
    assert "since learning_rate differs" in found.text


def test_without_metrics_nothing_is_said() -> None:
    assert compared({"config": {}}, info([1.0])) is None
    assert compared({"metrics": [{"step": 1}]}, info([1.0])) is None
    assert compared({"metrics": "none"}, info([1.0])) is None


def test_a_sample_pair_learns_the_same() -> None:
    paths = (str(sample_profiles.path(f"tiny-qwen3/{side}.xplane.pb.gz")) for side in ("baseline", "optimized"))
    diff = profiler.diff(*paths)
    assert diff.loss.unchanged is True
    text = render_diff(diff, "text", Style()).decode()
    assert "Loss: unchanged within" in text
    assert "perplexity" in text
