"""The history of measured runs, and the runs of a ladder, in plotly. Recorded and compiled runs share no line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from dashboard.plots import axis, layout, words
from dashboard.points import Point
from dashboard.theme import Palette
from profiler.report import units
from profiler.report.wording import EQUAL_WORK
from profiler.results import Ladder, Summary
from profiler.results_history import HistoryChange

LABEL_WIDTH = 28
SYMBOLS = {"recorded": "circle", "compiled": "diamond-open"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a run: its title, how it is read and how a value is written; ``name`` in profiler.history."""

    name: str
    title: str
    value: Callable[[Summary], float | None]
    text: Callable[[float | None], str]
    scale: float = 1.0  # from the unit that it is kept in to the one that the axis counts
    spread: Callable[[Summary], tuple[float, float]] | None = None


METRICS = {
    "MFU": Metric("mfu", "MFU, %", lambda run: run.mfu, lambda value: units.percent(value, 2), 100.0),
    "step time": Metric(
        "step_time",
        "step, ms",
        lambda run: run.steps.mean_ps,
        units.duration,
        1e-9,
        lambda run: (run.steps.p10_ps, run.steps.p90_ps),
    ),
    "tokens/s": Metric(
        "tokens_per_s", "tokens/s per device", lambda run: run.tokens_per_s, lambda value: units.number(value, 5)
    ),
}


