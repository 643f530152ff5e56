"""What both runs say of their own steps (loss, learning rate, gradient norm …), as curves to lay over each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_METRICS = 40
MOST_POINTS = 2000
# Metrics that distill writes, in the order in which they are looked at; others follow by name.
TITLES = {
    "loss": "loss (nats)",
    "perplexity": "perplexity",
    "kl": "distillation loss, KL (nats)",
    "cross_entropy": "cross entropy (nats)",
    "feature_loss": "feature loss",
    "load_balance_loss": "load balance loss",
    "z_loss": "z loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens": "tokens seen",
    "tokens_per_s": "tokens/s, by the run's own clock",
    "step_time_s": "step time (s), by the run's own clock",
    "model_tflops_per_s": "model TFLOP/s, by the run's own clock",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of one side by step number; ``tokens`` seen by then, None where a step does not say.

    ``broken`` counts the steps whose value is there and no finite number; ``count`` all that are finite, of which at
    most MOST_POINTS are kept, evenly spread.
    """

    steps: tuple[float, ...]
    tokens: tuple[float | None, ...]
    values: tuple[float, ...]
    count: int
    broken: int


@dataclass(frozen=True, slots=True)
class MetricFigure:
    """One metric of both sides; a side without it is None.

    ``difference`` is optimized − baseline at the steps that both have, as (step, difference).
    """

    name: str
    title: str
    baseline: Curve | None
    optimized: Curve | None
    difference: tuple[tuple[float, float], ...]


def metric_figures(baseline: Mapping[str, Any] | None, optimized: Mapping[str, Any] | None) -> tuple[MetricFigure, ...]:
    """All metrics of two run infos, the loss first; empty where neither has any. At most MOST_METRICS."""
    sides = _rows(baseline), _rows(optimized)
    names = {str(key) for side in sides for row in side for key in row} - {"step"}
    ordered = [name for name in TITLES if name in names] + sorted(names - set(TITLES))
    found = []
    for name in ordered:
        base, opt = (_curve(side, name) for side in sides)
        if base is not None or opt is not None:
            found.append(MetricFigure(name, TITLES.get(name, name), base, opt, _difference(sides, name)))
    return tuple(found[:MOST_METRICS])


def _rows(info: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The steps that have a number, by it; of one number the last."""
    metrics = (info or {}).get("metrics")
    rows = [row for row in metrics if isinstance(row, Mapping)] if isinstance(metrics, list) else []
    by_step = {step: row for row in rows if (step := _finite(row.get("step"))) is not None}
    return [by_step[step] for step in sorted(by_step)]


def _curve(rows: list[Mapping[str, Any]], name: str) -> Curve | None:
    """None where no step has a number of this name, broken ones included."""
    points = [(float(row["step"]), _finite(row.get("tokens")), row[name]) for row in rows if _numeric(row.get(name))]
    whole = [(step, tokens, float(value)) for step, tokens, value in points if _finite(value) is not None]
    if not points:
        return None
    chosen = np.linspace(0, len(whole) - 1, min(len(whole), MOST_POINTS)).round().astype(int).tolist() if whole else []
    kept = [whole[index] for index in chosen]
    return Curve(
        steps=tuple(step for step, _, _ in kept),
        tokens=tuple(tokens for _, tokens, _ in kept),
        values=tuple(value for _, _, value in kept),
        count=len(whole),
        broken=len(points) - len(whole),
    )


def _difference(
    sides: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]], name: str
) -> tuple[tuple[float, float], ...]:
    before, after = (
        {float(row["step"]): value for row in side if (value := _finite(row.get(name))) is not None} for side in sides
    )
    both = [(step, after[step] - value) for step, value in before.items() if step in after]
    chosen = np.linspace(0, len(both) - 1, min(len(both), MOST_POINTS)).round().astype(int).tolist() if both else []
    return tuple(both[index] for index in chosen)


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    try:
        return float(value) if _numeric(value) and math.isfinite(value) else None
    except OverflowError:  # an integer that no float holds
        return None
