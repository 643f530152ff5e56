"""The rows of a diff's ops as a table to search: what an op wastes, any name that it goes by, filters and totals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import polars as pl

from profiler.analysis.opdetail import members, scale_of
from profiler.analysis.roofline import op_roofs
from profiler.results_ops import OpTotals

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured
    from profiler.compare.align import Members
    from profiler.results import Diff

ORDERS = {
    "changed time": pl.col("delta_time_ps").abs(),
    "wasted time": pl.col("wasted_time_ps"),
    "optimized time": pl.col("optimized_time_ps"),
    "baseline time": pl.col("baseline_time_ps"),
    "calls": pl.max_horizontal("baseline_calls", "optimized_calls"),
}


def op_rows(baseline: Measured, optimized: Measured, diff: Diff, rows: Sequence[Members] | None = None) -> pl.DataFrame:
    """``diff.ops`` with the columns that a table of it needs; same rows, same order.

    Added: ``row``, from 0; ``wasted_time_ps``, what the calls of the optimized side take beyond the chip's roof (from
    start to end, for the work of one baseline step, null where the roof of any of them is unknown);
    ``baseline_names`` and ``optimized_names``, all instructions of the row, separated by spaces.
    """
    rows = members(baseline, optimized, diff) if rows is None else rows
    return diff.ops.with_row_index("row").with_columns(
        wasted_time_ps=_wasted(optimized, [each.optimized for each in rows], scale_of(baseline, optimized, diff)),
        baseline_names=_names(baseline, [each.baseline for each in rows]),
        optimized_names=_names(optimized, [each.optimized for each in rows]),
    )


def select(
    table: pl.DataFrame,
    *,
    text: str = "",
    families: Collection[str] = (),
    phases: Collection[str | None] = (),
    programs: Collection[str | None] = (),
    matches: Collection[str] = (),
) -> pl.DataFrame:
    """The rows of ``op_rows`` that pass every filter; an empty one lets everything pass.

    ``text`` is looked for as it is, in any case of letters, in instruction names, name stacks and source lines.
    """
    kept = pl.lit(value=True)
    for column, wanted in (("family", families), ("phase", phases), ("program", programs), ("match", matches)):
        if len(wanted):
            told = [value for value in wanted if value is not None]
            chosen = pl.col(column).is_in(told).fill_null(False)
            kept &= chosen | pl.col(column).is_null() if None in wanted else chosen
    if text.strip():
        needle = text.strip().lower()
        places = ("baseline_names", "optimized_names", "name_stack", "source")
        found = [pl.col(name).str.to_lowercase().str.contains(needle, literal=True).fill_null(False) for name in places]
        kept &= pl.any_horizontal(found)
    return table.filter(kept)


def ordered(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """The rows, largest first: by one of ORDERS; equal ones as they were, the unknown last."""
    return rows.sort(ORDERS[by], descending=True, nulls_last=True, maintain_order=True)


def totals(rows: pl.DataFrame, diff: Diff) -> OpTotals:
    """What some rows of a diff's ops add up to."""
    baseline, optimized = (float(rows[f"{side}_time_ps"].sum()) for side in ("baseline", "optimized"))
    change = diff.delta.optimized_time_ps - diff.delta.baseline_time_ps
    wasted = rows["wasted_time_ps"].drop_nulls()
    return OpTotals(
        rows=rows.height,
        baseline_time_ps=baseline,
        optimized_time_ps=optimized,
        delta_time_ps=optimized - baseline,
        share_of_change=(optimized - baseline) / change + 0.0 if change else None,  # never −0
        wasted_time_ps=float(wasted.sum()) if len(wasted) else None,
    )


def _wasted(measured: Measured, held: list[tuple[int, ...]], scale: float) -> pl.Series:
    """Time beyond the roof by row; null where the roof of any op of it is unknown, and where it has no op."""
    roofs = {op_id: (span, roof) for op_id, span, roof in op_roofs(measured).iter_rows()}
    return pl.Series([_beyond([roofs.get(each) for each in ids], scale) for ids in held], dtype=pl.Float64)


def _beyond(ops: list[tuple[float, float | None] | None], scale: float) -> float | None:
    """What ops of (time, roof) take beyond it together."""
    total = 0.0
    for each in ops:
        if each is None or each[1] is None:
            return None
        total += each[0] - each[1]
    return max(total, 0.0) * scale if ops else None


def _names(measured: Measured, held: list[tuple[int, ...]]) -> pl.Series:
    """The distinct instruction names of every row, joined; null where it has none."""
    ops = measured.trace.ops["op"].to_list()
    return pl.Series([" ".join(dict.fromkeys(ops[each] for each in ids)) or None for ids in held], dtype=pl.String)
