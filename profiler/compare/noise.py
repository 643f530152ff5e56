"""Whether a change is more than noise: Welch's interval for the ratio of two mean step times.

The steady steps of a side are its samples, averaged over the devices of a recording, which step together. Steps of one
recording are not quite independent; several recordings of a side (``a1,a2``) show what repeats between runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from profiler.analysis.summary import Measured
from profiler.results import Contribution, StepLengths

CONFIDENCE = 0.95
MIN_SAMPLES = 2
MOST_LENGTHS = 200
ROUNDING = 1e-9  # of a time: a difference below it is none


def interval(baseline: Measured, optimized: Measured, scale: float) -> tuple[float, float] | None:
    """The 95 % interval of optimized / baseline step time for equal work; None where a side has a single sample.

    On the logarithm of the ratio: variance s²/(n·m²) per side (delta method), Student's t with Welch and
    Satterthwaite's degrees of freedom. Compiled profiles have no noise: their interval is the ratio itself.

    Args:
        baseline, optimized: the sides.
        scale: makes optimized times those of the baseline's work.
    """
    if baseline.trace.kind == "compiled" and optimized.trace.kind == "compiled":
        ratio = optimized.times.step_ps * scale / baseline.times.step_ps if baseline.times.step_ps else 1.0
        return ratio, ratio
    if "run" in (baseline.times.unit, optimized.times.unit):
        return None
    before, after = samples(baseline), samples(optimized) * scale
    if min(len(before), len(after)) < MIN_SAMPLES or before.mean() <= 0 or after.mean() <= 0:
        return None
    if len(before) == len(after) and (before == after).all():
        return 1.0, 1.0
    parts = [float(each.var(ddof=1)) / (len(each) * float(each.mean()) ** 2) for each in (before, after)]
    ratio, variance = float(after.mean() / before.mean()), sum(parts)
    if variance == 0:
        return ratio, ratio
    freedom = variance**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (before, after), strict=True))
    from scipy.special import stdtrit  # here, since loading scipy costs a tenth of a second

    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def significant(bounds: tuple[float, float] | None) -> bool | None:
    """Whether an interval of a ratio leaves out 1; None where there is none."""
    return None if bounds is None else not bounds[0] <= 1 <= bounds[1]


def with_noise(
    parts: Sequence[Contribution], baseline: Measured, optimized: Measured, scale: float, rate: float | None
) -> tuple[Contribution, ...]:
    """The contributions with the 95 % interval of their change, by Welch's t on their times in every step.

    Of single samples nothing is known; compiled profiles have no noise. Each category is tested by itself: of twenty
    that did not change, one is expected to look as if it had.

    Args:
        parts: the split of the change.
        baseline, optimized: the sides.
        scale: makes optimized times those of the baseline's work.
        rate: MFU points per ps saved; None where points are unknown.
    """
    sides = baseline, optimized
    exact = all(side.trace.kind == "compiled" for side in sides)
    if not exact and any(side.times.unit == "run" or len(samples(side)) < MIN_SAMPLES for side in sides):
        return tuple(parts)
    before, after = ({}, {}) if exact else (_by_group(baseline), _by_group(optimized))
    return tuple(_with_reach(each, 0.0 if exact else _reach(each, before, after, scale), rate) for each in parts)


def _by_group(side: Measured) -> dict[tuple[str, str | None, str | None], NDArray[np.float64]]:
    steps = side.times.group_steps
    keys = [*side.times.groups, ("idle", "idle", None)]
    return {key: samples(side, steps[:, index]) for index, key in enumerate(keys)} if len(steps) else {}


def _reach(
    each: Contribution,
    before: dict[tuple[str, str | None, str | None], NDArray[np.float64]],
    after: dict[tuple[str, str | None, str | None], NDArray[np.float64]],
    scale: float,
) -> float:
    """Half the interval of the difference of two means, ps; a side without the category has zeros, exactly."""
    key = each.category, each.family, each.phase
    sides = [times for times in (before.get(key), after.get(key)) if times is not None and len(times) >= MIN_SAMPLES]
    factors = [1.0 if times is before.get(key) else scale for times in sides]
    variances = [
        float(times.var(ddof=1)) * factor**2 / len(times) for times, factor in zip(sides, factors, strict=True)
    ]
    total = sum(variances)
    if not total:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(times) - 1) for part, times in zip(variances, sides, strict=True))
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def _with_reach(each: Contribution, reach: float, rate: float | None) -> Contribution:
    size = abs(each.baseline_time_ps) + abs(each.optimized_time_ps)
    points: tuple[float, float] | None = None
    if each.mfu_points is not None:
        own = (rate or 0.0) * reach
        points = (each.mfu_points - own, each.mfu_points + own)
    return replace(
        each,
        significant=abs(each.time_ps) > max(reach, ROUNDING * size) if each.category != "peak" else True,
        interval_time_ps=(each.time_ps - reach, each.time_ps + reach),
        interval_points=points,
    )


def lengths(baseline: Measured, optimized: Measured) -> StepLengths | None:
    """Every step of both sides, to look at; None where a side has no steps that repeat."""
    if "run" in (baseline.times.unit, optimized.times.unit):
        return None
    base, opt = samples(baseline), samples(optimized)
    return StepLengths(_spread(base), _spread(opt), len(base), len(opt))


def _spread(steps: NDArray[np.float64]) -> tuple[float, ...]:
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), MOST_LENGTHS)).round().astype(int)
    return tuple(float(length) for length in steps[chosen])


def samples(measured: Measured, values: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Step times, one per step of a recording: the mean over its devices where they have equally many steps.

    ``values``: other figures of the same steps, in the same order.
    """
    counts = measured.times.device_steps
    lengths = measured.times.lengths_ps if values is None else values
    recordings = measured.trace.recordings
    if len(set(counts)) == 1 and len(counts) % recordings == 0:
        steps: NDArray[np.float64] = lengths.reshape(recordings, len(counts) // recordings, counts[0]).mean(axis=1)
        return steps.reshape(-1)
    return lengths
