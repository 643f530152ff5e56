"""Exposed and hidden communication of both sides: a pair of bars for every kind."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import plots
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures_comm import CommFigure

OFFSET, WIDTH = 0.19, 0.34  # of the distance between two kinds


def exposed_and_hidden(figure: CommFigure, colors: Palette) -> go.Figure:
    """Bars of time in flight: exposed is filled, hidden is hatched; the baseline's bar is the upper one."""
    drawn = go.Figure()
    est = " (est.)" if figure.estimated else ""
    for side, color, offset in (("baseline", colors.base, -OFFSET), ("optimized", colors.opt, OFFSET)):
        found = [(index, kind, getattr(kind, side)) for index, kind in enumerate(figure.kinds)]
        known = [(index, kind, times) for index, kind, times in found if times is not None]
        for part, shape in enumerate(("", "/")):
            name = ("exposed", "hidden")[part]
            drawn.add_bar(
                orientation="h",
                name=f"{side}, {name}",
                y=[index + offset for index, _, _ in known],
                base=[times[0] / figure.scale.divisor if part else 0.0 for _, _, times in known],
                x=[times[part] / figure.scale.divisor for _, _, times in known],
                width=WIDTH,
                marker={
                    "color": color,
                    "pattern": {"shape": shape, "size": 6, "solidity": 0.28, "fillmode": "replace"},
                    "line": {"color": color, "width": 1},
                },
                hovertext=[
                    f"<b>{plots.words(kind.kind)}</b> {plots.words(kind.where or '')}<br>{side}: "
                    f"{units.duration(sum(times))} in flight{est}<br>{units.duration(times[0])} exposed, "
                    f"{units.duration(times[1])} hidden"
                    for _, kind, times in known
                ],
                hoverinfo="text",
            )
    drawn.update_layout(
        plots.layout(
            colors,
            72 + 46 * len(figure.kinds),
            barmode="overlay",
        ),
        margin={"l": 8, "r": 16, "t": 28, "b": 40},
        xaxis=plots.axis(colors, f"in flight, {figure.scale.unit}{est}", rangemode="tozero"),
        yaxis=plots.axis(
            colors,
            range=[len(figure.kinds) - 0.5, -0.5],
            tickvals=list(range(len(figure.kinds))),
            ticktext=[
                f"{plots.words(kind.kind, plots.LABEL_WIDTH)}"
                + (
                    f"<br><span style='color:{colors.dim}'>{plots.words(kind.where, plots.LABEL_WIDTH)}</span>"
                    if kind.where
                    else ""
                )
                for kind in figure.kinds
            ],
            automargin=True,
            showgrid=False,
            zeroline=False,
            fixedrange=True,
            tickfont={"color": colors.ink, "size": 13},
        ),
    )
    return drawn


def swatch_style(side: str, *, hidden: bool) -> str:
    """What the bars of a side look like, as CSS for a swatch of a legend."""
    color = f"var(--{'base' if side == 'baseline' else 'opt'})"
    fill = f"repeating-linear-gradient(-45deg,{color} 0 1.5px,transparent 1.5px 5px)" if hidden else color
    return f"display:inline-block;border:1px solid {color};background:{fill}"
