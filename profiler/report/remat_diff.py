"""Re-runs of both sides beside each other: what runs again, its communication, and what is kept instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import polars as pl

from profiler.report import units
from profiler.report.diff_tables import pair
from profiler.report.html_kpis import Card
from profiler.report.model import DIM, STRONG, Cell, Column, Table, label, name
from profiler.results_efficiency import KeptTensor, RematReport, RerunCollective, RerunRow

Row = TypeVar("Row")
Sides = tuple[Row | None, Row | None]


def _pairs(base: Iterable[Row], opt: Iterable[Row], key: Callable[[Row], Hashable]) -> list[Sides[Row]]:
    """Rows of both sides with equal keys, in the order of appearance; equal keys of one side in their order."""
    found: dict[Hashable, list[Row | None]] = {}
    for side, rows in enumerate((base, opt)):
        seen: Counter[Hashable] = Counter()
        for row in rows:
            each = key(row)
            found.setdefault((each, seen[each]), [None, None])[side] = row
            seen[each] += 1
    return [(left, right) for left, right in found.values()]


def _first(rows: Sides[Row]) -> Row:
    found = rows[0] if rows[0] is not None else rows[1]
    assert found is not None
    return found


def cards(base: RematReport, opt: RematReport) -> list[Card]:
    """Time that goes into re-runs, as a share of each side's step; nothing where neither side has any."""
    both = base, opt
    if not any(side.rerun_calls_per_step or side.rerun_time_ps_per_step for side in both):
        return []
    estimated = " (est.)" if any(side.kind == "compiled" for side in both) else ""
    scale = units.time_scale(side.rerun_time_ps_per_step for side in both)
    calls = " → ".join(units.number(side.rerun_calls_per_step) for side in both)
    found = Card(
        f"re-runs, share of the {base.unit}{estimated}",
        units.percent(base.fraction),
        units.percent(opt.fraction),
        f"{units.points(100 * (opt.fraction - base.fraction), 1)} points",
        note=f"{' → '.join(scale.show(side.rerun_time_ps_per_step) for side in both)} {scale.unit}, {calls} calls",
    )
    return [found]


def reruns_table(base: RematReport, opt: RematReport) -> Table:
    """What runs again, by scope of the model and family; most time on either side first."""

    def time(row: RerunRow | None) -> float:
        return row.time_ps_per_step if row else 0.0

    def work(row: RerunRow) -> Hashable:
        return row.scope, row.family

    rows = _pairs(base.ops, opt.ops, work)
    rows.sort(key=lambda each: -max(map(time, each)))
    scale = units.time_scale(time(row) for each in rows for row in each)
    return Table(
        "What runs again, by scope",
        (
            Column("scope", numeric=False),
            Column("family", numeric=False),
            Column(f"calls/{base.unit}"),
            Column("calls/layer", minor=True),
            *(Column(f"{title} {scale.unit}{_estimated(side)}") for title, side in _titled(base, opt)),
            Column("of the step"),
        ),
        tuple(
            (
                name(_first(each).scope),
                label(_first(each).family),
                label(pair(*(row.calls_per_step if row else 0 for row in each))),
                label(_per_layer(each)),
                *(label(scale.show(time(row)) if row else "–") for row in each),
                label(_joined(units.percent(row.fraction) if row else "–" for row in each)),
            )
            for each in rows
        ),
        total=(
            label("sum", STRONG),
            label(""),
            label(pair(*(sum(row.calls_per_step for row in side.ops) for side in (base, opt))), STRONG),
            label(""),
            *(label(scale.show(sum(map(time, side.ops))), STRONG) for side in (base, opt)),
            label(_joined(units.percent(sum(row.fraction for row in side.ops)) for side in (base, opt)), STRONG),
        ),
        caption=f"exclusive time per device and {base.unit}, of each side's own {base.unit}",
    )


def _per_layer(rows: Sides[RerunRow]) -> str:
    if any(row is not None and row.calls_per_layer is None for row in rows):
        return units.UNKNOWN
    return pair(*(row.calls_per_layer if row else 0 for row in rows))


def reruns_frame(base: RematReport, opt: RematReport) -> pl.DataFrame:
    """What runs again with the names of its ops: ``side``, then the fields of RerunRow; ``ops`` in one text."""
    rows = [
        (title, row.scope, row.family, row.calls_per_step, row.calls_per_layer, row.time_ps_per_step, row.fraction,
         ", ".join(row.ops))
        for title, side in _titled(base, opt)
        for row in side.ops
    ]  # fmt: skip
    texts = dict.fromkeys(("side", "scope", "family"), pl.String)
    numbers = dict.fromkeys(("calls_per_step", "calls_per_layer", "time_ps_per_step", "fraction"), pl.Float64)
    return pl.DataFrame(rows, schema={**texts, **numbers, "ops": pl.String}, orient="row")


def collectives_table(base: RematReport, opt: RematReport) -> Table:
    """Communication that runs again on either side."""
    rows = _pairs(base.collectives, opt.collectives, lambda row: (row.family, row.scope))
    scale = units.time_scale(row.exposed_time_ps_per_step for each in rows for row in each if row)
    words = {True: "yes", False: "no", None: units.UNKNOWN}

    def needed(row: RerunCollective | None) -> str:
        return words[row.needed_by_backward] if row else "–"

    return Table(
        "Communication that runs again",
        (
            Column("collective", numeric=False),
            Column("scope", numeric=False),
            Column(f"calls/{base.unit}"),
            *(Column(f"{title} {scale.unit}{_estimated(side)}") for title, side in _titled(base, opt)),
            Column("backward needs it", numeric=False),
        ),
        tuple(
            (
                label(_first(each).family),
                name(_first(each).scope),
                label(pair(*(row.calls_per_step if row else 0 for row in each))),
                *(label(scale.show(row.exposed_time_ps_per_step) if row else "–") for row in each),
                label(_joined(needed(row) for row in each if row)),
            )
            for each in rows
        ),
        caption="exposed time; what the backward pass needs itself would be gathered again whatever is kept",
    )


def kept_table(base: RematReport, opt: RematReport) -> Table:
    """What the loops over layers keep for the backward pass, on either side."""
    rows = _pairs(base.kept, opt.kept, lambda row: row.tensor)
    size = units.byte_scale(row.bytes for each in rows for row in each if row)

    def shown(row: KeptTensor | None) -> str:
        return size.show(row.bytes) if row else "not kept"

    def text(rows: Sides[KeptTensor], of: Callable[[KeptTensor], str]) -> Cell:
        texts = list(dict.fromkeys(of(row) for row in rows if row))
        return Cell(texts[0], DIM, name=True, to=texts[1] if len(texts) > 1 else None)

    return Table(
        "Kept for the backward pass now",
        (
            Column("tensor", numeric=False),
            *(Column(f"{title} {size.unit}") for title in ("baseline", "optimized")),
            Column("in", numeric=False),
            Column("shape", numeric=False),
        ),
        tuple(
            (
                name(_first(each).tensor, STRONG if None in each else ""),
                *(label(shown(row)) for row in each),
                text(each, lambda row: f"{row.memory} memory"),
                text(each, lambda row: row.shape),
            )
            for each in rows
        ),
        caption="per device, all layers",
    )


def _joined(texts: Iterable[str]) -> str:
    return " → ".join(dict.fromkeys(texts))


def _titled(base: RematReport, opt: RematReport) -> tuple[tuple[str, RematReport], tuple[str, RematReport]]:
    return ("baseline", base), ("optimized", opt)


def _estimated(side: RematReport) -> str:
    return " (est.)" if side.kind == "compiled" else ""
