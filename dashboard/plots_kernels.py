"""Kernels and what keeping tensors costs, in plotly: the baseline is an outline, the optimized side is solid."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.plots import LABEL_WIDTH, axis, layout, words
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.figures_keep import KeepFigure, KeepPoint
from profiler.report.figures_kernels import CallRow, CallsFigure
from profiler.results import KernelRow

SIDES = ("baseline", "optimized")
ROW_HEIGHT = 52
TOP = 54  # the buttons, and the legend below them: side by side they meet on a narrow page


def legend(colors: Palette) -> dict[str, Any]:
    """A legend above the drawing, on the left."""
    return {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "bgcolor": "rgba(0,0,0,0)",
        "font": {"color": colors.ink, "size": 13},
    }


def calls(figure: CallsFigure, colors: Palette) -> go.Figure:
    """Time per call, and the share of the peak beside it where any is known: one row for each kernel and phase."""
    panels = 2 if figure.has_shares else 1
    drawn = make_subplots(rows=1, cols=panels, shared_yaxes=True, horizontal_spacing=0.09)
    names = [str(index) for index in range(len(figure.rows))]  # titles need not differ
    for side, title in enumerate(SIDES):
        found = [row.both[side] for row in figure.rows]
        times = [row.mean_time_ps / figure.scale.divisor if row else None for row in found]
        texts = [figure.scale.show(row.mean_time_ps) if row else "does not run" for row in found]
        drawn.add_trace(_bars(title, names, times, texts, _hovers(figure, side), colors), row=1, col=1)
        if panels == 2:
            shares = [row.peak_fraction * 100 if row and row.peak_fraction is not None else None for row in found]
            texts = [units.percent(row.peak_fraction, 0) if row else "" for row in found]
            bars = _bars(title, names, shares, texts, _hovers(figure, side), colors, legend=False)
            drawn.add_trace(bars, row=1, col=2)
    est = " (est.)" if figure.estimated else ""
    longest = max((one.mean_time_ps for row in figure.rows for one in row.both if one), default=0.0)
    drawn.update_layout(
        layout(colors, 54 + TOP + ROW_HEIGHT * len(figure.rows)),
        barmode="group",
        bargap=0.35,
        bargroupgap=0.12,
        showlegend=True,
        legend={**legend(colors), "traceorder": "normal"},
        margin={"l": 8, "r": 8, "t": TOP, "b": 40},
    )
    drawn.update_yaxes(
        axis(
            colors,
            type="category",
            autorange="reversed",
            tickvals=names,
            ticktext=[_titled(row, colors) for row in figure.rows],
            automargin=True,
            showgrid=False,
            fixedrange=True,
            tickfont={"color": colors.ink, "size": 13},
        )
    )
    room = longest / figure.scale.divisor * 1.22 or 1.0
    drawn.update_xaxes(axis(colors, f"time per call, {figure.scale.unit}{est}", range=[0, room]), row=1, col=1)
    if panels == 2:
        most = max((one.peak_fraction or 0.0 for row in figure.rows for one in row.both if one), default=0.0)
        span = [0, max(most * 115, 100.0)]
        drawn.update_xaxes(axis(colors, f"share of the peak, %{est}", range=span), row=1, col=2)
    return drawn


def _titled(row: CallRow, colors: Palette) -> str:
    """Kernel, and the phase under it."""
    phase = f"<span style='color:{colors.dim}'>{words(row.phase or '–', 40)}</span>"
    return f"{words(row.title, LABEL_WIDTH)}<br>{phase}"


def _bars(
    title: str,
    names: list[str],
    values: list[float | None],
    texts: list[str],
    hovers: list[str],
    colors: Palette,
    *,
    legend: bool = True,
) -> go.Bar:
    base = title == SIDES[0]
    line = {"color": colors.base if base else colors.opt, "width": 1.6}
    return go.Bar(
        name=title,
        legendgroup=title,
        showlegend=legend,
        orientation="h",
        y=names,
        x=[0 if value is None else value for value in values],
        text=texts,
        textposition="outside",
        textfont={"color": colors.dim if base else colors.ink, "size": 12},
        cliponaxis=False,
        marker={"color": "rgba(0,0,0,0)" if base else colors.opt, "line": line},
        hovertext=hovers,
        hoverinfo="text",
    )


def _hovers(figure: CallsFigure, side: int) -> list[str]:
    return [_hover(figure, SIDES[side], row.title, row.phase, row.both[side]) for row in figure.rows]


def _hover(figure: CallsFigure, side: str, title: str, phase: str | None, row: KernelRow | None) -> str:
    head = f"<b>{words(title)}</b> · {words(phase or '–')}<br>{side}"
    if row is None:
        return f"{head}: does not run"
    est = " (est.)" if figure.estimated else ""
    lines = [
        f"{figure.text(row)} per call{est}, {units.number(row.calls_per_step)} calls",
        f"{units.duration(row.time_ps_per_step)} in all{est}",
    ]
    if row.flops_per_call:
        rate = f"{units.number(row.tflops_per_s)} TFLOP/s, {units.percent(row.peak_fraction)} of the peak"
        lines += [f"{units.flops(row.flops_per_call)} per call", rate]
    return "<br>".join((head, *lines))


def keep(figure: KeepFigure, colors: Palette) -> go.Figure:
    """A point for each tensor: what it would take of the HBM, and the time that it would save."""
    est = " (est.)" if figure.estimated else ""
    drawn = go.Figure()
    kinds: tuple[tuple[str, bool | None, str], ...] = (
        ("fits", True, "circle"),
        ("does not fit", False, "x-thin"),
        ("room not known", None, "circle-open"),
    )
    for title, fits, symbol in kinds:
        clusters = [each for each in figure.clusters if each[0].fits is fits]
        if not clusters:
            continue
        color = colors.limit if fits is False else colors.opt
        drawn.add_trace(
            go.Scatter(
                name=title,
                mode="markers+text",
                x=[each[0].gib for each in clusters],
                y=[each[0].saved for each in clusters],
                text=[_label(each) for each in clusters],
                textposition=[_place(each[0], figure) for each in clusters],
                textfont={"color": colors.ink, "size": 12},
                marker={"symbol": symbol, "size": 11, "color": color, "line": {"color": color, "width": 2}},
                hovertext=["<br>".join(words(figure.text(point)) for point in each) for each in clusters],
                hoverinfo="text",
                cliponaxis=False,
            )
        )
    right = max(point.gib for point in figure.points)
    top = max(point.saved for point in figure.points)
    if figure.room_gib is not None and 0 < figure.room_gib <= right * 3:
        right = max(right, figure.room_gib)
        _room(drawn, figure.room_gib, colors, rightmost=figure.room_gib > 0.7 * right)
    drawn.update_layout(
        layout(colors, 360),
        showlegend=True,
        legend=legend(colors),
        margin={"l": 8, "r": 8, "t": 32, "b": 40},
        xaxis=axis(colors, "HBM that it would take, GiB per device", range=[0, right * 1.12 or 1], zeroline=True),
        yaxis=axis(
            colors, f"time that it would save, {figure.scale.unit}{est}", range=[0, top * 1.15 or 1], zeroline=True
        ),
    )
    return drawn


def _label(points: tuple[KeepPoint, ...]) -> str:
    return words(", ".join(point.tensor for point in points), LABEL_WIDTH)


def _place(point: KeepPoint, figure: KeepFigure) -> str:
    """Beside the point, on the side where there is space."""
    right = max(each.gib for each in figure.points)
    return "middle left" if point.gib > 0.7 * right else "middle right"


def _room(drawn: go.Figure, room_gib: float, colors: Palette, *, rightmost: bool) -> None:
    drawn.add_vline(
        x=room_gib,
        line={"color": colors.limit, "dash": "dot", "width": 1.6},
        annotation={
            "text": f"room left: {units.fixed(room_gib, 2)} GiB",
            "font": {"color": colors.limit, "size": 12},
            "yref": "paper",
            "y": 1,
            "yanchor": "top",
            "xanchor": "right" if rightmost else "left",
            "showarrow": False,
        },
    )
