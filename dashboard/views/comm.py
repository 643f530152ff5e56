"""Communication: what collectives and transfers take, what of it compute hides, and what a device waits for."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from dashboard import elements, loading, plots_comm, shell
from dashboard.loading import Comparison
from dashboard.theme import palette
from profiler import api
from profiler.report import comm_pair, comm_view, html_parts, html_tables, units
from profiler.report.figures_comm import comm_figure
from profiler.report.model import Line, Table
from profiler.report.wording import basis, sides
from profiler.results import CommReport


def page(comparison: Comparison) -> None:
    """The page."""
    base, opt = (loading.analysed(side, api.comm) for side in comparison.sides)
    st.header("Communication")
    verdict = comm_pair.verdict(comparison.diff)
    if verdict:
        elements.text(verdict, "because")
    elements.estimate_banner(sides(comparison.diff))
    if base.rows or opt.rows:
        _in_flight(comparison)
    else:
        elements.empty(
            "Neither side moves anything between devices or to the host.",
            "Collectives appear where a program runs on several devices; below is what a device waits for.",
        )
    _each(base, opt)
    for side, report in zip(comparison.sides, (base, opt), strict=True):
        elements.notes(report.warnings, f"Warnings about the {side.title} recording")


def _in_flight(comparison: Comparison) -> None:
    """Exposed and hidden time of both sides for equal work, and what that is of the change."""
    diff, figure = comparison.diff, comm_figure(comparison.diff)
    st.subheader("Exposed and hidden")
    if figure:
        smaller = f" Not drawn: {units.number(figure.smaller)} smaller." if figure.smaller else ""
        elements.text(
            f"Time in flight {figure.basis}. Exposed: no compute runs meanwhile, the step is that much longer. "
            f"Hidden: behind compute.{smaller}"
        )
        elements.html(_legend())
        elements.plot(plots_comm.exposed_and_hidden(figure, palette()), "comm_in_flight", figure.text())
    blocks = comm_view.comm_blocks(diff, 0)
    for block in blocks:
        if isinstance(block, Table):
            caption = f"{basis(diff)}; what is exposed sums to the parts of the change below"
            elements.table(html_tables.marked(replace(block, caption=caption), diff), title=False)
    elements.blocks([block for block in blocks if isinstance(block, Line)])
    parts = comm_pair.contributions_table(diff)
    if parts and not comparison.choice.alone:
        elements.table(html_tables.marked(parts, diff))


def _legend() -> str:
    found = []
    for side in ("baseline", "optimized"):
        for part in ("exposed", "hidden"):
            style = plots_comm.swatch_style(side, hidden=part == "hidden")
            found.append(f'<li><i class="swatch" style="{style}"></i> {side}, {part}</li>')
    return f'<ul class="legend">{"".join(found)}</ul>'


def _each(base: CommReport, opt: CommReport) -> None:
    """Both sides by themselves: per step of each, not scaled to equal work."""
    st.subheader("Each side by itself")
    elements.blocks(
        [Line(f"{title}: {comm_view.verdict(report)}") for title, report in (("Baseline", base), ("Optimized", opt))]
    )
    if base.rows or opt.rows:
        elements.table(comm_pair.bandwidth_table(base, opt))
    elements.table(comm_pair.split_table(base, opt))
    whole = comm_pair.whole_table(base, opt)
    if whole:
        elements.table(whole)
    with st.expander("Steps, mesh and links"):
        elements.html(html_parts.facts(comm_pair.facts(base, opt), "Steps, mesh and links of both sides"))


if __name__ == "__main__":
    shell.show(page)
