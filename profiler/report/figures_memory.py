"""HBM over the schedule of both sides, one above the other's axis: a pure function on a diff, like ``figures``.

The baseline is a dashed line and the optimized side a solid one; a part of the step is told by its letter and its tone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

from profiler.report import svg, units
from profiler.report.plot import letters
from profiler.results import Diff, MemoryTrack

FAR = 1.8  # a limit that is further above the peaks would flatten the curves
ORDER = ("input", "teacher", "forward", "student forward", "re-run", "backward", "student backward", "optimizer")
BAND = 16  # height of a strip of phases


@dataclass(frozen=True, slots=True)
class Track:
    """One side's curve: ``points`` are (share of the schedule, bytes), ``spans`` (phase, from, to) in shares."""

    title: str
    points: tuple[tuple[float, int], ...]
    spans: tuple[tuple[str, float, float], ...]
    peak: tuple[float, int]
    peak_phase: str | None
    events: int

    def text(self) -> str:
        """The peak in words."""
        where = f" in {units.shorten(self.peak_phase, 60)}" if self.peak_phase else ""
        return f"{self.title}: peak {units.size(self.peak[1])}{where}"


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """Both curves on one axis. ``limit`` is what the device holds; ``far`` where it is above the drawing."""

    tracks: tuple[Track, ...]
    limit: int | None
    top: float

    @property
    def far(self) -> bool:
        """Whether the limit is not drawn, since the curves would be flat below it."""
        return self.limit is not None and self.limit > self.top

    @property
    def phases(self) -> dict[str, str]:
        """A letter for each phase, in the order of the step."""
        found = dict.fromkeys(phase for track in self.tracks for phase, _, _ in track.spans if phase)
        return letters(sorted(found, key=lambda phase: ORDER.index(phase) if phase in ORDER else len(ORDER)))


def memory_figure(diff: Diff) -> MemoryFigure | None:
    """The curves of the sides that have one; None where neither has."""
    found = diff.memory
    if found is None:
        return None
    pairs = (("baseline", found.baseline_curve), ("optimized", found.optimized_curve))
    tracks = tuple(_track(title, curve) for title, curve in pairs if curve is not None and any(curve.bytes))
    if not tracks:
        return None
    limits = {side.memory.capacity_bytes for side in (diff.baseline, diff.optimized)} - {None}
    limit = limits.pop() if len(limits) == 1 else None  # two limits are in the table
    highest = max(track.peak[1] for track in tracks)
    drawn = limit is not None and limit <= highest * FAR
    return MemoryFigure(tracks, limit, 1.04 * max(highest, limit if drawn and limit is not None else 0))


def _track(title: str, curve: MemoryTrack) -> Track:
    last = max(curve.events - 1, 1)
    points = tuple((at / last, held) for at, held in zip(curve.at, curve.bytes, strict=True))
    index = max(range(len(points)), key=lambda each: points[each][1])
    edges = [0.0, *((a[0] + b[0]) / 2 for a, b in pairwise(points)), 1.0]
    spans = []
    for phase, group in groupby(range(len(points)), key=lambda each: curve.phases[each]):
        held = list(group)
        spans.append((phase or "", edges[held[0]], edges[held[-1] + 1]))
    return Track(title, points, tuple(spans), points[index], curve.phases[index], curve.events)


def memory_svg(figure: MemoryFigure, width: int = 1000, identity: str = "hbm") -> str:
    """The drawing, for wide pages or (under 600) narrow ones; ``identity`` prefixes its ids."""
    narrow = width < 600
    left, right, top = (46 if narrow else 62), width - 4, 12
    plot = 210 if narrow else 250
    bottom = top + plot
    height = bottom + 22 + len(figure.tracks) * (BAND + (20 if narrow else 8)) + 6
    scale = units.byte_scale((figure.top,))

    def x(share: float) -> float:
        return left + share * (right - left)

    def y(held: float) -> float:
        return bottom - held / figure.top * plot

    described = "; ".join(track.text() for track in figure.tracks)
    parts = [svg.opening(width, height, "hbm", identity, "HBM held over the schedule", described), _tones(identity)]
    marks = svg.ticks(0, figure.top / scale.divisor, 5)
    for mark in marks:
        at = y(mark * scale.divisor)
        words = svg.tick_text(mark, marks[1] - marks[0] if len(marks) > 1 else 1)
        parts.append(svg.line(left, at, right, at))
        words = f"{words} {scale.unit}" if not narrow or mark == 0 else words
        parts.append(svg.text(left - 6, at + 4, words, anchor="end", fill=svg.DIM, more=_SMALL))
    if figure.limit is not None and not figure.far:
        at = y(figure.limit)
        parts.append(svg.line(left, at, right, at, svg.CAUTION, 'stroke-width="1.5" stroke-dasharray="2 3"'))
        words = f"limit {units.size(figure.limit)}"
        parts.append(svg.text(right - 4, at + 15, words, anchor="end", fill=svg.CAUTION, more=_SMALL))
    parts += [_curve([(x(share), y(held)) for share, held in track.points], track, bottom) for track in figure.tracks]
    for index, track in enumerate(figure.tracks):
        row = bottom + 22 + index * (BAND + (20 if narrow else 8)) + (14 if narrow else 0)
        parts += _band(track, figure.phases, x, row, left, narrow, identity)
    parts.append("</svg>")
    return "".join(parts)


