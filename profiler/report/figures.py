"""Figures as pure functions on results: the HTML report and the dashboard draw the same ones.

``waterfall`` reduces a diff to bars that run from the baseline to the optimized figure without a gap;
``waterfall_svg`` and ``waterfall_lines`` draw them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from profiler.report import units
from profiler.report.wording import basis, contribution_label, in_points
from profiler.results import Contribution, Diff

MOST_BARS = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: ``start`` and ``end`` on the axis; ``kind`` is "total", "gain", "loss" or "none"."""

    label: str
    start: float
    end: float
    kind: str

    @property
    def change(self) -> float:
        """What the bar adds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Bars from baseline to optimized; ``unit`` is "%" (of MFU) or a time unit that the values are in."""

    title: str
    unit: str
    bars: tuple[Bar, ...]
    decimals: int

    @property
    def axis(self) -> tuple[float, float]:
        """The ends of the axis. It starts at zero unless the changes would then be too small to tell apart."""
        levels = [level for bar in self.bars for level in (bar.start, bar.end) if bar.kind != "total" or level]
        low, high = min(levels, default=0.0), max(levels, default=0.0)
        if low <= 0 or high - low > high / 2:
            return min(low, 0.0), max(high, 0.0) or 1.0
        return max(low - max((high - low) / 4, high / 50), 0.0), high

    @property
    def cut(self) -> str | None:
        """What a reader must know when the axis does not start at zero."""
        low = self.axis[0]
        return f"the axis starts at {units.fixed(low, self.decimals)} {self.unit}, not at zero" if low > 0 else None

    def text(self, bar: Bar) -> str:
        """The figure beside a bar: totals with their unit, parts with their sign."""
        if bar.kind == "total":
            return f"{units.fixed(bar.end, self.decimals)} {self.unit}"
        return units.fixed(bar.change, self.decimals, sign=True)


def waterfall(diff: Diff, most: int = MOST_BARS) -> Waterfall:
    """The bars of a diff: in MFU points where the MFU delta is split, else in time.

    Args:
        diff: the split to draw; its contributions sum to the delta, so the last part ends where the last total is.
        most: contributions drawn one by one; the smaller rest is one bar.
    """
    base_mfu, opt_mfu = diff.baseline.mfu, diff.optimized.mfu
    points = in_points(diff) and base_mfu is not None and opt_mfu is not None
    if points:
        first, last = (base_mfu or 0.0) * 100, (opt_mfu or 0.0) * 100
        title, unit, divisor, decimals = "MFU, percentage points", "%", 1.0, 2
    else:
        first, last = diff.delta.baseline_time_ps, diff.delta.optimized_time_ps
        scale = units.time_scale((first, last))
        title, unit, divisor, decimals = f"Time {basis(diff)}", scale.unit, scale.divisor, scale.decimals
        first, last = first / divisor, last / divisor

    def value(item: Contribution) -> float:
        return (item.mfu_points or 0.0) if points else item.time_ps / divisor

    ordered = sorted(diff.contributions, key=lambda item: -abs(value(item)))
    threshold = 0.5 * 10**-decimals  # a bar that would print as zero belongs to the rest
    shown = [item for item in ordered[:most] if abs(value(item)) >= threshold]
    rest = ordered[len(shown) :]
    parts = [(contribution_label(item), value(item)) for item in shown]
    if rest:
        parts.append((f"{len(rest)} smaller" if shown else "all parts", sum(map(value, rest))))
    bars = [Bar("baseline", 0.0, first, "total")]
    level = first
    for text, change in parts:
        better = change > 0 if points else change < 0
        kind = "none" if abs(change) < threshold else "gain" if better else "loss"
        bars.append(Bar(text, level, level + change, kind))
        level += change
    bars.append(Bar("optimized", 0.0, last, "total"))
    return Waterfall(title, unit, tuple(bars), decimals)


