"""The figure of a frontier as SVG: memory against what a device has, and the speed of what fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from distill.frontier import Frontier, shown
from distill.points import Point
from profiler.report import units

WIDTH, LABELS, GAP = 1060, 300, 24
MEMORY = (LABELS + 12, 660)  # left and right end of the panel
SPEED = (660 + GAP, WIDTH - 20)
TOP, ROW, BAR = 84, 46, 16
INK, DIM, PEAK, PACKING, OVER, RATE = "#1f2328", "#57606a", "#0b5d56", "#7fc4bc", "#c2410c", "#8b949e"
_LETTERS = 34  # that fit beside the bars


def to_svg(result: Frontier) -> str:
    """A row for every point. What does not fit is hatched and says so: nothing depends on telling colours apart."""
    found, best = result.found, result.best
    capacity = found.capacity_bytes
    most_bytes = max([capacity or 0, *(each.allocated_bytes or 0 for each in found.points)]) or 1
    most_rate = max((each.estimate.tokens_per_s_band[1] for each in found.points if each.estimate), default=1.0)
    height = TOP + ROW * len(found.points) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title" font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="title">{escape(_title(result))}</title>',
        '<defs><pattern id="over" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" fill="{OVER}"/><line y2="6" stroke="#fff" stroke-width="3" opacity=".6"/>'
        "</pattern></defs>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 26, _title(result), size=15, weight=600),
        _text(LABELS, 52, units.shorten(_joined(result.knobs), _LETTERS), anchor="end", weight=600),
        _text(MEMORY[0], 52, "HBM of a device", weight=600),
        _text(SPEED[0], 52, f"tokens/s of a device, estimate{' (coarse)' if found.coarse else ''}", weight=600),
    ]
    for index, point in enumerate(found.points):
        y = TOP + ROW * index
        parts += [
            f"<g><title>{escape(point.label)}</title>",
            _label(index + 1, result.values[index], y, point is best),
            *_memory(point, y, most_bytes),
            *_speed(point, y, most_rate),
            "</g>",
        ]
    if capacity is not None:
        x, bottom = _at(MEMORY, capacity / most_bytes), TOP + ROW * len(found.points)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 10}" y2="{bottom - 8}" stroke="{INK}" stroke-width="1.5" '
            'stroke-dasharray="5 3"/>'
        )
        parts.append(_text(x, TOP - 15, f"{units.size(capacity)} to use", anchor="end", color=INK, size=12))
    parts += [*_legend(height - 18), "</svg>"]
    return "".join(parts) + "\n"


def _title(result: Frontier) -> str:
    found = result.found
    return f"{result.recipe}: {len(found.fitting)} of {len(found.points)} points fit {found.where()}"


def _label(number: int, values: Mapping[str, Any], y: int, best: bool) -> str:
    """The values of the knobs, whose names are above them, and the point's number in the table."""
    text = units.shorten(f"{number}:  {_joined(map(shown, values.values()))}", _LETTERS)
    label = _text(LABELS, y + 13, text, anchor="end", weight=600 if best else 400)
    return label + (_text(LABELS, y + 30, "best by estimated time per token", anchor="end", size=12) if best else "")


def _joined(words: Iterable[str]) -> str:
    return " · ".join(words)


def _memory(point: Point, y: int, most: int) -> list[str]:
    """What is allocated, of it the peak, and how much is left or missing."""
    allocated, peak, room = point.allocated_bytes, point.peak_bytes, point.headroom_bytes
    left = MEMORY[0]
    if allocated is None:
        return [_text(left, y + 13, "not compiled" if point.compiled is None else units.UNKNOWN, color=DIM)]
    end = _at(MEMORY, allocated / most)
    too_much = room is not None and room < 0
    parts = [_bar(left, y, end, "url(#over)" if too_much else PACKING)]
    if peak is not None and not too_much:
        parts.append(_bar(left, y, _at(MEMORY, min(peak, allocated) / most), PEAK))
    words = "" if room is None else f", {units.size(abs(room))} {'too much' if too_much else 'left'}"
    return [*parts, _text(left, y + 30, f"{units.size(allocated)}{words}", color=DIM, size=12)]


def _speed(point: Point, y: int, most: float) -> list[str]:
    """The estimate, and its band as a line with ends."""
    estimate, left = point.estimate, SPEED[0]
    if estimate is None:
        return [_text(left, y + 13, "does not fit" if point.compiled else "not compiled", color=DIM)]
    low, high = estimate.tokens_per_s_band
    a, b, middle = _at(SPEED, low / most), _at(SPEED, high / most), y + BAR / 2
    marks = f"M{a:.1f} {y + 3}v{BAR - 6}M{b:.1f} {y + 3}v{BAR - 6}M{a:.1f} {middle}H{b:.1f}"
    words = f"{units.grouped(estimate.tokens_per_s)}, band {units.grouped(low)} to {units.grouped(high)}"
    return [
        _bar(left, y, _at(SPEED, estimate.tokens_per_s / most), RATE),
        f'<path d="{marks}" stroke="{INK}" stroke-width="1.5" fill="none"/>',
        _text(left, y + 30, f"{words}; MFU {units.percent(estimate.mfu)}", color=DIM, size=12),
    ]


def _legend(y: int) -> list[str]:
    parts, x = [], MEMORY[0]
    for fill, words, room in ((PEAK, "peak", 72), (PACKING, "gaps of packing", 140), ("url(#over)", "too much", 0)):
        parts += [f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{fill}"/>']
        parts += [_text(x + 18, y, words, color=DIM, size=12)]
        x += room
    return parts


def _at(panel: tuple[int, int], share: float) -> float:
    return panel[0] + share * (panel[1] - panel[0])


def _bar(left: float, y: int, end: float, fill: str) -> str:
    width = max(end - left, 1.5)
    return f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{fill}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", color: str = INK, size: int = 13, weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}" '
        f'font-weight="{weight}">{escape(units.clean(text))}</text>'
    )
