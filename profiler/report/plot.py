"""A curve in text: columns of eighths under an axis, and a strip that says in which phase each column lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from profiler.report import units

WIDTH, HEIGHT = 60, 8
_LONGEST = 60  # characters of a phase that are looked at
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Plot:
    """Bytes of each point, left to right, and the phase of each (None: not known)."""

    values: tuple[int, ...]
    phases: tuple[str | None, ...]


def plot_lines(plot: Plot, width: int = WIDTH, height: int = HEIGHT) -> Iterator[str]:
    """The plot as lines of equal axes: each column is the highest of its points, the top line is the peak's."""
    total = len(plot.values)
    if not total or max(plot.values) <= 0:
        return
    # A column is the points it covers; where there are fewer points than columns, a point covers several.
    spans = [
        (column * total // width, max((column + 1) * total // width, column * total // width + 1))
        for column in range(width)
    ]
    values = [max(plot.values[a:b]) for a, b in spans]
    top = max(values)
    scale = units.byte_scale((top,))
    margin = len(scale.show(top)) + len(scale.unit) + 1
    for line in range(height, 0, -1):
        shown = f"{scale.show(top * line / height)} {scale.unit}" if line in (height, height // 2) else ""
        cells = (round(value / top * height * 8) - (line - 1) * 8 for value in values)
        yield f"{shown:>{margin}} │{''.join(_EIGHTHS[min(max(cell, 0), 8)] for cell in cells)}".rstrip()
    yield f"{f'0 {scale.unit}':>{margin}} └{'─' * width}"
    known = list(dict.fromkeys(phase for phase in plot.phases if phase))
    if known:
        short = letters(known)
        strip = (_most([plot.phases[i] for i in range(a, b)]) for a, b in spans)
        yield f"{'phase':>{margin}}  {''.join(short.get(phase or '', '·') for phase in strip)}".rstrip()
        yield f"{'':>{margin}}  {', '.join(f'{short[phase]} {phase}' for phase in known)}"


def _most(phases: list[str | None]) -> str | None:
    return max(dict.fromkeys(phases), key=phases.count)


def letters(phases: list[str]) -> dict[str, str]:
    """A letter for each: the initial of its last word, else the first that is free, else none."""
    taken: dict[str, str] = {}
    for phase in phases:
        wanted = phase[:_LONGEST].rpartition(" ")[2][:1].upper() + phase[:_LONGEST].upper() + "0123456789"
        used = set(taken.values())
        taken[phase] = next((letter for letter in wanted if letter.isalnum() and letter not in used), "·")
    return taken
