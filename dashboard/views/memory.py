"""Memory: HBM over the schedule, the three peaks, and what is alive at the peak of both sides."""

from __future__ import annotations

from html import escape

import polars as pl
import streamlit as st

from dashboard import elements, loading, plots_memory, shell
from dashboard.loading import Comparison
from dashboard.theme import palette
from profiler import api
from profiler.report import html_parts, html_tables, memory_diff, memory_pair, memory_view, units
from profiler.report.figures_memory import MemoryFigure, memory_figure
from profiler.results import MemoryDelta, MemoryReport

CHANGES = ("came", "went", "grew", "shrank")
SIDES = ("baseline", "optimized")
TALL = 420  # pixels of a table that scrolls


def page(comparison: Comparison) -> None:
    """The page."""
    base, opt = (loading.analysed(side, api.memory) for side in comparison.sides)
    st.header("Memory")
    elements.text(memory_pair.verdict(base, opt), "because")
    _curves(comparison, base, opt)
    st.subheader("Peaks and headroom")
    elements.html(html_parts.facts(memory_pair.facts(base, opt), "Peaks and headroom of both sides"))
    elements.text(
        "Three peaks that are not the same: static is the compiler's plan for one program; window is what the "
        "allocator held while the profile was taken; lifetime is since the process began, without what programs "
        "reserve."
    )
    if comparison.diff.memory is not None:
        _at_the_peak(comparison.diff.memory)
        _changes(comparison.diff.memory)
    elif base.groups or opt.groups:
        for title, report in zip(SIDES, (base, opt), strict=True):
            st.subheader(f"Alive at the static peak of the {title} side")
            _groups(report)
    _side(base, opt)
    for title, report in zip(SIDES, (base, opt), strict=True):
        elements.notes(report.warnings, f"Warnings about the {title} recording")


def _curves(comparison: Comparison, base: MemoryReport, opt: MemoryReport) -> None:
    figure = memory_figure(comparison.diff)
    if figure is None:
        elements.empty(
            "What fills the memory over a step is not known.",
            "The plan is in a profile that has the programs' HLO, as those of jax.profiler.trace have; both sides "
            "need one to be compared.",
        )
        return
    st.subheader("Held over the schedule")
    elements.html(_legend(figure))
    described = "; ".join(track.text() for track in figure.tracks)
    held = {"baseline": base.curve, "optimized": opt.curve}
    elements.plot(plots_memory.curves(figure, held, palette()), "memory_curves", described)
    events = ", ".join(f"{track.title} {units.grouped(track.events)}" for track in figure.tracks)
    elements.text(
        f"Left to right: {events} allocations and frees of one execution of the largest program, which is no time "
        "axis; strips: the part of the step."
    )


def _legend(figure: MemoryFigure) -> str:
    found = [
        f'<i class="swatch" style="{plots_memory.line_style(track.title)}"></i> <bdi>{escape(track.text())}</bdi>'
        for track in figure.tracks
    ]
    if figure.far:
        found.append(f"limit {units.size(figure.limit)}, above the drawing")
    found += [
        f'<i class="swatch" style="{plots_memory.tone_style(index)}"></i> <b>{letter}</b> '
        f"<bdi>{escape(units.shorten(phase, 60))}</bdi>"
        for index, (phase, letter) in enumerate(figure.phases.items())
    ]
    return f'<ul class="legend">{"".join(f"<li>{each}</li>" for each in found)}</ul>'


def _at_the_peak(found: MemoryDelta) -> None:
    table = memory_diff.groups_table(found)
    sizes = {row.group: (row.baseline_bytes, row.optimized_bytes) for row in found.groups}
    st.subheader("Alive at the static peak")
    elements.table(html_tables.with_bars(table, [sizes.get(row[0].text) for row in table.rows]), title=False)


def _changes(found: MemoryDelta) -> None:
    """The tensors that differ, to search."""
    st.subheader("Tensors that came, went or changed")
    frame = memory_pair.changes_frame(found)
    if frame.is_empty():
        elements.text("The tensors at the peak are the same on both sides.")
        return
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    with left:
        text = st.text_input("Search", key="memory_find", bind="query-params", type="search")
    with right:
        kinds = st.pills("Change", CHANGES, selection_mode="multi", key="memory_change", bind="query-params")
    shown = memory_pair.search(frame, text or "")
    if kinds:
        shown = shown.filter(pl.col("change").is_in(kinds))
    scale = units.byte_scale(size for row in found.tensors for size in (row.baseline_bytes, row.optimized_bytes))
    total = int(shown["delta_bytes"].sum())
    elements.text(f"{shown.height} of {frame.height} rows; together {scale.delta(total)} {scale.unit}.")
    sizes = {"baseline_bytes": "base", "optimized_bytes": "opt", "delta_bytes": "Δ"}
    _table(shown, sizes, scale, "memory_changes")
    elements.downloads("tensors-changed", lambda: shown, "memory_changes")


def _side(base: MemoryReport, opt: MemoryReport) -> None:
    """One side in full."""
    if not any((base.tensors, opt.tensors, base.allocators, opt.allocators)):
        return
    st.subheader("One side in full")
    side = st.segmented_control(
        "Side", SIDES, default="optimized", required=True, key="memory_side", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    report = base if side == "baseline" else opt
    if report.tensors:
        text = st.text_input("Search tensors", key="memory_tensor", bind="query-params", type="search")
        frame = memory_pair.tensors_frame(report)
        shown = memory_pair.search(frame, text or "")
        scale = units.byte_scale(tensor.bytes for tensor in report.tensors)
        elements.text(
            f"{shown.height} of {frame.height} rows; together {units.size(int(shown['bytes'].sum()))} "
            "at the static peak. Bytes are of all buffers of a row, a shape is of one."
        )
        _table(shown, {"bytes": "held"}, scale, "memory_tensors")
        elements.downloads(f"tensors-{side}", lambda: shown, "memory_tensors")
    else:
        elements.empty(f"No tensors: the {side} recording carries no plan of its memory.")
    for table in memory_view.detail_tables(report):
        elements.table(table)


def _groups(report: MemoryReport) -> None:
    if report.groups:
        elements.table(memory_view.groups_table(report), title=False)
    else:
        elements.empty("Not known: no program of this recording carries its plan.")


def _table(frame: pl.DataFrame, sizes: dict[str, str], scale: units.Scale, key: str) -> None:
    """A table to scroll and sort; bytes in one unit."""
    first = [name for name in ("change", "tensor") if name in frame.columns]
    wide = {"tensor": 240, "part": 150}  # pixels; what is longer shows on a click
    st.dataframe(
        frame.with_columns(pl.col(name) / scale.divisor for name in sizes).with_columns(
            pl.col(pl.String).fill_null("")
        ),
        key=key,
        height=min(TALL, 36 * (frame.height + 1) + 3),
        hide_index=True,
        column_order=[*first, *sizes, *(name for name in frame.columns if name not in (*first, *sizes))],
        column_config={
            name: st.column_config.NumberColumn(
                f"{title} {scale.unit}", format="%+,.3f" if name.startswith("delta") else "%,.3f"
            )
            for name, title in sizes.items()
        }
        | {
            name: st.column_config.TextColumn(name.replace("_", " "), width=wide.get(name))
            for name, kind in frame.schema.items()
            if kind == pl.String
        },
    )


if __name__ == "__main__":
    shell.show(page)
