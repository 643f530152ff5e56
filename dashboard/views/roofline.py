"""Roofline: how far the compute ops of both sides are from what their chip can do, and where the most time is lost."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import elements, loading, plots_roofline, shell
from dashboard.loading import Comparison, Side
from dashboard.theme import palette
from profiler import api
from profiler.report import html_parts, roofline_diff, units
from profiler.report.figures_roofline import RooflineFigure, ops_frame, roofline_figure
from profiler.report.model import Line, capped
from profiler.report.wording import sides
from profiler.results_efficiency import Roofline

MOST_FAMILIES = 15
# Of the columns of numbers, by a part of their names: calls have thousands apart, times as on the Ops page.
FORMATS = (("calls", "localized"), ("ms", "%,.3f"), ("roof", "%.1f"), ("", "%,.1f"))
DRAWN = ("both", "baseline", "optimized")
Sides = tuple[tuple[str, Roofline], ...]


def page(comparison: Comparison) -> None:
    """The page."""
    st.header("Roofline")
    reason = st.container()
    base, opt = _rooflines(comparison)
    both: Sides = (("baseline", base), ("optimized", opt))
    with reason:
        verdict = roofline_diff.verdict(base, opt)
        if verdict:
            elements.text(verdict, "because")
        elements.estimate_banner(sides(comparison.diff))
        _without_roof(both)
    elements.html(html_parts.facts(roofline_diff.fact_rows(base, opt), "Roof, MFU and HFU of both sides"))
    drawn, families = _controls(both)
    _figure(drawn, families)
    st.subheader("Families")
    table = roofline_diff.families_table(base, opt)
    elements.table(capped(table, MOST_FAMILIES, "below"), title=False)
    if len(table.rows) > MOST_FAMILIES:
        with st.expander(f"All {len(table.rows)} families and phases"):
            elements.table(table, title=False)
    _ops(drawn, families)
    for side, (title, result) in zip(comparison.sides, both, strict=True):
        own = [note for note in result.warnings if note not in side.measured.summary.warnings]
        elements.notes(own, f"Warnings about the roofline of the {title} recording")


def _rooflines(comparison: Comparison) -> tuple[Roofline, Roofline]:
    """Of both sides; a bandwidth that the chip table lacks can be given."""
    base, opt = (loading.analysed(side, api.roofline) for side in comparison.sides)
    if base.hbm_bytes_per_s and opt.hbm_bytes_per_s:
        return base, opt
    given = st.number_input(
        "HBM bandwidth, GB/s per device", min_value=1.0, value=None, step=100.0, key="roofline_gbps",
        bind="query-params", help="For devices that the chip table lacks; the peak is set on the left", width=320,
    )  # fmt: skip

    def told(side: Side, result: Roofline) -> Roofline:
        known = result.hbm_bytes_per_s or not given
        return result if known else api.roofline(side.measured, hbm_gb_per_s=given)

    return told(comparison.base, base), told(comparison.opt, opt)


def _without_roof(both: Sides) -> None:
    missing = [title for title, result in both if result.ridge_flops_per_byte is None]
    if not missing:
        return
    if len(missing) < len(both):
        elements.empty(f"The {missing[0]} side has no roof: its peak or its HBM bandwidth is not known.")
        return
    lacking = []
    if any(result.peak_tflops is None for _, result in both):
        lacking.append("peak (Peak TFLOP/s on the left)")
    if any(result.hbm_bytes_per_s is None for _, result in both):
        lacking.append("HBM bandwidth (the field below)")
    elements.empty(
        f"There is no roof: the chip table lacks these devices' {' and '.join(lacking)}.",
        "With both given, each op has a bound, a distance to the roof and a wasted time. A CPU has no peak of its own.",
    )


def _controls(both: Sides) -> tuple[Sides, tuple[str, ...]]:
    """The sides that are drawn and listed, and the families; none chosen is all of them."""
    left, right = st.columns([1, 2], vertical_alignment="bottom")
    with left:
        side = st.segmented_control(
            "Side", DRAWN, default="both", required=True, key="roofline_side",
            bind="query-params",
        )  # fmt: skip
    spent: dict[str, float] = {}
    for _, result in both:
        for row in result.families:
            spent[row.family] = max(spent.get(row.family, 0.0), row.time_ps_per_step)
    with right:
        families = st.multiselect(
            "Families", sorted(spent, key=lambda family: -spent[family]), key="roofline_family", bind="query-params",
            placeholder="All families",
        )  # fmt: skip
    drawn = tuple(each for each in both if side in ("both", each[0]))
    return drawn, tuple(families)


def _figure(drawn: Sides, families: tuple[str, ...]) -> None:
    figure = roofline_figure(drawn, families)
    if figure is None:
        if any(result.ops for _, result in drawn):
            elements.empty(
                "No op can be placed: of none are FLOPs and bytes both known and above 0.",
                "TPU recordings hold both; others do where the HLO program is in the recording.",
            )
        return
    below = "The further below the roof, the more of the time is wasted. " if figure.roofs else ""
    elements.text(
        "Hollow and grey is the baseline, filled and blue the optimized side; the symbol is the family, the area the "
        f"time. {below}A click on a family hides it."
    )
    roofs = "; ".join(f"{title}: {roof.text()}" for title, roof in figure.roofs) or "no roof is known"
    counts = ", ".join(f"{len(side.points)} ops of the {side.title} side" for side in figure.sides)
    elements.plot(plots_roofline.roofline(figure, palette()), "roofline", f"Roofline with {counts}. {roofs}.")
    elements.blocks(_remarks(figure, drawn))


def _remarks(figure: RooflineFigure, drawn: Sides) -> list[Line]:
    """What the drawing cannot show."""
    missing = [text for text in (side.missing() for side in figure.sides) if text]
    left_out = [
        f"{title}: {', '.join(f'{row.category} {units.duration(row.time_ps_per_step)}' for row in result.left_out)}"
        for title, result in drawn
        if result.left_out
    ]
    above = [f"{side.title} {side.above}" for side in figure.sides if side.above]
    texts = (
        (above, "Points above the roof ({}): their bytes are not all HBM traffic, or their FLOPs are not right."),
        (missing, "Not in the drawing, but in the tables: {}."),
        (left_out, "Without a roof here, so nowhere in the drawing and the tables: {} (exposed)."),
    )
    return [Line(text.format("; ".join(found))) for found, text in texts if found]


def _ops(drawn: Sides, families: tuple[str, ...]) -> None:
    frame = ops_frame(drawn, families)
    st.subheader("Ops, most wasted time first")
    if frame.is_empty():
        elements.empty("No compute op ran.")
        return
    left, right = st.columns([5, 1], vertical_alignment="center")
    with left:
        elements.text(f"{frame.height:,} ops; ops that differ in their numbers only, one per layer, are one row.")
    with right:
        elements.downloads("roofline", lambda: frame, "roofline-file")
    estimated = any(result.kind == "compiled" for _, result in drawn)
    shown = _shown(frame, " (est.)" if estimated else "")
    st.dataframe(
        shown,
        hide_index=True,
        column_config={
            name: st.column_config.NumberColumn(format=next(form for unit, form in FORMATS if unit in name))
            for name, kind in shown.schema.items()
            if kind.is_numeric()
        },
        placeholder="n/a",
        height=min(420, 38 + 35 * frame.height),
        key="roofline-ops",
        alt="Ops with their time, bound, distance to the roof and wasted time",
    )


def _shown(frame: pl.DataFrame, est: str) -> pl.DataFrame:
    """The columns that people read, in their units."""
    return frame.select(
        pl.col("side", "op", "family", "phase"),
        (pl.col("wasted_time_ps_per_step") / 1e9).alias(f"wasted ms{est}"),
        (pl.col("time_ps_per_step") / 1e9).alias(f"time ms{est}"),
        pl.col("calls_per_step").alias("calls"),
        pl.col("bound"),
        (pl.col("roof_fraction") * 100).alias(f"of roof %{est}"),
        pl.col("flops_per_byte").alias("FLOP/byte"),
        pl.col("tflops_per_s").alias(f"TFLOP/s{est}"),
        pl.col("gb_per_s").alias(f"GB/s{est}"),
        pl.col("source"),
    )


if __name__ == "__main__":
    shell.show(page)
