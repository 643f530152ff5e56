"""HBM over the schedule: both sides' curves on one axis, and below them which part of the step the schedule is in."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from dashboard import plots
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures_memory import MemoryFigure, Track
from profiler.results import MemoryCurve

HEIGHT, STRIP, BELOW = 340, 24, 52  # of the curves, of a strip of phases, of the axis below them
ABOVE = 30  # the buttons have the top to themselves
NARROW = 0.012  # of the axis: a strip that no letter fits into
TONES = (("", 0.0), ("", 0.18), ("/", 0.9), ("", 0.45), ("", 0.7), (".", 1.0))  # as in the report: pattern, opacity


def curves(figure: MemoryFigure, held: Mapping[str, MemoryCurve | None], colors: Palette) -> go.Figure:
    """Dashed baseline, solid optimized side, a mark at each peak.

    Args:
        figure: the curves.
        held: each side's own curve by its title: what is placed at a point.
        colors: of the theme.
    """
    scale = units.byte_scale((figure.top,))
    rows = len(figure.tracks)
    height = ABOVE + HEIGHT + rows * STRIP + BELOW
    share = rows * STRIP / (HEIGHT + rows * STRIP)
    drawn = go.Figure()
    for track in figure.tracks:
        _curve(drawn, track, held.get(track.title), scale, colors)
    for index, track in enumerate(figure.tracks):
        _strip(drawn, track, index, figure.phases, colors)
    if figure.limit is not None and not figure.far:
        words = f"limit {units.size(figure.limit)}"
        drawn.add_hline(
            figure.limit / scale.divisor,
            line={"color": colors.limit, "dash": "dot", "width": 1.5},
            annotation={"text": words, "font": {"color": colors.limit}, "x": 0, "xanchor": "left", "yanchor": "top"},
        )
    drawn.update_layout(
        plots.layout(colors, height, hovermode="x", hoverdistance=40, barmode="overlay"),
        xaxis=plots.axis(colors, "share of the schedule, no time axis", range=[0, 1], tickformat=".0%", anchor="y2"),
        yaxis=plots.axis(
            colors, f"held, {scale.unit}", range=[0, figure.top / scale.divisor], domain=[share + 0.04, 1]
        ),
        yaxis2={
            "domain": [0, share],
            "range": [rows - 0.5, -0.5],
            "tickvals": list(range(rows)),
            "ticktext": [track.title for track in figure.tracks],
            "tickfont": {"color": colors.dim, "size": 12},
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        margin={"l": 8, "r": 12, "t": ABOVE, "b": BELOW - 8},
    )
    return drawn


def _curve(drawn: go.Figure, track: Track, held: MemoryCurve | None, scale: units.Scale, colors: Palette) -> None:
    base = track.title == "baseline"
    color = colors.base if base else colors.opt
    drawn.add_scatter(
        x=[at for at, _ in track.points],
        y=[size / scale.divisor for _, size in track.points],
        mode="lines",
        name=track.title,
        line={"color": color, "width": 1.8, "dash": "dash" if base else "solid"},
        fill=None if base else "tozeroy",
        fillcolor=_faint(colors.opt, 0.1),
        hovertext=_hovers(track, held),
        hoverinfo="text",
    )
    at, size = track.peak
    drawn.add_scatter(
        x=[at],
        y=[size / scale.divisor],
        mode="markers",
        marker={
            "size": 10,
            "color": colors.paper if base else color,
            "line": {"color": color, "width": 2},
        },
        hoverinfo="skip",
        cliponaxis=False,
    )


def _hovers(track: Track, held: MemoryCurve | None) -> list[str]:
    """What is held after each event; the phase, the op and the tensor where they are known."""
    known = held.points if held is not None and len(held.points) == len(track.points) else ()
    if not known:
        return [f"{track.title}: {units.size(size)}" for _, size in track.points]
    return [
        "<br>".join(
            (
                f"<b>{track.title}: {units.size(point.bytes)}</b>",
                f"after event {units.grouped(point.event)} of {units.grouped(track.events)}"
                + (f", {plots.words(point.phase)}" if point.phase else ""),
                *(f"op {plots.words(point.op, 80)}" for _ in "1" if point.op),
                *(f"tensor {plots.words(point.tensor, 80)}" for _ in "1" if point.tensor),
            )
        )
        for point in known
    ]


def _strip(drawn: go.Figure, track: Track, row: int, letters: Mapping[str, str], colors: Palette) -> None:
    """One row of phases: a tone for each, and its letter wherever one fits."""
    order = list(letters)
    tones = [TONES[order.index(phase) % len(TONES)] if phase in letters else TONES[0] for phase, _, _ in track.spans]
    drawn.add_bar(
        orientation="h",
        yaxis="y2",
        y=[row] * len(track.spans),
        base=[start for _, start, _ in track.spans],
        x=[end - start for _, start, end in track.spans],
        width=0.72,
        marker={
            "color": [_faint(colors.muted, opacity) for _, opacity in tones],
            "pattern": {"shape": [shape for shape, _ in tones], "size": 5, "solidity": 0.4, "fillmode": "replace"},
            "line": {"color": colors.rule, "width": 1},
        },
        text=[
            f"<b>{letters[phase]}</b>" if phase in letters and end - start >= NARROW else ""
            for phase, start, end in track.spans
        ],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": colors.ink, "size": 12},
        constraintext="none",
        hovertext=[f"{track.title}: {plots.words(phase or 'phase not known')}" for phase, _, _ in track.spans],
        hoverinfo="text",
    )


def line_style(side: str) -> str:
    """The line of a side, as CSS for a swatch of a legend."""
    line = "2px dashed var(--base)" if side == "baseline" else "2px solid var(--opt)"
    return f"display:inline-block;height:0;vertical-align:4px;border-top:{line}"


def tone_style(index: int) -> str:
    """The tone of a phase, as CSS for a swatch of a legend."""
    shape, opacity = TONES[index % len(TONES)]
    tone = f"color-mix(in srgb,var(--muted) {opacity:.0%},transparent)"
    fill = {
        "/": f"repeating-linear-gradient(-45deg,{tone} 0 2px,transparent 2px 5px)",
        ".": f"radial-gradient({tone} 1.3px,transparent 1.5px) 0 0/5px 5px",
    }.get(shape, tone)
    return f"display:inline-block;border:1px solid var(--muted);background:{fill}"


def _faint(color: str, opacity: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
