"""Whether a change is more than noise: Welch's interval for the ratio of two mean step times.

The steady steps of a side are its samples, averaged over the devices of a recording, which step together. Steps of one
recording are not quite independent; several recordings of a side (``a1,a2``) show what repeats between runs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from profiler.analysis.summary import Measured

CONFIDENCE = 0.95
MIN_SAMPLES = 2


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


def samples(measured: Measured) -> NDArray[np.float64]:
    """Step times, one per step of a recording: the mean over its devices where they have equally many steps."""
    counts = measured.times.device_steps
    lengths = measured.times.lengths_ps
    recordings = measured.trace.recordings
    if len(set(counts)) == 1 and len(counts) % recordings == 0:
        steps: NDArray[np.float64] = lengths.reshape(recordings, len(counts) // recordings, counts[0]).mean(axis=1)
        return steps.reshape(-1)
    return lengths
