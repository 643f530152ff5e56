"""Attention & remat: how often attention runs, how fast, what runs again, and what keeping tensors would change."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from dashboard import elements, loading, plots_kernels, shell
from dashboard.loading import Comparison
from dashboard.theme import palette
from profiler import api
from profiler.report import (
    html_kernels,
    html_parts,
    html_tables,
    kernels_diff,
    remat_diff,
    remat_view,
    side_tables,
    units,
)
from profiler.report.figures_keep import keep_figure
from profiler.report.figures_kernels import calls_figure, cards, is_attention, only
from profiler.report.wording import per_step, sides
from profiler.results import Diff
from profiler.results_efficiency import RematReport

SIDES = ("baseline", "optimized")


def page(comparison: Comparison) -> None:
    """The page."""
    attention = only(comparison.diff, is_attention)
    base, opt = (loading.analysed(side, api.remat) for side in comparison.sides)
    st.header("Attention and rematerialisation")
    elements.text(per_step(comparison.diff))
    elements.estimate_banner(sides(attention))
    headline = [*cards(attention, "attention kernels")[:2], *remat_diff.cards(base, opt)]
    if headline:
        elements.html(html_parts.cards(headline))
    _counts(attention)
    _speed(attention)
    _reruns(comparison.diff, base, opt)
    _keeping(base, opt)
    for title, report, summary in zip(SIDES, (base, opt), (each for _, each in sides(attention)), strict=True):
        own = [note for note in report.warnings if note not in summary.warnings]
        elements.notes(own, f"Warnings about the re-runs of the {title} recording")


def _counts(attention: Diff) -> None:
    st.subheader("How often attention runs")
    counts = html_kernels.counts_table(attention)
    if counts is not None:
        elements.table(counts, title=False)
    elif any(side.kernels for _, side in sides(attention)):
        elements.table(html_tables.marked(side_tables.kernels_table(attention), attention), title=False)
    else:
        _without_kernels(attention)


def _without_kernels(diff: Diff) -> None:
    """Attention that XLA compiled has a time, and no calls that could be counted."""
    base, opt = (
        replace(side, families=tuple(row for row in side.families if row.family == "attention"))
        for _, side in sides(diff)
    )
    if not base.families and not opt.families:
        elements.empty(
            "No attention ran on either side, or nothing in the recording names it.",
            "Ops are recognised by their name stacks and kernels; the Ops page lists what ran.",
        )
        return
    elements.empty(
        "No attention kernel ran on either side: XLA compiled attention itself, as ops of the family “attention”.",
        "Splash attention runs on TPUs; a recording that uses it has its calls per phase and layer here.",
    )
    families = side_tables.families_table(replace(diff, baseline=base, optimized=opt))
    elements.table(html_tables.marked(families, diff), title=False)


def _speed(attention: Diff) -> None:
    figure = calls_figure(attention)
    if figure is None:
        return
    st.subheader("Time per call and share of the peak" if figure.has_shares else "Time per call")
    if figure.work:
        elements.text(figure.work)
    elements.plot(plots_kernels.calls(figure, palette()), "attention-calls", figure.described())
    if html_kernels.counts_table(attention) is not None:  # else it is the table of the counts
        with st.expander("As a table"):
            elements.table(html_tables.marked(side_tables.kernels_table(attention), attention), title=False)
    differing = kernels_diff.tiles_table(attention)
    st.subheader("Blocks and layouts that differ" if differing.rows else "Blocks and layouts")
    known = html_kernels.tiles_table(attention)
    elements.table(differing, title=False)
    if known.rows and not differing.rows:
        elements.text("Blocks and layouts are the same on both sides.")
    if known.rows:
        with st.expander("Blocks and layouts of all attention kernels"):
            elements.table(known, title=False)
    else:
        elements.empty("The block sizes are not known: these kernels note them nowhere that a recording keeps.")


def _reruns(diff: Diff, base: RematReport, opt: RematReport) -> None:
    st.subheader("What runs again in the backward pass")
    if not (base.ops or opt.ops):
        elements.empty(
            "Nothing is seen to run again on either side.",
            "Rematerialisation is off or keeps everything, or the ops have no name stacks that would tell.",
        )
        return
    elements.table(html_tables.marked(side_tables.rerun_table(diff), diff), title=False)
    by_scope = remat_diff.reruns_table(base, opt)
    with st.expander(f"By scope of the model ({len(by_scope.rows)})"):
        elements.table(by_scope, title=False)
    with st.expander("The ops that run again, by name"):
        frame = remat_diff.reruns_frame(base, opt)
        st.dataframe(frame, hide_index=True, key="attention-ops", alt="Re-run ops of both sides, by scope and family")
        elements.downloads("reruns", lambda: frame, "attention-ops-file")
    elements.table(remat_diff.collectives_table(base, opt))


def _keeping(base: RematReport, opt: RematReport) -> None:
    if not (base.options or opt.options or base.kept or opt.kept):
        return
    st.subheader("What keeping a tensor would cost and save")
    chosen = st.segmented_control(
        "Side", SIDES, default="optimized", required=True, key="attention_side", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    report = base if chosen == "baseline" else opt
    _options(report, str(chosen))
    elements.table(remat_diff.kept_table(base, opt))


def _options(report: RematReport, side: str) -> None:
    if not report.options:
        elements.empty(
            f"For the {side} recording this cannot be told.",
            "It takes the program in the recording and re-run ops that make a tensor with a name of MaxText's.",
        )
        return
    free = remat_view.room(report)
    figure = keep_figure(report)
    if figure is not None:
        room = f"room left in HBM: {units.size(free)}" if free is not None else "the room left in HBM is not known"
        described = "; ".join(figure.text(point) for point in figure.points)
        elements.text(f"The {side} recording: each point is a tensor that runs again now; {room}.")
        elements.plot(plots_kernels.keep(figure, palette()), "attention-keep", f"{room}; {described}")
    compiled = report.kind == "compiled"
    options = html_tables.estimates(remat_view.options_table(report), base=compiled, opt=compiled)
    elements.table(options, title=False)


if __name__ == "__main__":
    shell.show(page)
