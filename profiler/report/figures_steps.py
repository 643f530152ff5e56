"""Every steady step of both sides on one time axis: whether two clouds of steps lie apart is seen at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.report import svg, units
from profiler.results import Diff


@dataclass(frozen=True, slots=True)
class Strip:
    """One side: its steps in their order, their mean as the summary has it, and how many there are."""

    title: str
    values: tuple[float, ...]
    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class StepsFigure:
    """Both strips; values are in ``scale``'s unit."""

    strips: tuple[Strip, Strip]
    scale: units.Scale

    @property
    def axis(self) -> tuple[float, float]:
        """From the shortest to the longest step, with a margin."""
        values = [value for strip in self.strips for value in (*strip.values, strip.mean)]
        low, high = min(values), max(values)
        margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
        return low - margin, high + margin


def steps_figure(diff: Diff) -> StepsFigure | None:
    """None unless both sides recorded several steps; an estimate has no steps that differ."""
    found = diff.steps
    if found is None or "compiled" in (diff.baseline.kind, diff.optimized.kind):
        return None
    if min(len(found.baseline_ps), len(found.optimized_ps)) < 2:
        return None
    scale = units.time_scale((*found.baseline_ps, *found.optimized_ps))
    sides = (
        ("baseline", found.baseline_ps, diff.baseline.steps.mean_ps, found.baseline_count),
        ("optimized", found.optimized_ps, diff.optimized.steps.mean_ps, found.optimized_count),
    )
    base, opt = (
        Strip(title, tuple(value / scale.divisor for value in values), mean / scale.divisor, count)
        for title, values, mean, count in sides
    )
    return StepsFigure((base, opt), scale)


def steps_svg(figure: StepsFigure, width: int = 1000, identity: str = "steps") -> str:
    """A ring for each step of the baseline, a disc for the optimized side's; the first step of a strip is on top."""
    narrow = width < 600
    left, right = (8 if narrow else 96), width - 8
    band, gap = 46, (24 if narrow else 22)
    height = 2 * (band + gap) + 30
    low, high = figure.axis

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    described = "; ".join(
        f"{strip.title}: {strip.count} steps, mean {units.fixed(strip.mean, figure.scale.decimals)} {figure.scale.unit}"
        for strip in figure.strips
    )
    parts = [svg.opening(width, height, "steps", identity, "Time of every steady step", described)]
    bottom = 2 * (band + gap)
    marks = svg.ticks(low, high, 4 if narrow else 8)
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    for mark in marks:
        parts.append(svg.line(x(mark), 10, x(mark), bottom))
        words = svg.tick_text(mark, step)
        anchor = "start" if x(mark) < left + 20 else "end" if x(mark) > right - 26 else "middle"
        parts.append(svg.text(x(mark), bottom + 16, words, anchor=anchor, fill=svg.DIM, more=_SMALL))
    parts.append(svg.text(right, bottom + 29, figure.scale.unit, anchor="end", fill=svg.DIM, more=_SMALL))
    for index, strip in enumerate(figure.strips):
        top = index * (band + gap) + gap
        ring = index == 0
        dot = f'fill="none" stroke="{svg.BASE}" stroke-width="1.8"' if ring else f'fill="{svg.OPT}" fill-opacity=".75"'
        at = x(strip.mean)
        label = f"mean {units.fixed(strip.mean, figure.scale.decimals)}"
        if narrow:
            label = f"{strip.title}, {label}"
        else:
            parts.append(svg.text(left - 10, top + band / 2 + 4, strip.title, anchor="end"))
        parts.append(svg.line(at, top, at, top + band, svg.INK, 'stroke-width="1.6"'))
        anchor = "start" if at < (left + right) / 2 else "end"
        parts.append(svg.text(at, top - 5, label, anchor=anchor, more='font-size="12" font-weight="600"'))
        last = max(len(strip.values) - 1, 1)
        for number, value in enumerate(strip.values):
            y = top + 6 + number / last * (band - 12)
            parts.append(f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="4" {dot}/>')
    parts.append("</svg>")
    return "".join(parts)


_SMALL = 'font-size="12" style="font-variant-numeric:tabular-nums"'
