"""Which of many devices is slow by more than noise: robust means, two tests that must agree, and Holm's correction.

A device is slow where its trimmed mean lies above the median device's against the noise from step to step (a t-test
with Yuen's winsorized variances, pooled over the devices) *and* against how far devices lie apart anyway (the median
absolute deviation): chips are never quite equal. docs/commands/hosts.md says it in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TRIM = 0.2  # of the steps at either end that a mean leaves out
MAD_TO_SIGMA = 1.4826
NOISY = 0.9  # of the devices are less noisy than what is taken as the noise of one
MIN_BETWEEN = 4  # devices from which on their own spread can be told


@dataclass(frozen=True)
class Effects:
    """Of every device: ``excess`` above the median device, ``p`` of one test (1 where it cannot be told)."""

    excess: Floats
    p: Floats


def effects(samples: Sequence[Floats]) -> Effects:
    """How far every device lies above the median one, and how likely that is by chance.

    Args:
        samples: for each device its steps, less what all devices have in common in that step.
    """
    count = len(samples)
    parts = [_trimmed(each) for each in samples]
    mean, squares, kept = (np.array(column, np.float64) for column in zip(*parts, strict=True))
    excess = mean - lower_median(mean)
    freedom = (kept - 1).clip(min=0)
    if count < 2 or freedom.sum() <= 0:
        return Effects(excess, np.ones(count))
    from scipy.special import stdtr  # here, since loading scipy costs a tenth of a second

    # Taking away what is common in a step takes 1/n of the variance away; the median device's own noise adds to it.
    pooled = squares.sum() / freedom.sum()
    own = np.divide(squares, freedom, out=np.full(count, pooled), where=freedom > 0)
    # Some devices are noisier than others: each is held to its own noise and to what most others stay below.
    most = max(pooled, float(np.quantile(own, NOISY)))
    error = np.sqrt(np.maximum(most, own) / kept.clip(min=1)) * count / (count - 1)
    noise = stdtr(freedom.sum() * (count - 1) / count, -_divided(excess, error))
    p = noise
    if count >= MIN_BETWEEN:
        spread = np.full(count, MAD_TO_SIGMA * lower_median(np.abs(excess)))
        p = np.maximum(noise, stdtr(count - 1, -_divided(excess, spread)))
    return Effects(excess, np.where(freedom > 0, p, 1.0))


def holm(p: Floats) -> Floats:
    """Holm's adjusted p-values: each is how likely *any* of all tests is as extreme by chance."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted


def lower_median(values: Floats) -> float:
    """The lower of the two middle values: where half of all devices are slow, it is one of the others."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def spread(values: Floats) -> float:
    """A standard deviation that outliers do not move, around the median."""
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def _trimmed(values: Floats) -> tuple[float, float, int]:
    """Trimmed mean, winsorized sum of squares, and how many values are left."""
    cut = int(TRIM * len(values))
    ordered = np.sort(values)
    kept = ordered[cut : len(ordered) - cut]
    if not len(kept):
        return 0.0, 0.0, 0
    around = np.clip(ordered, kept[0], kept[-1])
    return float(kept.mean()), float(((around - around.mean()) ** 2).sum()), len(kept)


def _divided(excess: Floats, error: Floats) -> Floats:
    """t; where there is no noise at all, any excess is infinitely many times the noise."""
    exact = np.where(excess > 0, np.inf, 0.0)
    return np.divide(excess, error, out=exact, where=error > 0)