def waterfall_lines(figure: Waterfall, width: int = 40, label_width: int = 34) -> Iterator[str]:
    """The waterfall as text: one line a bar, the same axis for all."""
    bottom, top = figure.axis
    span = top - bottom
    fill = {"total": "█", "gain": "▓", "loss": "░", "none": "·"}
    for bar in figure.bars:
        left, right = sorted((max(bar.start, bottom), max(bar.end, bottom)))
        begin = round((left - bottom) / span * width)
        cells = max(1, round((right - bottom) / span * width) - begin)
        label = units.shorten(bar.label, label_width)
        yield f"{label:<{label_width}} {figure.text(bar):>10}  {' ' * min(begin, width - 1)}{fill[bar.kind] * cells}"
    if figure.cut:
        yield f"{'':<{label_width}} {'':>10}  {figure.cut}"


def waterfall_svg(figure: Waterfall, width: int = 1000, identity: str = "waterfall") -> str:
    """The waterfall as an SVG element; colours come from CSS variables with defaults of their own.

    Args:
        figure: the bars.
        width: of the view box. Under 600 the labels stand above their bars, for narrow screens.
        identity: prefix of the ids inside, unique on a page.

    Losses are hatched and every part has its sign, so nothing depends on telling colours apart.
    """
    narrow = width < 600
    label_width, value_width = (0, 74) if narrow else (312, 92)
    row, bar_height, top = (44, 16, 8) if narrow else (30, 18, 8)
    left, right = label_width + (0 if narrow else 12), width - value_width
    height = top * 2 + row * len(figure.bars) + (20 if figure.cut else 0)
    low, high = figure.axis
    span = high - low

    def x(value: float) -> float:
        return left + (min(max(value, low), high) - low) / span * (right - left)

    parts = [
        f'<svg class="waterfall" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{identity}-title" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="inherit" font-size="13">',
        f'<title id="{identity}-title">Waterfall: {escape(figure.title)}, from baseline to optimized</title>',
        f'<defs><pattern id="{identity}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--loss, #c2410c)"/>'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="var(--paper, #fff)" stroke-width="2.6" opacity=".55"/>'
        "</pattern></defs>",
    ]
    fills = {
        "total": "var(--total, #57606a)",
        "gain": "var(--gain, #0f766e)",
        "loss": f"url(#{identity}-hatch)",
        "none": "var(--muted, #8b949e)",
    }
    for index, bar in enumerate(figure.bars):
        y = top + index * row
        bar_y = y + (22 if narrow else (row - bar_height) / 2)
        begin, end = sorted((x(bar.start), x(bar.end)))
        text = _fitting(bar.label, 42 if narrow else 44)
        weight = ' font-weight="600"' if bar.kind == "total" else ""
        anchor = f'x="{left}" y="{y + 15}"' if narrow else f'x="{label_width}" y="{bar_y + 13:.1f}" text-anchor="end"'
        parts.append(f"<g><title>{escape(units.shorten(bar.label, 200))}: {escape(figure.text(bar))}</title>")
        parts.append(f'<text {anchor} fill="var(--ink, #1f2328)"{weight}>{escape(text)}</text>')
        parts.append(
            f'<rect x="{begin:.1f}" y="{bar_y:.1f}" width="{max(end - begin, 1.5):.1f}" height="{bar_height}" '
            f'rx="2" fill="{fills[bar.kind]}"/>'
        )
        parts.append(
            f'<text x="{width - 2}" y="{bar_y + 13:.1f}" text-anchor="end" fill="var(--ink, #1f2328)"{weight} '
            f'style="font-variant-numeric:tabular-nums">{escape(figure.text(bar))}</text></g>'
        )
        # The thin line that hands the level to the next bar; on narrow screens it would cross the labels.
        if index + 1 < len(figure.bars) and not narrow:
            at = x(bar.end)
            following = bar_y + row
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bar_y + bar_height:.1f}" y2="{following:.1f}" '
                'stroke="var(--muted, #8b949e)" stroke-dasharray="2 2"/>'
            )
    if figure.cut:
        parts.append(
            f'<text x="{left}" y="{height - 8}" fill="var(--dim, #57606a)" font-size="12">{escape(figure.cut)}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def _fitting(text: str, room: int) -> str:
    """A label for ``room`` ordinary letters: an SVG text does not wrap, and wide letters take two places."""
    wide = sum(east_asian_width(char) in "WF" for char in text[: 2 * room])
    return units.shorten(text, room if len(text) + wide <= room or not wide else room // 2 + 2)
