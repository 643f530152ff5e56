"""Steps, devices and metrics of both sides in plotly: the baseline hollow and dashed, the optimized side solid."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.plots import axis, layout, words
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures_devices import Spread, SpreadFigure
from profiler.report.figures_metrics import Curve, MetricFigure
from profiler.report.figures_steps import StepsFigure, Strip

LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": False, "itemdoubleclick": False}
ROW = 30
TOP = 28  # room for the legend


def steps(figure: StepsFigure, colors: Palette) -> go.Figure:
    """Every step over its number, its distribution beside it, the means as lines through both."""
    drawn = make_subplots(cols=2, shared_yaxes=True, column_widths=[0.74, 0.26], horizontal_spacing=0.02)
    low, high = figure.axis
    for index, strip in enumerate(figure.strips):
        style = _style(index == 0, colors)
        numbers = _numbers(strip)
        hover = [
            f"{strip.title}, step {number} of 0 to {strip.count - 1:,}: {shown(value, figure.scale)}"
            for number, value in zip(numbers, strip.values, strict=True)
        ]
        drawn.add_scatter(
            x=numbers, y=strip.values, mode="lines+markers", name=strip.title, hovertext=hover, hoverinfo="text",
            line={"color": style["color"], "width": 1, "dash": style["dash"]}, marker=style["marker"], row=1, col=1,
        )  # fmt: skip
        drawn.add_box(
            y=strip.values, name=strip.title, boxpoints="all", pointpos=0, jitter=0.6, showlegend=False, width=0.5,
            fillcolor="rgba(0,0,0,0)", line={"color": style["color"], "width": 1.4}, marker=style["marker"],
            hoveron="points", text=hover, hoverinfo="text", row=1, col=2,
        )  # fmt: skip
        mean = f"mean {units.fixed(strip.mean, figure.scale.decimals)}"
        for column in (1, 2):
            line = {"color": style["color"], "width": 1.4, "dash": style["dash"]}
            drawn.add_hline(y=strip.mean, line=line, opacity=0.7, row=1, col=column)
        drawn.add_annotation(
            x=1, xref="x domain", y=strip.mean, yref="y", text=mean, showarrow=False, xanchor="right",
            yanchor="bottom" if strip.mean >= max(each.mean for each in figure.strips) else "top",
            font={"size": 12, "color": style["color"]},
        )  # fmt: skip
    drawn.update_layout(layout(colors, 380, showlegend=True, legend=LEGEND, hovermode="closest"))
    drawn.update_layout(margin={"t": TOP}, modebar={"bgcolor": "rgba(0,0,0,0)"})
    drawn.update_yaxes(axis(colors, range=[low, high], fixedrange=True))
    drawn.update_yaxes(title={"text": f"step, {figure.scale.unit}", "font": {"size": 12, "color": colors.dim}}, col=1)
    drawn.update_xaxes(axis(colors, "step of the recording, from 0", showgrid=False, tickformat="d"), col=1)
    drawn.update_xaxes(axis(colors, "distribution", showgrid=False, fixedrange=True), col=2)
    return drawn


def spread(figure: SpreadFigure, colors: Palette) -> go.Figure:
    """Per device the mean step, and the range from the 10th to the 90th percentile."""
    drawn = go.Figure()
    names = [str(index) for index in range(len(figure.rows))]
    for title, offset in (("baseline", -0.16), ("optimized", 0.16)):
        style = _style(title == "baseline", colors)
        found: list[tuple[int, Spread]] = [
            (index, each) for index, row in enumerate(figure.rows) if (each := getattr(row, title)) is not None
        ]
        drawn.add_scatter(
            x=[each.mean for _, each in found], y=[index + offset for index, _ in found], mode="markers", name=title,
            marker={**style["marker"], "size": 8},
            error_x={
                "type": "data", "symmetric": False, "color": style["color"], "thickness": 1.6, "width": 4,
                "array": [max(each.high - each.mean, 0) for _, each in found],
                "arrayminus": [max(each.mean - each.low, 0) for _, each in found],
            },
            hovertext=[
                f"{words(figure.rows[index].name)}, {title}: mean {shown(each.mean, figure.scale)}, "
                f"{shown(each.low, figure.scale)} to {shown(each.high, figure.scale)} over {each.count:,} steps"
                for index, each in found
            ],
            hoverinfo="text",
        )  # fmt: skip
    drawn.update_layout(
        layout(colors, 90 + ROW * len(names), showlegend=True, legend=LEGEND, hovermode="closest"),
        xaxis=axis(colors, f"step, {figure.scale.unit}: mean, and 10th to 90th percentile"),
        yaxis=axis(
            colors, tickvals=list(range(len(names))), ticktext=[words(row.name, 40) for row in figure.rows],
            range=[len(names) - 0.5, -0.5], fixedrange=True, showgrid=False, zeroline=False, automargin=True,
            tickfont={"color": colors.ink, "size": 13},
        ),
    )  # fmt: skip
    drawn.update_layout(margin={"t": TOP}, modebar={"bgcolor": "rgba(0,0,0,0)"})
    return drawn


def shown(value: float, scale: units.Scale) -> str:
    """A value that is in the scale's unit already."""
    return f"{units.fixed(value, scale.decimals)} {scale.unit}"


