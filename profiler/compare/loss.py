"""Do the two runs compute the same? Their losses and perplexities, as far as their run info has them.

Runs that see the same batches and learn under the same settings agree step by step up to rounding. With another batch
size no step of one corresponds to a step of the other: the losses are compared at equal tokens seen, within what their
scatter allows. With other settings the losses are shown and no verdict is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profiler.compare.knob_table import entry
from profiler.results import Knob, LossDelta, Note

# Largest relative difference that counts as rounding. A step rounds each activation to the dtype's unit (bfloat16 2⁻⁸,
# float32 2⁻²⁴), in another order on the two sides, and AdamW makes a whole update of a small gradient's difference.
TOLERANCES = {"bfloat16": 1e-2, "float32": 1e-4}
STANDARD_ERRORS = 2.0  # a difference of zero stays below so many in 95 of 100 comparisons
LEAST_STEPS = 3  # a line through two points leaves no scatter to judge by

Steps = list[dict[str, float]]
Ends = tuple[float, float] | None


_Ends = tuple[Ends, Ends, Ends, Ends]  # loss of both sides, perplexity of both sides


def loss_delta(before: Mapping[str, Any], after: Mapping[str, Any], knobs: Sequence[Knob]) -> LossDelta | None:
    """Compares the metrics of two run infos; None where a side has none.

    Args:
        before, after: run info with ``metrics``: a list of {step, tokens, loss, perplexity, …}.
        knobs: what differs between the configurations.
    """
    sides = _steps(before), _steps(after)
    if not sides[0] or not sides[1]:
        return None
    settings = tuple(knob.key for knob in knobs if _learns(knob))
    losses, perplexities = ((_ends(sides[0], name), _ends(sides[1], name)) for name in ("loss", "perplexity"))
    ends = (*losses, *perplexities)
    paired = _paired(*sides)
    if settings or not paired:
        return _at_equal_tokens(sides, settings, ends)
    tolerance = max(TOLERANCES.get(_dtype(info), max(TOLERANCES.values())) for info in (before, after))
    # Perplexity is judged by its logarithm, a loss in nats as the other one.
    names = [name for name in ("loss", "log_perplexity") if all(name in step for pair in paired for step in pair)]
    worst, at = max((_relative(b[name], o[name]), -b["step"]) for b, o in paired for name in names)
    same = worst <= tolerance
    found = (
        f"unchanged within {worst:.1g}"
        if same
        else f"the runs do not compute the same: loss differs by {_percent(worst)} at step {-at:.0f}"
    )
    text = f"{found}, relative, over {_count(len(paired))} (rounding explains {tolerance:g})"
    return LossDelta("steps", same, worst, tolerance, int(-at), len(paired), *ends, settings, text)


def loss_notes(found: LossDelta | None) -> tuple[Note, ...]:
    """A warning where the runs do not compute the same."""
    return (Note("loss_differs", found.text),) if found is not None and found.unchanged is False else ()


def _at_equal_tokens(sides: tuple[Steps, Steps], settings: tuple[str, ...], ends: _Ends) -> LossDelta:
    """At the middle of the range of tokens that both sides cover, by a line through each side's losses there."""
    low, high = (
        max(side[0].get("tokens", math.nan) for side in sides),
        min(s[-1].get("tokens", math.nan) for s in sides),
    )
    middle = (low + high) / 2
    lines = [_fitted(side, low, high, middle) for side in sides]
    kind = "settings" if settings else "tokens"
    if lines[0] is None or lines[1] is None:
        text = "no verdict: the runs have too few losses at equal tokens seen"
        return LossDelta(kind, None, None, None, None, 0, *ends, settings, text)
    difference, tolerance = lines[1][0] - lines[0][0], STANDARD_ERRORS * math.hypot(lines[0][1], lines[1][1])
    where = f"loss {difference:+.4f} at {middle:,.0f} tokens seen".replace("-", "−")
    at, count = round(middle), min(lines[0][2], lines[1][2])
    if settings:
        text = f"no verdict, since {', '.join(settings)} differ{'s' * (len(settings) == 1)}: {where}"
        return LossDelta(kind, None, difference, None, at, count, *ends, settings, text)
    same = abs(difference) <= tolerance
    verdict = "unchanged" if same else "the runs do not learn the same"
    text = f"{verdict}: {where} (scatter explains {tolerance:.4f})"
    return LossDelta(kind, same, difference, tolerance, at, count, *ends, settings, text)


def _fitted(steps: Steps, low: float, high: float, at: float) -> tuple[float, float, int] | None:
    """(value at ``at`` of a straight line through the losses of [low, high] tokens, its standard error, points)."""
    points = [(step["tokens"], step["loss"]) for step in steps if low <= step.get("tokens", math.nan) <= high]
    if len(points) < LEAST_STEPS:
        return None
    x, y = np.array(points, np.float64).T
    x, at = x - x.mean(), at - x.mean()
    slope, mean = np.polyfit(x, y, 1)
    residuals = y - (mean + slope * x)
    variance = float(residuals @ residuals) / (len(x) - 2)
    return float(mean + slope * at), math.sqrt(variance * (1 / len(x) + at**2 / float(x @ x))), len(x)


def _steps(info: Mapping[str, Any]) -> Steps:
    """The steps with a loss, by number; what is no number is NaN where it is a loss, else left out."""
    metrics = info.get("metrics")
    rows = [row for row in metrics if isinstance(row, Mapping)] if isinstance(metrics, list) else []
    found = []
    for row in rows:
        if "loss" not in row or _number(row.get("step")) is None:
            continue
        values = {key: value for key in ("step", "tokens") if (value := _number(row.get(key))) is not None}
        values |= {key: _number(row[key], math.nan) for key in ("loss", "perplexity") if key in row}
        if values.get("perplexity", 0.0) > 0:
            values["log_perplexity"] = math.log(values["perplexity"])
        found.append(values)
    return sorted(found, key=lambda step: step["step"])


def _paired(before: Steps, after: Steps) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Steps of equal number, if they have seen equally many tokens."""
    by_number = {step["step"]: step for step in after}
    pairs = [(step, by_number[step["step"]]) for step in before if step["step"] in by_number]
    return pairs if all(b.get("tokens") == o.get("tokens") for b, o in pairs) else []


def _relative(before: float, after: float) -> float:
    difference = abs(after - before) / max(abs(before), 1e-30)
    return math.inf if math.isnan(difference) else difference


def _ends(steps: Steps, name: str) -> Ends:
    values = [step[name] for step in steps if name in step]
    return (values[0], values[-1]) if values else None


def _number(value: Any, otherwise: Any = None) -> Any:
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if numeric else otherwise


def _learns(knob: Knob) -> bool:
    known = entry(knob.key, knob.source)
    return known is not None and known.learns


def _dtype(info: Mapping[str, Any]) -> str:
    config = info.get("config")
    return str(config.get("dtype")) if isinstance(config, Mapping) else ""


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if math.isfinite(value) else "what is no number"


def _count(steps: int) -> str:
    return f"{steps} step{'s' * (steps != 1)}"
