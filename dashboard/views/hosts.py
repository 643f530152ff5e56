"""Hosts: which host or chip the others wait for, in either run, and what the step loses by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import streamlit as st

from dashboard import elements, loading, plots_hosts, shell
from dashboard.loading import Comparison, Side
from dashboard.theme import palette
from profiler import api
from profiler.errors import ProfilerError
from profiler.report import hosts_pair, hosts_view, html_parts
from profiler.report.figures_hosts import OWN, STEP, device_strip, host_bars
from profiler.report.model import Line, Table, capped
from profiler.report.wording import sides
from profiler.results_skew import HostsReport, SkewDevice

ROWS = 20
MOST_STEPS = 50
WHAT = {OWN: "own time", STEP: "whole step"}

Found = Sequence[tuple[str, HostsReport]]


def page(comparison: Comparison) -> None:
    """The page."""
    st.header("Hosts")
    told = {side.title: report for side in comparison.sides if (report := _report(side)) is not None}
    if not told:
        return
    elements.estimate_banner(sides(comparison.diff))
    found = [*told.items()]
    if comparison.choice.alone:
        found = [("recording", found[-1][1])]
    if all(len(report.devices) < 2 for _, report in found):
        where = "" if len(found) == 1 else " on either side"
        elements.empty(
            f"One device{where}, which has no other to wait for.",
            "Record every host of a run, and choose the folder with the files of all hosts, or a reduced run of it.",
        )
    else:
        _who(found)
        _devices(found)
        _bars(found)
    _tables(found)
    with st.expander("How they were put beside each other"):
        elements.html(html_parts.facts(hosts_pair.facts(told.get("baseline"), told.get("optimized")), "Both sides"))
    for title, report in found:
        elements.notes(report.warnings, f"Warnings, {title}")


def _report(side: Side) -> HostsReport | None:
    try:
        return loading.analysed(side, api.hosts, side.options)
    except ProfilerError as error:
        elements.empty(f"The {side.title} side {error.what}.", error.remedy or "")
        return None


def _who(found: Found) -> None:
    """The answer, and the evidence of those who are slow."""
    elements.blocks([Line(f"{title.capitalize()}: {report.verdict}", headline=True) for title, report in found])
    for title, report in found:
        if report.stragglers or report.spikes:
            elements.blocks([replace(hosts_view.slow_items(report), title=f"Who is slow, {title}")])


def _devices(found: Found) -> None:
    st.subheader("Every device, by host")
    what = st.segmented_control(
        "What", list(WHAT), default=OWN, key="hosts_what", bind="query-params", label_visibility="collapsed",
        format_func=WHAT.__getitem__,
    )  # fmt: skip
    strips = [strip for title, report in found if (strip := device_strip(title, report, what or OWN))]
    own = "Own time is work and what the host kept the device from: a device that is slow there makes the others wait."
    whole = "In a collective all wait for the last one: steps are as long on those that are slow as on the others."
    many = any(len(strip.dots) > plots_hosts.MOST_DOTS for strip in strips)
    elements.text(
        (whole if what == STEP else own)
        + (
            " A stroke is a host, from its fastest to its slowest device."
            if many
            else " A dot is the mean of a device."
        )
        + (" Triangles are slow by more than noise." if any(strip.named for strip in strips) else "")
        + (" Both axes cover the same share of the median." if len(strips) > 1 else "")
    )
    elements.plot(
        plots_hosts.devices(strips, what or OWN, palette()), f"hosts-devices-{what}", plots_hosts.described(strips)
    )


def _bars(found: Found) -> None:
    figures = [figure for title, report in found if (figure := host_bars(title, report))]
    st.subheader("Work, host and waiting")
    hidden = ", ".join(f"{figure.hidden:,} more of the {figure.title}" for figure in figures if figure.hidden)
    elements.text(
        "The slowest first, ▲ where slow by more than noise. Solid is work, hatched what the host kept it from, dotted "
        "waiting for others: less waiting than the others is what a slow host shows."
        + (f" Not drawn: {hidden}." if hidden else "")
    )
    most = max(sum(bar.parts) * figure.scale.divisor for figure in figures for bar in figure.bars)
    rows = max(len(figure.bars) for figure in figures)
    for column, figure in zip(st.columns(len(figures)), figures, strict=True):
        with column:
            elements.plot(
                plots_hosts.bars(figure, most / figure.scale.divisor, rows, palette()),
                f"hosts-bars-{figure.title}",
                plots_hosts.bars_described(figure),
            )


def _tables(found: Found) -> None:
    """Hosts that are not as the others, then every host, device and step; of many the slowest."""
    for title, report in found:
        odd = hosts_pair.odd_hosts(report)
        if odd:
            elements.table(_shown(odd, title))
    for words, make, most in (
        ("Every host", hosts_view.hosts_table, ROWS),
        ("Every device", hosts_view.devices_table, ROWS),
        ("Who the others wait for, step by step", hosts_view.steps_table, MOST_STEPS),
        ("Load of the experts", hosts_view.experts_table, ROWS),
    ):
        tables = [(title, table) for title, report in found if (table := make(report)).rows]
        if tables:
            with st.expander(words):
                for title, table in tables:
                    elements.table(_shown(table, title, most))
                if make is hosts_view.devices_table:
                    elements.downloads("devices", lambda: _frame(found), "hosts-devices")


def _shown(table: Table, title: str, most: int = ROWS) -> Table:
    return capped(replace(table, title=f"{table.title}, {title}"), most, "profiler hosts --top 0 shows all")


def _frame(found: Found) -> pl.DataFrame:
    """Every device of both sides, as `profiler hosts --format csv` has them."""
    rows = [
        {"side": title, **{name: getattr(device, name) for name in SkewDevice.__slots__}}
        for title, report in found
        for device in report.devices
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


if __name__ == "__main__":
    shell.show(page)