_SMALL = 'font-size="12" style="font-variant-numeric:tabular-nums"'


def _curve(points: Sequence[tuple[float, float]], track: Track, bottom: float) -> str:
    """The line with a mark at its peak: a ring on the dashed baseline, a disc on the solid optimized side."""
    base = track.title == "baseline"
    peak = min(points, key=lambda point: point[1])
    area = ""
    if not base:
        outline = svg.path([(points[0][0], bottom), *points, (points[-1][0], bottom)])
        area = f'<path d="{outline}Z" fill="{svg.OPT}" opacity=".1"/>'
    style = f'stroke="{svg.BASE}" stroke-dasharray="5 3"' if base else f'stroke="{svg.OPT}"'
    mark = f'fill="{svg.PAPER}" stroke="{svg.BASE}" stroke-width="2"' if base else f'fill="{svg.OPT}"'
    return (
        f"<g><title>{escape(track.text())}</title>{area}"
        f'<path d="{svg.path(points)}" fill="none" {style} stroke-width="1.8" stroke-linejoin="round"/>'
        f'<circle cx="{peak[0]:.1f}" cy="{peak[1]:.1f}" r="4.5" {mark}/></g>'
    )


_FILLS = ("none", "18", "stripes", "45", "70", "dots")  # tones in the order in which phases come


def _tones(identity: str) -> str:
    return (
        f'<defs><pattern id="{identity}-stripes" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="5" stroke="{svg.MUTED}" stroke-width="3"/>'
        f'</pattern><pattern id="{identity}-dots" width="5" height="5" patternUnits="userSpaceOnUse">'
        f'<circle cx="2.5" cy="2.5" r="1.3" fill="{svg.MUTED}"/></pattern></defs>'
    )


def _fill(phase: str, names: Sequence[str], identity: str) -> str:
    tone = _FILLS[list(names).index(phase) % len(_FILLS)] if phase in names else "none"
    if tone in ("stripes", "dots"):
        return f'fill="url(#{identity}-{tone})"'
    return 'fill="none"' if tone == "none" else f'fill="{svg.MUTED}" fill-opacity=".{tone}"'


def _band(
    track: Track,
    names: dict[str, str],
    x: Callable[[float], float],
    row: float,
    left: float,
    narrow: bool,
    identity: str,
) -> list[str]:
    """Which part of the step the schedule is in: tones, and a letter wherever one fits."""
    if narrow:
        parts = [svg.text(left, row - 4, track.title, fill=svg.DIM, more=_SMALL)]
    else:
        parts = [svg.text(left - 6, row + 12, track.title[:4].rstrip("i"), anchor="end", fill=svg.DIM, more=_SMALL)]
    begin, end = x(0.0), x(1.0)
    for phase, start, stop in track.spans:
        a, b = x(start), x(stop)
        title = f"<title>{escape(units.shorten(phase, 60)) or 'phase not known'}</title>"
        size = f'x="{a:.1f}" y="{row:.1f}" width="{b - a:.1f}" height="{BAND}"'
        parts.append(f"<rect {size} {_fill(phase, list(names), identity)}>{title}</rect>")
        if phase and b - a >= 14:
            halo = f'font-size="11" font-weight="600" stroke="{svg.PAPER}" stroke-width="3" paint-order="stroke"'
            parts.append(svg.text((a + b) / 2, row + 12, names[phase], anchor="middle", more=halo))
    frame = f'x="{begin:.1f}" y="{row:.1f}" width="{end - begin:.1f}" height="{BAND}"'
    parts.append(f'<rect {frame} fill="none" stroke="{svg.RULE}"/>')
    return parts


def swatch(figure: MemoryFigure, phase: str, identity: str) -> str:
    """A phase's tone as a small drawing, for the legend."""
    return (
        f'<svg class="swatch" viewBox="0 0 22 14" aria-hidden="true">{_tones(identity)}'
        f'<rect x=".5" y=".5" width="21" height="13" {_fill(phase, list(figure.phases), identity)} '
        f'stroke="{svg.MUTED}"/></svg>'
    )
