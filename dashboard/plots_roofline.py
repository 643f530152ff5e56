"""The roofline in plotly: hollow for the baseline, filled for the optimized side, a symbol for each family."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard.plots import axis, layout, words
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures_roofline import OTHERS, Roof, RooflineFigure, RoofSide
from profiler.results_efficiency import RoofOp

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "cross")
FEW_DECADES = 2.2
SMALLEST, LARGEST = 6.0, 34.0  # diameter of a point; its area goes with the time


def roofline(figure: RooflineFigure, colors: Palette) -> go.Figure:
    """Points under their roof; both axes are logarithmic."""
    drawn = go.Figure()
    low, high = figure.x
    highest = max((roof.peak for _, roof in figure.roofs), default=0.0)
    for title, roof in figure.roofs:
        _roof(drawn, title, roof, (low, high), colors, above=roof.peak == highest)
    longest = max((op.time_ps_per_step for side in figure.sides for op in side.points), default=1.0)
    groups = [*figure.families, OTHERS]
    symbols = dict(zip(groups, SYMBOLS, strict=False))
    for side in figure.sides:
        for group in groups:
            points = [op for op in side.points if figure.group(op) == group]
            if points:
                drawn.add_trace(_points(side, group, points, symbols[group], longest, colors))
    present = {figure.group(op) for side in figure.sides for op in side.points}
    for group in groups:
        if group in present:
            drawn.add_trace(
                go.Scatter(
                    x=[None],
                    y=[None],
                    mode="markers",
                    name=words(group, 40),
                    legendgroup=group,
                    marker={"symbol": symbols[group], "size": 10, "color": colors.dim},
                )
            )
    drawn.update_layout(
        layout(colors, 600),
        showlegend=True,
        legend={
            "orientation": "h",
            "x": 0,
            "y": -0.16,
            "yanchor": "top",
            "itemsizing": "constant",
            "bgcolor": "rgba(0,0,0,0)",
            "font": {"color": colors.ink, "size": 12},
        },
        margin={"l": 8, "r": 8, "t": 8, "b": 96},
        xaxis=axis(colors, "FLOPs per byte accessed", **_log(figure.x)),
        yaxis=axis(colors, "TFLOP/s", **_log(figure.y)),
        xaxis_title_standoff=6,  # the legend is below it
        hovermode="closest",
    )
    return drawn


def _log(ends: tuple[float, float]) -> dict[str, object]:
    """Decades as they are spoken: 0.1, 1, 10, 1,000; where there are few, 2 and 5 between them."""
    low, high = (math.log10(end) for end in ends)
    return {"type": "log", "range": [low, high], "dtick": 1 if high - low > FEW_DECADES else "D2", "tickformat": ",~r"}


def _roof(drawn: go.Figure, title: str, roof: Roof, ends: tuple[float, float], colors: Palette, *, above: bool) -> None:
    """The line, its ridge and its peak; the words stand above the line, those of a lower one below it."""
    low, high = ends
    corners = [low, roof.ridge, high]
    dashed = title == "baseline"
    drawn.add_trace(
        go.Scatter(
            x=corners,
            y=[roof.at(each) for each in corners],
            mode="lines",
            line={"color": colors.base if dashed else colors.ink, "width": 2, "dash": "dash" if dashed else "solid"},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    of = "" if title == "both" else f" ({title})"
    drawn.add_vline(x=roof.ridge, line={"color": colors.muted, "dash": "dot", "width": 1})
    drawn.add_annotation(
        x=math.log10(roof.ridge),
        y=0.07 if dashed else 0.01,
        yref="paper",
        text=f"ridge {units.number(roof.ridge, 3)} FLOP/byte{of} ",
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
        font={"color": colors.dim, "size": 12},
    )
    drawn.add_annotation(
        x=math.log10(high),
        y=math.log10(roof.peak),
        text=f"peak {units.number(roof.peak, 5)} TFLOP/s{of}",
        xanchor="right",
        yanchor="bottom" if above else "top",
        showarrow=False,
        font={"color": colors.dim, "size": 12},
    )


def _points(
    side: RoofSide, group: str, points: Sequence[RoofOp], symbol: str, longest: float, colors: Palette
) -> go.Scatter:
    hollow = side.title == "baseline"
    color = colors.base if hollow else colors.opt
    return go.Scatter(
        x=[op.flops_per_byte for op in points],
        y=[op.tflops_per_s for op in points],
        mode="markers",
        name=words(group, 40),
        legendgroup=group,
        showlegend=False,
        marker={
            "symbol": f"{symbol}-open" if hollow else symbol,
            "size": [_diameter(op.time_ps_per_step / longest) for op in points],
            "color": color,
            "opacity": 0.95 if hollow else 0.7,
            "line": {"color": color if hollow else colors.paper, "width": 1.8 if hollow else 1},
        },
        hovertext=["<br>".join(words(line) for line in side.text(op)) for op in points],
        hoverinfo="text",
    )


def _diameter(share: float) -> float:
    return max(SMALLEST, LARGEST * math.sqrt(max(share, 0.0)))
