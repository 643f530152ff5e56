"""profiler's figures in plotly: what the HTML report draws once, here with a pointer over it.

plotly takes a subset of HTML in labels and hovers; ``words`` makes text of a trace plain.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures import Waterfall

LABEL_WIDTH = 44
FONT = '"Source Sans", system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif'  # as the pages


def words(text: object, width: int = 120) -> str:
    """Text of a trace as plotly shows it letter by letter: no tags, no entities."""
    plain = units.shorten(str(text), width)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def layout(colors: Palette, height: int, **more: Any) -> dict[str, Any]:
    """What all figures share."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 30, "b": 36},  # the buttons have the top to themselves
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colors.muted, "activecolor": colors.ink},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": colors.ink},
        "hoverlabel": {"bgcolor": colors.paper, "font": {"family": FONT, "color": colors.ink}, "align": "left"},
        "showlegend": False,
        **more,
    }


def axis(colors: Palette, title: str = "", **more: Any) -> dict[str, Any]:
    """What all axes share."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": colors.dim}},
        "gridcolor": colors.rule,
        "zerolinecolor": colors.rule,
        "tickfont": {"color": colors.dim, "size": 12},
        **more,
    }


def waterfall(figure: Waterfall, colors: Palette) -> go.Figure:
    """Bars from the baseline to the optimized figure; what makes it worse is hatched."""
    fills = {"total": colors.total, "gain": colors.gain, "loss": colors.loss, "none": colors.muted}
    low, high = figure.axis
    names = [f"{index}" for index in range(len(figure.bars))]  # labels need not differ
    drawn = go.Figure(
        go.Bar(
            orientation="h",
            y=names,
            base=[max(min(bar.start, bar.end), low) for bar in figure.bars],
            x=[abs(bar.end - max(bar.start, low)) if bar.kind == "total" else abs(bar.change) for bar in figure.bars],
            marker={
                "color": [fills[bar.kind] for bar in figure.bars],
                "pattern": {
                    "shape": ["/" if bar.kind == "loss" else "" for bar in figure.bars],
                    "size": 5,
                    "fillmode": "replace",
                },
            },
            text=[figure.text(bar) for bar in figure.bars],
            textposition="outside",
            constraintext="none",
            cliponaxis=False,
            hovertext=[f"{words(bar.label)}: {figure.text(bar)}" for bar in figure.bars],
            hoverinfo="text",
            width=0.62,
        )
    )
    for index, bar in enumerate(figure.bars[:-1]):
        drawn.add_shape(
            type="line", x0=bar.end, x1=bar.end, y0=index + 0.31, y1=index + 0.69,
            line={"color": colors.muted, "dash": "dot", "width": 1},
        )  # fmt: skip
    room = (high - low) * 0.12
    unit = "MFU, %" if figure.unit == "%" else f"time, {figure.unit}"
    drawn.update_layout(
        layout(colors, 60 + 32 * len(figure.bars)),
        xaxis=axis(colors, f"{unit} – {figure.cut}" if figure.cut else unit, range=[low, high + room]),
        yaxis=axis(
            colors,
            autorange="reversed",
            tickvals=names,
            ticktext=[
                f"<b>{words(bar.label, LABEL_WIDTH)}</b>" if bar.kind == "total" else words(bar.label, LABEL_WIDTH)
                for bar in figure.bars
            ],
            automargin=True,
            showgrid=False,
            zeroline=False,
            fixedrange=True,
            tickfont={"color": colors.ink, "size": 13},
        ),
    )
    return drawn
