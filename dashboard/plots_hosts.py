"""Devices by host, and the steps of the slowest hosts, in plotly: the baseline hollow and grey, the other solid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.plots import axis, layout, words
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures_hosts import STEP, DeviceDot, DeviceStrip, HostBars

MOST_DOTS = 3000  # of a side; of more devices every host is a stroke, which is as quick for any number of them
MOST_NAMED = 6
MOST_TICKS = 16
NAME_WIDTH = 26
PARTS = ("work", "host", "waiting")
PATTERNS = ("", "/", ".")
ROOM = 0.12  # of the range, above and below


def devices(strips: Sequence[DeviceStrip], what: str, colors: Palette) -> go.Figure:
    """Every device by host, a panel for each side; axes cover the same share of the median, so that panels compare."""
    drawn = make_subplots(rows=len(strips), vertical_spacing=0.3 / len(strips) if len(strips) > 1 else 0)
    low, high = _span(strips)
    for row, strip in enumerate(strips, 1):
        baseline = strip.title == "baseline"
        color = colors.base if baseline else colors.opt
        if len(strip.dots) > MOST_DOTS:
            drawn.add_trace(_strokes(strip, color), row=row, col=1)
        else:
            usual = [dot for dot in strip.dots if not dot.slow]
            marker: dict[str, Any] = {
                "symbol": "circle-open" if baseline else "circle",
                "size": 7,
                "color": color,
                "opacity": 0.85,
            }
            drawn.add_trace(_dots(usual, strip, marker), row=row, col=1)
        slow = [dot for dot in strip.dots if dot.slow]
        marked = {"symbol": "triangle-up", "size": 12, "color": colors.loss, "line": {"color": colors.ink, "width": 1}}
        drawn.add_trace(_dots(slow, strip, marked), row=row, col=1)
        drawn.add_hline(y=strip.median, line={"color": color, "width": 1.4, "dash": "dash"}, row=row, col=1)
        drawn.add_annotation(
            x=1, xref="x domain", y=strip.median, yref="y", xanchor="left", yanchor="middle", showarrow=False,
            text=f"median<br>{units.fixed(strip.median, strip.scale.decimals)}", font={"size": 12, "color": color},
            align="left", xshift=4, row=row, col=1,
        )  # fmt: skip
        for name, dot in strip.named[:MOST_NAMED]:
            drawn.add_annotation(
                x=dot.place, y=dot.value, text=words(name, NAME_WIDTH), showarrow=False, xanchor="center",
                yanchor="bottom", yshift=8, font={"size": 12, "color": colors.loss}, row=row, col=1,
            )  # fmt: skip
        est = " (est.)" if strip.kind == "compiled" else ""
        title = f"{strip.title}: {'step' if what == STEP else 'own time'}, {strip.scale.unit}{est}"
        drawn.update_yaxes(
            axis(colors, title, range=[strip.median * low, strip.median * high], fixedrange=True, automargin=True),
            row=row,
            col=1,
        )
        every = max(1, -(-len(strip.hosts) // MOST_TICKS))
        places = range(0, len(strip.hosts), every)
        drawn.update_xaxes(
            axis(
                colors,
                tickvals=list(places), ticktext=[words(strip.hosts[place], NAME_WIDTH) for place in places],
                range=[-0.6, len(strip.hosts) - 0.4], showgrid=False, zeroline=False, automargin=True,
            ),
            row=row, col=1,
        )  # fmt: skip
    drawn.update_layout(layout(colors, 40 + 235 * len(strips), hovermode="closest"))
    drawn.update_layout(margin={"r": 70})
    return drawn


def described(strips: Sequence[DeviceStrip]) -> str:
    """The same in words."""
    return "; ".join(
        f"{strip.title}: {len(strip.dots):,} devices of {len(strip.hosts):,} hosts, median "
        f"{units.fixed(strip.median, strip.scale.decimals)} {strip.scale.unit}, slow: "
        + (", ".join(name for name, _ in strip.named[:MOST_NAMED]) or "none")
        for strip in strips
    )


def bars(figure: HostBars, most: float, rows: int, colors: Palette) -> go.Figure:
    """Work, host and waiting of the slowest hosts, one bar each.

    Args:
        figure: of a side.
        most: where the axis ends, in the unit of the figure: that of both sides.
        rows: as many as the side with most has, so that bars of both are as thick.
        colors: of the theme.
    """
    color = colors.base if figure.title == "baseline" else colors.opt
    est = " (est.)" if figure.kind == "compiled" else ""
    drawn = go.Figure()
    places = list(range(len(figure.bars)))
    for part, (title, shape) in enumerate(zip(PARTS, PATTERNS, strict=True)):
        drawn.add_bar(
            orientation="h", y=places, x=[bar.parts[part] for bar in figure.bars], name=title, width=0.66,
            marker={
                "color": color,
                "pattern": {"shape": shape, "size": 6, "solidity": 0.28, "fillmode": "replace"},
                "line": {"color": color, "width": 1},
            },
            hovertext=[
                f"<b>{words(bar.name)}</b><br>{figure.title}: {title} "
                f"{units.fixed(bar.parts[part], figure.scale.decimals)} {figure.scale.unit}{est}<br>"
                f"own time {_above(bar.excess_ps)}"
                for bar in figure.bars
            ],
            hoverinfo="text",
        )  # fmt: skip
    drawn.update_layout(
        layout(colors, 76 + 26 * rows, barmode="stack"),
        xaxis=axis(colors, f"{figure.title}, {figure.scale.unit} of the step{est}", range=[0, most * 1.03]),
        yaxis=axis(
            colors, tickvals=places,
            ticktext=[words(("▲ " if bar.slow else "") + bar.name, NAME_WIDTH) for bar in figure.bars],
            range=[rows - 0.5, -0.5], automargin=True, showgrid=False, zeroline=False, fixedrange=True,
            tickfont={"color": colors.ink, "size": 12},
        ),
    )  # fmt: skip
    return drawn


def bars_described(figure: HostBars) -> str:
    """The same in words."""
    return f"{figure.title}: " + "; ".join(
        f"{bar.name} "
        + ", ".join(
            f"{title} {units.fixed(value, figure.scale.decimals)}"
            for title, value in zip(PARTS, bar.parts, strict=True)
        )
        for bar in figure.bars
    )


def _span(strips: Sequence[DeviceStrip]) -> tuple[float, float]:
    """The least and the most of all devices as shares of their side's median, with some room."""
    shares = [dot.value / strip.median for strip in strips for dot in strip.dots if strip.median]
    low, high = min([1.0, *shares]), max([1.0, *shares])
    room = max(ROOM * (high - low), 0.001)
    named = 1.6 if any(strip.named for strip in strips) else 0.0
    return low - room, high + room * (1 + named)


