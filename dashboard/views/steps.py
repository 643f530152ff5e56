"""Steps & loss: how long every steady step took, how they spread, and whether both runs compute the same."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard import elements, loading, plots_steps, shell
from dashboard.loading import Comparison
from dashboard.theme import palette
from dashboard.warned import warnings
from profiler.analysis.remedies import problems
from profiler.analysis.stepspread import device_steps
from profiler.compare.devicetime import busy_device_steps
from profiler.report import diff_view, steps_view
from profiler.report.figures_devices import spread_figure
from profiler.report.figures_metrics import MetricFigure, metric_figures
from profiler.report.figures_steps import steps_figure
from profiler.report.health_diff import warned
from profiler.report.wording import sides
from profiler.results import Diff

SHOWN_FIRST = 4  # other metrics that are drawn without being asked for
FIRST = ("perplexity", "grad_norm", "learning_rate", "cross_entropy")


def page(comparison: Comparison) -> None:
    """The page."""
    diff = comparison.diff
    headline, more = steps_view.steps_text(diff)
    st.header("Steps and loss")
    elements.text(f"{headline}. {more}." if more else f"{headline}.", "because")
    elements.text(f"{diff_view.noise_text(diff).capitalize()}.")
    elements.estimate_banner(sides(diff))
    _steps(diff)
    _devices(comparison)
    _loss(diff)


def _steps(diff: Diff) -> None:
    st.subheader("Every steady step")
    figure = steps_figure(diff)
    if figure is not None:
        drawn = [
            f"Of {strip.count:,} {strip.title} steps {len(strip.values)} are drawn."
            for strip in figure.strips
            if strip.count > len(strip.values)
        ]
        told = ["Rings and dashes are the baseline, discs and solid lines the optimized side."]
        told += ["Times are those of whole steps, not scaled to equal work."] if steps_view.scaled(diff) else []
        elements.text(" ".join([*told, *drawn]))
        described = "; ".join(
            f"{strip.title}: {strip.count} steps, mean {plots_steps.shown(strip.mean, figure.scale)}"
            for strip in figure.strips
        )
        elements.plot(plots_steps.steps(figure, palette()), "steps-plot", described)
    else:
        elements.empty(*_why_no_steps(diff))
    for _, rows in warned([(where, problems([note])) for where, note in steps_view.steps_notes(diff)]):
        warnings(rows)
    elements.table(steps_view.steps_table(diff), title=False)


def _why_no_steps(diff: Diff) -> tuple[str, str]:
    compiled = [title for title, side in sides(diff) if side.kind == "compiled"]
    if compiled:
        which = "Both sides are" if len(compiled) == 2 else f"The {compiled[0]} side is"
        return f"{which} compiled: one step is laid out, and no step was run.", "Record the runs to see their steps."
    alone = [title for title, side in sides(diff) if side.steps.unit == "run"]
    if alone:
        which = "either side" if len(alone) == 2 else f"the {alone[0]} side"
        return (
            f"No step repeats on {which}: its time is that of the whole recording.",
            "Wrap each step in jax.profiler.StepTraceAnnotation, and record several.",
        )
    return "A side has a single step: there is nothing to spread.", "Record three steps or more on either side."


def _devices(comparison: Comparison) -> None:
    diff = comparison.diff
    steps = busy_device_steps if steps_view.by_device_time(diff) else device_steps
    base, opt = (loading.analysed(side, steps) for side in comparison.sides)
    figure = spread_figure(base, opt)
    if figure is None:
        return
    st.subheader("Device by device")
    if figure.hidden:
        elements.text(f"Of {figure.hidden + len(figure.rows):,} devices those that differ most are drawn.")
    described = f"Mean step and its spread on {len(figure.rows)} devices of both sides"
    elements.plot(plots_steps.spread(figure, palette()), "steps-spread", described)
    with st.expander("The devices as a table, slowest first"):
        for title, found in (("baseline", base), ("optimized", opt)):
            elements.table(steps_view.devices_table(title, found))


def _loss(diff: Diff) -> None:
    st.subheader("Loss")
    found = metric_figures(diff.baseline.run_info, diff.optimized.run_info)
    if diff.loss is not None:
        words = {True: "Unchanged", False: "Not the same", None: "No verdict"}[diff.loss.unchanged]
        text = diff.loss.text.removeprefix("unchanged ").removeprefix("no verdict, ").removeprefix("no verdict: ")
        mark = {True: "good", False: "bad", None: "strong"}[diff.loss.unchanged]
        elements.html(f'<p class="because"><strong class="{mark}">{words}</strong>: <bdi>{escape(text)}</bdi></p>')
    if not found:
        elements.empty(*_why_no_metrics(diff))
        return
    if diff.loss is None:
        elements.empty(
            "Only one side has losses that can be compared: whether both runs compute the same cannot be told.",
            "distill train writes its metrics into the trace; metrics of other runs go into the run info.",
        )
    over = _over(found, diff)
    first = next((each for each in found if each.name == "loss"), None)
    if first is not None:
        _metric(first, over, height=400, large=True)
    others = [each for each in found if each is not first]
    if others:
        _others(others, over)


def _why_no_metrics(diff: Diff) -> tuple[str, str]:
    if all(side.kind == "compiled" for _, side in sides(diff)):
        return (
            "Both sides are compiled: nothing was trained, so there is no loss.",
            "Train both to compare their losses.",
        )
    return (
        "Neither recording carries metrics of its steps: whether both runs compute the same cannot be told.",
        "distill train writes them into the trace; for other runs, add them to the run info (metrics).",
    )


def _over(found: tuple[MetricFigure, ...], diff: Diff) -> str:
    """What the curves are drawn over; tokens where the batches differ, since no step is then another's."""
    curves = [curve for each in found for curve in (each.baseline, each.optimized) if curve is not None]
    if not any(tokens is not None for curve in curves for tokens in curve.tokens):
        return "step"
    usual = "tokens" if diff.loss is not None and diff.loss.kind != "steps" else "step"
    chosen = st.segmented_control(
        "Over", ["step", "tokens"], default=usual, key="steps_over", bind="query-params", label_visibility="collapsed",
        format_func={"step": "over steps", "tokens": "over tokens seen"}.__getitem__,
    )  # fmt: skip
    return chosen or usual