def series(points: Sequence[Point]) -> dict[tuple[str, str, str], list[int]]:
    """The runs that one line may join, by kind, model and chip: their places in ``points``."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for place, point in enumerate(points):
        if point.kind:
            found.setdefault((point.kind, point.model or "", point.chip or ""), []).append(place)
    return found


def history(
    points: Sequence[Point],
    names: Sequence[str],
    metric: Metric,
    colors: Palette,
    changes: Sequence[HistoryChange] = (),
) -> go.Figure:
    """A figure of every run in the order of time; a run without it leaves a gap.

    Args:
        points: in their order.
        names: a short name for each.
        metric: one of ``METRICS``.
        colors: of the theme.
        changes: from which of ``names`` on the figure has another level.
    """
    drawn = go.Figure()
    shades = [colors.opt, colors.gain, colors.loss, colors.base]
    lines = series(points)
    for number, ((kind, model, chip), places) in enumerate(lines.items()):
        known = [place for place in places if _value(points[place], metric) is not None]
        color = shades[number % len(shades)]
        drawn.add_trace(
            go.Scatter(
                x=[str(place) for place in known],
                y=[(_value(points[place], metric) or 0.0) * metric.scale for place in known],
                mode="lines+markers",
                name=words(" · ".join(part for part in (model, chip, _said(kind)) if part)),
                line={"color": color, "dash": "dot" if kind == "compiled" else "solid", "width": 1.5},
                marker={"symbol": SYMBOLS.get(kind, "x"), "size": 10, "color": color, "line": {"width": 2}},
                error_y=_spread([points[place] for place in known], metric, color),
                hovertext=[_hover(points[place], names[place], metric) for place in known],
                hoverinfo="text",
            )
        )
    for change in changes:
        drawn.add_vline(
            x=names.index(change.run) - 0.5,
            line={"color": colors.dim, "width": 1, "dash": "dash"},
            annotation={
                "text": f"{units.change(change.ratio)}, {'better' if change.better else 'worse'}",
                "font": {"size": 12, "color": colors.gain if change.better else colors.loss},
            },
            annotation_position="bottom right",
        )
    drawn.update_layout(
        layout(colors, 380, showlegend=len(lines) > 1, legend={"orientation": "h", "y": 1.12}, hovermode="closest"),
        xaxis=axis(
            colors,
            type="category",
            categoryorder="array",
            categoryarray=[str(place) for place in range(len(points))],
            tickvals=[str(place) for place in range(len(points))],
            ticktext=[words(name, LABEL_WIDTH) for name in names],
            range=[-0.5, len(points) - 0.5],
            automargin=True,
            showgrid=False,
        ),
        yaxis=axis(colors, metric.title, rangemode="tozero", automargin=True),
    )
    return drawn


def described(points: Sequence[Point], names: Sequence[str], metric: Metric) -> str:
    """The same in words."""
    said = (
        f"{name} {metric.text(_value(point, metric))}{' (est.)' if point.kind == 'compiled' else ''}"
        for name, point in zip(names, points, strict=True)
    )
    return f"{metric.title}: {'; '.join(said)}"


def ladder(found: Ladder, colors: Palette) -> go.Figure:
    """MFU of every run of a ladder, or the time of equal work where MFU is not known."""
    by_mfu = all(run.mfu is not None for run in found.runs)
    values = [100 * (run.mfu or 0.0) for run in found.runs] if by_mfu else [each * 1e-9 for each in equal_work(found)]
    texts = [_ladder_text(found, place) for place in range(len(found.runs))]
    compiled = [run.kind == "compiled" for run in found.runs]
    drawn = go.Figure(
        go.Bar(
            x=[str(place) for place in range(len(values))],
            y=values,
            text=texts,
            textposition="outside",
            cliponaxis=False,
            width=0.55,
            marker={
                "color": [colors.base, *[colors.opt] * (len(values) - 1)],
                "pattern": {"shape": ["/" if each else "" for each in compiled], "size": 5, "fillmode": "replace"},
            },
            hovertext=[f"{words(run.label)}: {text}" for run, text in zip(found.runs, texts, strict=True)],
            hoverinfo="text",
        )
    )
    work = EQUAL_WORK.get(found.normalization)
    title = "MFU, %" if by_mfu else f"time for equal {work}, ms" if work else f"{found.runs[0].steps.unit}, ms"
    drawn.update_layout(
        layout(colors, 340),
        xaxis=axis(
            colors,
            type="category",
            tickvals=[str(place) for place in range(len(values))],
            ticktext=[words(f"{place}. {run.label}", LABEL_WIDTH) for place, run in enumerate(found.runs, 1)],
            automargin=True,
            showgrid=False,
        ),
        yaxis=axis(colors, title + (" (est.; hatched)" if any(compiled) else ""), range=[0, max(values) * 1.15 or 1]),
    )
    return drawn


def ladder_described(found: Ladder) -> str:
    """The same in words."""
    return "; ".join(f"{run.label} {_ladder_text(found, place)}" for place, run in enumerate(found.runs))


def equal_work(found: Ladder) -> list[float]:
    """Time of every run for the work of one step of the first, ps."""
    return [found.delta.baseline_time_ps, *(rung.from_first.optimized_time_ps for rung in found.rungs)]


def _ladder_text(found: Ladder, place: int) -> str:
    run = found.runs[place]
    if all(each.mfu is not None for each in found.runs):
        change = found.rungs[place - 1].delta.mfu_points if place else None
        text = units.percent(run.mfu, 2) + (f" ({units.points(change)})" if change is not None else "")
    else:
        text = units.duration(equal_work(found)[place])
    return text + (" est." if run.kind == "compiled" else "")


def _value(point: Point, metric: Metric) -> float | None:
    return metric.value(point.summary) if point.summary else None


def _said(kind: str) -> str:
    return "compiled (est.)" if kind == "compiled" else kind


def _hover(point: Point, name: str, metric: Metric) -> str:
    value = metric.text(_value(point, metric))
    parts = [name, f"{metric.title.split(',')[0]} {value}{' (est.)' if point.kind == 'compiled' else ''}"]
    if metric.spread and point.summary and point.kind == "recorded":
        low, high = metric.spread(point.summary)
        parts.append(f"10 % to 90 % of {point.summary.steps.count:,} steps: {metric.text(low)} to {metric.text(high)}")
    return "<br>".join(words(part) for part in [*parts, f"{point.started:%Y-%m-%d %H:%M}"])


def _spread(points: Sequence[Point], metric: Metric, color: str) -> dict[str, object] | None:
    """How far the steps of recorded runs lie apart: from the 10 % to the 90 % quantile."""
    if metric.spread is None or not any(point.kind == "recorded" for point in points):
        return None
    ends = [metric.spread(point.summary) if point.summary else (0.0, 0.0) for point in points]
    means = [_value(point, metric) or 0.0 for point in points]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(high - mean, 0.0) * metric.scale for (_, high), mean in zip(ends, means, strict=True)],
        "arrayminus": [max(mean - low, 0.0) * metric.scale for (low, _), mean in zip(ends, means, strict=True)],
        "color": color,
        "thickness": 1,
    }