def _dots(dots: Sequence[DeviceDot], strip: DeviceStrip, marker: dict[str, Any]) -> go.Scatter:
    return go.Scatter(
        x=[dot.place for dot in dots], y=[dot.value for dot in dots], mode="markers", marker=marker,
        hovertext=[
            f"<b>{words(dot.name)}</b>{', slow' if dot.slow else ''}<br>{strip.title}: "
            f"{units.fixed(dot.value, strip.scale.decimals)} {strip.scale.unit}<br>{_above(dot.above_ps)}"
            for dot in dots
        ],
        hoverinfo="text",
    )  # fmt: skip


def _strokes(strip: DeviceStrip, color: str) -> go.Scatter:
    """A stroke for every host, from the least to the most of its devices."""
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for place, (name, (low, high)) in enumerate(zip(strip.hosts, strip.ranges, strict=True)):
        x += [place, place, None]
        y += [low, high, None]
        ends = " to ".join(units.fixed(end, strip.scale.decimals) for end in (low, high))
        text += [f"<b>{words(name)}</b><br>{strip.title}: {ends} {strip.scale.unit}"] * 2 + [""]
    return go.Scatter(x=x, y=y, mode="lines", line={"color": color, "width": 2}, hovertext=text, hoverinfo="text")


def _above(excess_ps: float) -> str:
    if not excess_ps:
        return "at the median"
    return f"{units.duration(abs(excess_ps))} {'above' if excess_ps > 0 else 'below'} the median device"
