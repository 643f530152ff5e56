"""A series of figures as a line of eighths, with marks under some of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

WIDTH = 90
_EIGHTHS = "▁▂▃▄▅▆▇█"
MARK = "^"


def sparkline(values: Sequence[float], marked: Sequence[bool] = (), width: int = WIDTH) -> list[str]:
    """Two lines: the figures from their least to their largest, and the marks; none below where there are no marks.

    Args:
        values: in their order; of more than ``width`` neighbours share a column, which shows their mean.
        marked: which of them have a mark.
        width: characters.
    """
    count = len(values)
    columns = min(count, width)
    ends = [column * count // columns for column in range(columns + 1)] if columns else [0]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    steps = len(_EIGHTHS) - 1
    line = "".join(_EIGHTHS[round((mean - low) / (high - low) * steps) if high > low else steps // 2] for mean in means)
    marks = "".join(MARK if any(marked[a:b]) else " " for a, b in pairwise(ends)).rstrip()
    return [line, marks] if marks else [line]
