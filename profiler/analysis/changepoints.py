"""Where a series of figures changes its level for good: least squares with a price for every change.

The noise is read off the differences of neighbours, which a step moves in one place only; a single figure that stands
out is drawn in to its neighbours first, since one run is no level. A change must take away (6 σ)² of the squares, more
than noise does in 1 of 100 series, short or long, normal or heavy-tailed (docs/commands/history.md; the tests hold it).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRICE = 36.0  # of a change, in variances of the noise
LEAST = 2  # figures that make a level
FEWEST = 2 * LEAST  # figures in which a change can be seen
REACH = 3.0  # times the noise that one figure may be away from both neighbours
MAD_TO_SIGMA = 1.4826


def noise(values: Floats) -> float:
    """The standard deviation from run to run, whatever levels there are; 0 of fewer than two figures."""
    steps = np.abs(np.diff(values))
    return MAD_TO_SIGMA * float(np.median(steps)) / np.sqrt(2) if steps.size else 0.0


def drawn_in(values: Floats) -> Floats:
    """The figures with each that stands out from both neighbours (at an end, from the two next to it) drawn in."""
    if len(values) < 3:
        return values
    around = np.concatenate([values[2:3], values, values[-3:-2]])
    middle = np.median(np.stack([around[:-2], values, around[2:]]), axis=0)
    reach = REACH * noise(values)
    return np.clip(values, middle - reach, middle + reach)


def changes(values: Floats, least_change: float = 0.01) -> tuple[int, ...]:
    """The places at which a new level begins.

    Args:
        values: figures in their order, all finite and known.
        least_change: relative changes of the median below this are none.
    """
    count = len(values)
    if count < FEWEST:
        return ()
    kept = drawn_in(values)
    # Figures that are exactly equal have no noise: then any change is one, but for rounding.
    variance = max(noise(values), 1e-9 * float(np.abs(values).max())) ** 2
    if variance == 0:
        return ()
    sums, squares = (
        np.concatenate([[0.0], np.cumsum(each)]) for each in (kept - kept.mean(), (kept - kept.mean()) ** 2)
    )
    best = np.full(count + 1, np.inf)
    best[0] = -PRICE
    before = np.zeros(count + 1, np.int64)
    for end in range(LEAST, count + 1):
        begin = np.arange(end - LEAST + 1)
        cost = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        total = best[begin] + cost / variance + PRICE
        before[end] = int(total.argmin())
        best[end] = float(total[before[end]])
    places: list[int] = []
    at = int(before[count])
    while at > 0:
        places.insert(0, at)
        at = int(before[at])
    return _large(values, places, least_change)


def exact_changes(values: Floats, least_change: float = 0.01) -> tuple[int, ...]:
    """The same of figures that have no noise: every difference from the one before that is large enough."""
    return tuple(
        place
        for place, (before, after) in enumerate(pairwise(values.tolist()), 1)
        if abs(after - before) >= least_change * max(abs(before), 1e-300)
    )


def levels(values: Floats, places: tuple[int, ...]) -> tuple[float, ...]:
    """The median of every level."""
    return tuple(float(np.median(each)) for each in np.split(values, list(places)))


def _large(values: Floats, places: list[int], least: float) -> tuple[int, ...]:
    """The changes that are large enough; the smallest of the others go first, one by one."""
    while places:
        found = levels(values, tuple(places))
        sizes = [abs(after - before) / max(abs(before), 1e-300) for before, after in pairwise(found)]
        smallest = int(np.argmin(sizes))
        if sizes[smallest] >= least:
            break
        del places[smallest]
    return tuple(places)
