"""Do two runs learn the same? Losses and perplexity of both sides, compared as far as their settings allow.

Where both sides compute the same thing on the same batches, each step's losses agree up to rounding, and the tolerance
is one of arithmetic. Where the batch differs, no step of one side corresponds to a step of the other: loss is compared
at equal tokens seen, and the tolerance is one of statistics. Where the sides learn under different settings (learning
rate, model, data), their losses are printed and no verdict is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from distill.config import REMAT_TENSORS, Config

# Largest relative difference of two losses that counts as rounding. Seen over 30 steps of tiny-qwen3: 1.3e-7 in
# float32, 6e-3 in bfloat16. A step rounds each activation to the dtype's unit
# (bfloat16 2⁻⁸, float32 2⁻²⁴), in another order on the two sides; AdamW turns the difference of a small gradient into
# one of a whole update, and the runs drift apart from there.
TOLERANCES = {"bfloat16": 1e-2, "float32": 1e-4}

# Settings that say how the same numbers are computed: everything else that differs makes another training run.
_PREFIXES_OF_HOW = ("sa_", "wi_tile_", "wo_tile_", "ici_", "profiler", "checkpoint", "hardware", "xla_flags")
_HOW = frozenset(REMAT_TENSORS) | {
    "remat_policy",
    "attention",
    "use_tokamax_splash",
    "loss_chunks",
    "skip_first_n_steps_for_profiler",
    "enable_checkpointing",
    "max_num_checkpoints_to_keep",
    "base_output_directory",
    "run_name",
}
# Settings that change how much one step sees, and so what can be compared with what.
_BATCH = frozenset({"per_device_batch_size", "gradient_accumulation_steps"})

STANDARD_ERRORS = 2.0  # a normally distributed difference of zero stays below so many in 95 of 100 comparisons


@dataclass(frozen=True, slots=True)
class Agreement:
    """What comparing the losses gave.

    Attributes:
        kind: "steps" (same batches: step by step), "tokens" (other batch: at equal tokens seen) or "settings" (no
            verdict: the sides were asked to learn different things).
        unchanged: the verdict; None without one.
        difference: "steps": the largest relative difference of a step's loss or log-perplexity; else optimized −
            baseline of the loss, in nats.
        tolerance: what ``difference`` was held against; None without a verdict.
        at: the step (kind "steps") or the tokens seen of the comparison.
        losses, perplexities: (first step's, last step's) of the baseline and of the optimized run.
        perplexity_difference: largest relative difference of a step's perplexity; None unless "steps".
        settings: the settings behind kind "settings".
    """

    kind: str
    unchanged: bool | None
    difference: float
    tolerance: float | None
    at: int
    losses: tuple[tuple[float, float], tuple[float, float]]
    perplexities: tuple[tuple[float, float], tuple[float, float]]
    perplexity_difference: float | None = None
    settings: tuple[str, ...] = ()

    @property
    def falls(self) -> bool:
        """Whether the loss of both sides fell from the first step to the last."""
        return all(last < first for first, last in self.losses)


def compare_losses(
    baseline: Sequence[Mapping[str, Any]],
    optimized: Sequence[Mapping[str, Any]],
    baseline_config: Mapping[str, Any],
    optimized_config: Mapping[str, Any],
) -> Agreement:
    """Compares two runs by their steps' metrics (distill.metrics) and configurations (all keys)."""
    differing = [each.name for each in fields(Config) if baseline_config[each.name] != optimized_config[each.name]]
    settings = tuple(key for key in differing if key not in _HOW | _BATCH and not key.startswith(_PREFIXES_OF_HOW))
    losses = (_ends(baseline, "loss"), _ends(optimized, "loss"))
    perplexities = (_ends(baseline, "perplexity"), _ends(optimized, "perplexity"))
    if settings or baseline[0]["tokens"] != optimized[0]["tokens"]:
        difference, error, at = at_equal_tokens(baseline, optimized)
        tolerance = None if settings else STANDARD_ERRORS * error
        unchanged = None if tolerance is None else abs(difference) <= tolerance
        kind = "settings" if settings else "tokens"
        return Agreement(kind, unchanged, difference, tolerance, at, losses, perplexities, settings=settings)
    tolerance = max(TOLERANCES[config["dtype"]] for config in (baseline_config, optimized_config))
    # Perplexity is judged by its logarithm, the cross-entropy: a loss in nats as the other one.
    relative = np.maximum(_relative(baseline, optimized, "loss"), _relative(baseline, optimized, "cross_entropy"))
    worst = int(np.argmax(relative))
    return Agreement(
        kind="steps",
        unchanged=bool(relative[worst] <= tolerance),
        difference=float(relative[worst]),
        tolerance=tolerance,
        at=baseline[worst]["step"],
        losses=losses,
        perplexities=perplexities,
        perplexity_difference=float(_relative(baseline, optimized, "perplexity").max()),
    )


def at_equal_tokens(
    baseline: Sequence[Mapping[str, Any]], optimized: Sequence[Mapping[str, Any]]
) -> tuple[float, float, int]:
    """Loss of the optimized run less that of the baseline, at equal tokens seen.

    Over the second half of the range that both runs cover, where the loss falls slowly, a line is fitted to each side's
    losses against tokens; the lines are compared in the middle, where a fitted value is known best.

    Returns:
        (difference in nats, its standard error, the tokens seen there). The error is infinite with fewer than three
        steps in the range: a line through two points leaves no scatter to judge by.
    """
    end = min(baseline[-1]["tokens"], optimized[-1]["tokens"])
    middle = 0.75 * end
    values, errors = zip(*(_fitted(side, end / 2, end, middle) for side in (baseline, optimized)), strict=True)
    return values[1] - values[0], math.hypot(*errors), round(middle)


def _fitted(steps: Sequence[Mapping[str, Any]], low: float, high: float, at: float) -> tuple[float, float]:
    """The value of a straight line through the losses of [low, high] tokens at ``at``, and its standard error.

    With n points at x̄ on average and residuals of variance s² (n − 2 degrees of freedom), the variance of a fitted
    value is s² (1/n + (at − x̄)² / Σ(x − x̄)²): any textbook on linear regression.
    """
    points = [(s["tokens"], _number(s["loss"])) for s in steps if low <= s["tokens"] <= high]
    x, y = np.array(points, np.float64).T if points else np.zeros((2, 0))
    if len(x) < 3:
        return (float(np.mean(y)) if len(y) else math.nan), math.inf
    x, at = x - x.mean(), at - x.mean()
    slope, mean = np.polyfit(x, y, 1)
    residuals = y - (mean + slope * x)
    variance = float(residuals @ residuals) / (len(x) - 2)
    return float(mean + slope * at), math.sqrt(variance * (1 / len(x) + at**2 / float(x @ x)))


def _relative(
    baseline: Sequence[Mapping[str, Any]], optimized: Sequence[Mapping[str, Any]], name: str
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """|optimized − baseline| / |baseline| of each step that both have; infinite where one is not a number."""
    pairs = [(_number(b[name]), _number(o[name])) for b, o in zip(baseline, optimized, strict=False)]
    relative = [abs(o - b) / max(abs(b), 1e-30) for b, o in pairs]
    return np.nan_to_num(np.array(relative, np.float64), nan=math.inf)


def _ends(steps: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float]:
    return _number(steps[0][name]), _number(steps[-1][name])


def _number(value: float | None) -> float:
    """A metric; those that were not finite are null in the file."""
    return math.nan if value is None else float(value)
