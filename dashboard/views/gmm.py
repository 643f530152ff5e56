"""Grouped matmul: how often the experts' matmuls run on either side, how long and how fast, and with which tiles."""

from __future__ import annotations

import streamlit as st

from dashboard import elements, loading, plots_kernels, shell
from dashboard.loading import Comparison
from dashboard.theme import palette
from profiler import api
from profiler.report import html_parts, html_tables, kernels_diff, side_tables
from profiler.report.figures_kernels import calls_figure, cards, is_attention, is_grouped_matmul, only
from profiler.report.variants_diff import tiles_table, variant_pairs, variants_table
from profiler.report.wording import per_step, sides
from profiler.results import Diff


def page(comparison: Comparison) -> None:
    """The page."""
    diff = comparison.diff
    matmuls = only(diff, is_grouped_matmul)
    st.header("Grouped matmul")
    if any(side.kernels for _, side in sides(matmuls)):
        _matmuls(comparison, matmuls)
    else:
        _without(diff)
    _others(diff)
    for side in comparison.sides:
        known = side.measured.summary.warnings
        own = [note for note in loading.analysed(side, api.kernels).warnings if note not in known]
        elements.notes(own, f"Warnings about the kernels of the {side.title} recording")


def _matmuls(comparison: Comparison, matmuls: Diff) -> None:
    elements.text(per_step(matmuls))
    elements.estimate_banner(sides(matmuls))
    elements.html(html_parts.cards(cards(matmuls, "grouped matmuls")))
    st.subheader("Time per call and share of the peak")
    figure = calls_figure(matmuls)
    if figure is not None:
        if figure.work:
            elements.text(figure.work)
        elements.plot(plots_kernels.calls(figure, palette()), "gmm-calls", figure.described())
    elements.table(html_tables.marked(kernels_diff.kernels_table(matmuls), matmuls), title=False)
    st.subheader("Tiles")
    pairs = [
        each
        for each in variant_pairs(*(loading.analysed(side, api.kernels) for side in comparison.sides))
        if each.first.family.startswith(("gmm", "tgmm"))
    ]
    tiles = tiles_table(pairs)
    elements.table(tiles, title=False)
    if not tiles.rows:
        elements.empty(
            "The tiles are not known: these kernels keep them in byte code.",
            "A profile that distill compile makes notes them beside each call.",
        )
    with st.expander(f"Every shape and set of tiles ({len(pairs)})"):
        variants = variants_table(pairs, matmuls.baseline.steps.unit)
        elements.table(html_tables.marked(variants, matmuls), title=False)


def _without(diff: Diff) -> None:
    experts = any(row.family in ("MoE dispatch", "router") for _, side in sides(diff) for row in side.families)
    if experts:
        elements.empty(
            "No grouped matmul kernel ran on either side: XLA compiled the experts' matmuls itself, as dense matmuls.",
            "gmm and tgmm are TPU kernels (megablox, tokamax); a recording of a TPU that uses them has this page.",
        )
    else:
        elements.empty(
            "No grouped matmul ran on either side: the model is dense, or nothing in the recording names its experts.",
            "This page is for mixture-of-experts models whose experts run as gmm and tgmm kernels on a TPU.",
        )


def _others(diff: Diff) -> None:
    others = only(diff, lambda row: not (is_grouped_matmul(row) or is_attention(row)))
    table = side_tables.kernels_table(others)
    if table.rows:
        with st.expander(f"Other custom kernels, but for attention ({len(table.rows)})"):
            elements.table(html_tables.marked(table, diff), title=False)


if __name__ == "__main__":
    shell.show(page)
