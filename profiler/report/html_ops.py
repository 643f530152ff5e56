"""The op table of the HTML report: as many rows as the page's budget holds, with the raw figures that sorting uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import escape

from profiler.report import diff_tables, units
from profiler.report.model import Cell
from profiler.report.wording import sides
from profiler.results import Diff

MOST_OPS = 2000
OPS_BUDGET_BYTES = 1_500_000  # the whole page stays under 2.5 MB
ROW_BYTES = 420  # tags and figures of a row, without its names
NAME_WIDTH = 120
DETAIL_WIDTH = 240


@dataclass(frozen=True, slots=True)
class OpRow:
    """One row: what is shown, what unfolds under it, and the raw figures that sorting uses."""

    match: str
    baseline: str | None
    optimized: str | None
    where: str
    details: tuple[tuple[str, str], ...]
    cells: tuple[Cell, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OpTable:
    """The rows that the page holds; ``counts`` of each kind of match among them, ``hidden`` says what is left out."""

    rows: tuple[OpRow, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]
    hidden: str | None


def op_table(diff: Diff) -> OpTable:
    """The largest changes first; rows stop where the budget does."""
    records = diff.ops.head(MOST_OPS).to_dicts()
    time, _ = diff_tables.op_scales(records)
    time = replace(time, decimals=max(time.decimals, 2))  # most of thousands of rows are small
    rows: list[OpRow] = []
    used = 0
    for record in records:
        row = _row(record, time)
        # As the page will hold it: escaped and in UTF-8.
        texts = [row.baseline, row.optimized, row.where, *(text for pair in row.details for text in pair)]
        used += ROW_BYTES + sum(len(escape(text).encode()) for text in texts if text)
        if used > OPS_BUDGET_BYTES:
            break
        rows.append(row)
    return OpTable(tuple(rows), _columns(diff, time), tuple(_counts(rows)), _hidden(diff, len(rows), time))


def _hidden(diff: Diff, shown: int, time: units.Scale) -> str | None:
    hidden = diff.ops.height - shown
    if not hidden:
        return None
    rest = float(diff.ops["delta_time_ps"].tail(hidden).sum() or 0.0)
    return f"{hidden} more rows, net {time.delta(rest)} {time.unit}, are in the JSON and CSV output"


def _columns(diff: Diff, time: units.Scale) -> tuple[str, ...]:
    base, opt = (" (est.)" if side.kind == "compiled" else "" for _, side in sides(diff))
    either = base or opt
    return (
        f"baseline {time.unit}{base}",
        f"optimized {time.unit}{opt}",
        f"Δ {time.unit}{either}",
        "calls",
        f"mean{either}",
    )


def _row(record: dict[str, Any], time: units.Scale) -> OpRow:
    cells = diff_tables.op_cells(record, time, units.time_scale((record["optimized_mean_ps"],)))
    base, opt = record["baseline_op"], record["optimized_op"]
    details = [("scopes", record.get("name_stack")), ("source", record.get("source")), ("", record.get("evidence"))]
    if record["match"] not in ("added", "removed"):
        details[2] = ("matched by", details[2][1])
    else:
        details.pop()
    values = (
        (record["baseline_time_ps"] or 0.0) / time.divisor,
        (record["optimized_time_ps"] or 0.0) / time.divisor,
        (record["delta_time_ps"] or 0.0) / time.divisor,
        record["optimized_calls"] or record["baseline_calls"] or 0.0,
        record["optimized_mean_ps"] or record["baseline_mean_ps"] or 0.0,
    )
    return OpRow(
        match=str(record["match"]),
        baseline=units.shorten(base, NAME_WIDTH) if base else None,
        optimized=units.shorten(opt, NAME_WIDTH) if opt and opt != base else None,
        where=units.shorten(cells[1].under or "", NAME_WIDTH),
        details=tuple((title, units.shorten(str(text), DETAIL_WIDTH)) for title, text in details if text),
        cells=(*cells[2:6], Cell(_means(record["baseline_mean_ps"], record["optimized_mean_ps"]))),
        values=tuple(float(f"{value:.6g}") for value in values),
    )


def _means(base: float | None, opt: float | None) -> str:
    """Mean times in a unit of their own: a loop is called for seconds, a copy for nanoseconds."""
    scale = units.time_scale((base, opt))

    def one(value: float | None, unit: bool = True) -> str:
        if not value:
            return "–" if value is None else "0"
        return f"{scale.show(value)} {scale.unit}" if unit else scale.show(value)

    if one(base) == one(opt):
        return one(opt)
    return f"{one(base, unit=not opt)} → {one(opt)}"


def _counts(rows: Sequence[OpRow]) -> list[tuple[str, int]]:
    counts = dict.fromkeys(diff_tables.MATCH_TONES, 0)
    for row in rows:
        counts[row.match] = counts.get(row.match, 0) + 1
    return [(match, count) for match, count in counts.items() if count]