def metric(figure: MetricFigure, colors: Palette, *, over: str, height: int, large: bool = False) -> go.Figure:
    """Both sides' curves of one metric; a ``large`` figure has a legend, and optimized − baseline below, step by step.

    Args:
        figure: the metric.
        colors: of the theme.
        over: "step" or "tokens".
        height: in px.
        large: whether it stands alone, or is one of many with its name above it; the difference is over steps only.
    """
    below = large and over == "step" and bool(figure.difference)
    drawn = make_subplots(
        rows=2 if below else 1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.68, 0.32] if below else None
    )
    for title in ("baseline", "optimized"):
        curve: Curve | None = getattr(figure, title)
        if curve is None:
            continue
        style = _style(title == "baseline", colors)
        along = curve.steps if over == "step" else curve.tokens
        drawn.add_scatter(
            x=along, y=curve.values, mode="lines+markers" if len(along) <= 60 else "lines", name=title,
            line={"color": style["color"], "width": 2, "dash": style["dash"]},
            marker={**style["marker"], "size": 11 if title == "baseline" else 6},
            hovertext=[
                f"{title}, {_at(x, over)}: {units.number(y, 6)}" for x, y in zip(along, curve.values, strict=True)
            ],
            hoverinfo="text", row=1, col=1,
        )  # fmt: skip
    if below:
        along, values = zip(*figure.difference, strict=True)
        drawn.add_bar(
            x=along, y=values, marker={"color": colors.muted}, showlegend=False, hoverinfo="text",
            hovertext=[f"step {x:g}: optimized − baseline {_signed(y)}" for x, y in figure.difference], row=2, col=1,
        )  # fmt: skip
        drawn.update_yaxes(axis(colors, "difference", tickformat=".1e", nticks=4, exponentformat="e"), row=2, col=1)
    drawn.update_layout(layout(colors, height, showlegend=large, legend=LEGEND, hovermode="closest"))
    drawn.update_layout(margin={"t": TOP}, modebar={"bgcolor": "rgba(0,0,0,0)"})
    drawn.update_yaxes(axis(colors, words(figure.title, 60) if large else "", nticks=6), row=1, col=1)
    if not large:
        drawn.add_annotation(
            x=0, xref="paper", y=1, yref="paper", yshift=6, xanchor="left", yanchor="bottom", showarrow=False,
            text=words(figure.title, 60), font={"size": 13, "color": colors.ink},
        )  # fmt: skip
    title = "step of the run" if over == "step" else "tokens seen"
    drawn.update_xaxes(axis(colors, "", showgrid=False, **({"tickformat": "d"} if over == "step" else {})))
    drawn.update_xaxes(title={"text": title, "font": {"size": 12, "color": colors.dim}}, row=2 if below else 1, col=1)
    return drawn


def _at(value: float | None, over: str) -> str:
    return f"step {value:g}" if over == "step" else f"{units.grouped(value)} tokens"


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", units.MINUS)


def _style(base: bool, colors: Palette) -> dict[str, Any]:
    """The baseline is hollow and dashed, so that a drawing needs no colour."""
    color = colors.base if base else colors.opt
    marker = {"color": color, "size": 7, "symbol": "circle-open" if base else "circle"}
    line = {"width": 1.6 if base else 0, "color": color}
    return {"color": color, "dash": "dash" if base else "solid", "marker": {**marker, "line": line}}


def _numbers(strip: Strip) -> list[int]:
    """The number of each step that is drawn: of many, an even spread is."""
    last = max(len(strip.values) - 1, 1)
    return [round(index * (strip.count - 1) / last) for index in range(len(strip.values))]
