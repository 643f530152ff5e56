"""What slow devices cost: by how much a step would be shorter without them, always, or in the steps that they spoil."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from profiler.analysis.skewtable import Floats, Table
from profiler.analysis.skewtest import spread
from profiler.fleet import Fleet
from profiler.results_skew import SkewCount, Spikes

SPIKE_NOISE, MIN_SPIKE = 6.0, 0.02  # times the noise, and of the step
MIN_SPIKES = 0.1  # of the steps, and two of them
MIN_COST = 0.01  # of the mean step: what costs less does not matter


def gain(every: Table, places: Collection[int], *, late: bool) -> float:
    """By how much the mean step would be shorter if some devices ran as the median one, ps: an estimate.

    A step takes as long as its longest device, so it would end when the longest of the others does; and no more is
    gained than the others wait longer than the device that they wait for.

    Args:
        every: all devices.
        places: the devices that would run as the median one.
        late: whether a host is late with work, so that idle time counts; else it may be waiting as well.
    """
    if not places or len(places) == len(every):
        return 0.0
    own = every.matrix(every.own if late else every.work)
    inside = np.isin(np.arange(len(every)), list(places))
    return float(_gains(own, every.matrix(every.steps), np.broadcast_to(inside[:, None], own.shape)).mean())


def _gains(own: Floats, steps: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Of every step; all are (devices, steps), ``inside`` those that would run as the median."""
    longest = own.argmax(axis=0)[None, :]
    rest = np.where(inside, -np.inf, own).max(axis=0)
    wait = steps - own
    others = np.nanmedian(np.where(inside, np.nan, wait), axis=0)
    gains: Floats = np.minimum(own.max(axis=0) - rest, others - np.take_along_axis(wait, longest, axis=0)[0])
    return gains.clip(min=0)


def above_usual(every: Table) -> Floats:
    """How far every device is above the median of the step, less what it mostly is, as a share of the step."""
    beside = np.array(every.beside(every.own)) / every.typical_ps
    above: Floats = beside - np.median(beside, axis=1, keepdims=True)
    return above


def threshold(above: Floats) -> float:
    """What stands out of the noise of single steps."""
    return max(SPIKE_NOISE * spread(above), MIN_SPIKE)


def spikes(fleet: Fleet, every: Table, slow: Collection[int]) -> Spikes | None:
    """Steps that a device makes long which mostly is like the others; ``slow`` ones are left out."""
    others = [place for place in range(len(every)) if place not in slow]
    if every.matched is None or len(others) < 2:
        return None
    above = above_usual(every)[others]
    far = above > threshold(above)
    hit: NDArray[np.bool_] = np.logical_or.reduce(far)
    if hit.sum() < max(2, MIN_SPIKES * len(hit)) or far.all(axis=0).any():
        return None
    counts = Counter(every.index[others[place]] for place in above.argmax(axis=0)[hit].tolist())
    gains = _gains(every.matrix(every.own)[others], every.matrix(every.steps)[others], far)
    cost = float(np.where(hit, gains, 0.0).mean())
    if cost < MIN_COST * every.typical_ps:
        return None
    return Spikes(
        steps=int(hit.sum()),
        of=len(hit),
        devices=tuple(SkewCount(fleet.devices[index].name, count) for index, count in counts.most_common()),
        gain_ps=cost,
    )