def _metric(figure: MetricFigure, over: str, *, height: int, large: bool = False) -> None:
    described = "; ".join(
        f"{title}: {curve.values[0]:g} to {curve.values[-1]:g}"
        for title, curve in (("baseline", figure.baseline), ("optimized", figure.optimized))
        if curve is not None and curve.values
    )
    drawn = plots_steps.metric(figure, palette(), over=over, height=height, large=large)
    elements.plot(drawn, f"metric-{figure.name}", f"{figure.title}: {described}")
    for title, curve in (("baseline", figure.baseline), ("optimized", figure.optimized)):
        if curve is not None and curve.broken:
            elements.text(f"{figure.title}: {curve.broken:,} of the {title} values are no numbers and are not drawn.")


def _others(others: list[MetricFigure], over: str) -> None:
    st.subheader("Other metrics of the runs")
    names = [each.name for each in others]
    usual = [name for name in names if name in FIRST] or names[:SHOWN_FIRST]
    titles = {each.name: each.title for each in others}
    chosen = st.multiselect(
        "Metrics", names, default=usual, key="steps_metrics", bind="query-params", label_visibility="collapsed",
        format_func=lambda name: titles.get(name, name), placeholder="choose metrics", select_all=False,
    )  # fmt: skip
    shown = [each for each in others if each.name in chosen]
    for start in range(0, len(shown), 2):
        for column, figure in zip(st.columns(2), shown[start : start + 2], strict=False):
            with column:
                _metric(figure, over, height=230)


if __name__ == "__main__":
    shell.show(page)
