"""How long the calls of an op take: the distribution of both sides over the same bins."""

from __future__ import annotations

from itertools import pairwise

import plotly.graph_objects as go

from dashboard import plots
from dashboard.theme import Palette
from profiler.report import units
from profiler.results_ops import Histogram, OpDetail

HEIGHT = 280


def calls(detail: OpDetail, colors: Palette) -> go.Figure:
    """Shares of calls by their time: the baseline is dashed and hatched, the optimized side solid."""
    sides = [
        (title, side.histogram, side.calls, color, dash, shape)
        for title, side, color, dash, shape in (
            ("baseline", detail.baseline, colors.base, "dash", "/"),
            ("optimized", detail.optimized, colors.opt, "solid", ""),
        )
        if side and side.histogram and side.calls
    ]
    scale = units.time_scale(max(histogram.edges_ps) for _, histogram, *_ in sides)
    est = " (est.)" if "compiled" in (detail.baseline_kind, detail.optimized_kind) else ""
    drawn = go.Figure()
    for title, histogram, summary, color, dash, shape in sides:
        edges = _edges(histogram, scale)
        drawn.add_scatter(
            x=[edge for edge in edges for _ in (0, 1)],
            y=[0.0, *(100 * share for share in histogram.shares for _ in (0, 1)), 0.0],
            name=f"{title}: {units.grouped(summary.count)} calls, median {units.duration(summary.median_ps)}",
            mode="lines",
            line={"color": color, "width": 2, "dash": dash},
            fill="tozeroy",
            fillcolor=_faded(color),
            fillpattern={"shape": shape, "fgcolor": color, "size": 7, "solidity": 0.18} if shape else None,
            hoverinfo="skip",
        )
        drawn.add_scatter(
            x=[(low + high) / 2 for low, high in pairwise(edges)],
            y=[100 * share for share in histogram.shares],
            mode="markers",
            marker={"color": color, "size": 12, "opacity": 0},
            showlegend=False,
            hovertext=[
                f"<b>{title}</b><br>{scale.show(low)}–{scale.show(high)} {scale.unit}{est}<br>"
                f"{units.grouped(count)} calls, {units.percent(share)}"
                for low, high, count, share in zip(
                    histogram.edges_ps, histogram.edges_ps[1:], histogram.counts, histogram.shares, strict=False
                )
            ],
            hoverinfo="text",
        )
        median = summary.median_ps / scale.divisor
        drawn.add_shape(
            type="line", x0=median, x1=median, y0=0, y1=1, yref="paper",
            line={"color": color, "width": 1.5, "dash": "dash" if dash == "dash" else "solid"},
        )  # fmt: skip
    drawn.update_layout(
        plots.layout(
            colors,
            HEIGHT,
            showlegend=True,
            legend={"orientation": "h", "y": -0.3, "yanchor": "top", "x": 0, "traceorder": "normal"},
        ),
        margin={"l": 8, "r": 16, "t": 16, "b": 72},
        xaxis=plots.axis(
            colors,
            f"time of a call, {scale.unit}{est}{', logarithmic' if sides[0][1].logarithmic else ''}",
            type="log" if sides[0][1].logarithmic else "linear",
        ),
        yaxis=plots.axis(colors, "% of the side's calls", rangemode="tozero", fixedrange=True),
    )
    return drawn


def alt(detail: OpDetail) -> str:
    """The figure in words."""
    parts = []
    for title, side in (("baseline", detail.baseline), ("optimized", detail.optimized)):
        if side and side.calls:
            low, median, high = (
                units.duration(each) for each in (side.calls.p10_ps, side.calls.median_ps, side.calls.p90_ps)
            )
            parts.append(
                f"{title}: {units.grouped(side.calls.count)} calls, median {median}, 10 to 90 % {low} to {high}"
            )
    return "Distribution of the time of a call; " + "; ".join(parts)


def _edges(histogram: Histogram, scale: units.Scale) -> list[float]:
    """Edges in the unit of the axis; on a logarithmic one the first bin starts one bin's width before the second."""
    edges = [edge / scale.divisor for edge in histogram.edges_ps]
    if histogram.logarithmic and edges[0] <= 0:
        edges[0] = edges[1] * edges[1] / edges[2]
    return edges


def _faded(color: str) -> str:
    """The colour as a fill that what is behind it shines through."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"
