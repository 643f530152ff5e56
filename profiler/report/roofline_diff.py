"""Rooflines of both sides beside each other: the roof and how far each side is from it, and where the time is lost."""

from __future__ import annotations

from collections.abc import Iterable

from profiler.report import units
from profiler.report.diff_tables import pair
from profiler.report.model import DIM, STRONG, Column, Table, label
from profiler.report.roofline_view import bound_text, facts
from profiler.results_efficiency import RoofFamily, Roofline

Sides = tuple[RoofFamily | None, RoofFamily | None]


def verdict(base: Roofline, opt: Roofline) -> str | None:
    """What of the compute time is beyond the roof on either side; None where neither has one."""
    if not any(side.ridge_flops_per_byte for side in (base, opt)):
        return None
    est = " (est.)" if "compiled" in (base.kind, opt.kind) else ""
    return f"Compute beyond the roof, per {base.unit}: {_joined(map(_beyond, (base, opt)))}{est}."


def _beyond(side: Roofline) -> str:
    told = [row for row in side.ops if row.roof_time_ps_per_step is not None]
    time = sum(row.time_ps_per_step for row in told)
    if not time:
        return units.UNKNOWN
    wasted = sum(row.wasted_time_ps_per_step or 0.0 for row in told)
    return f"{units.duration(wasted)} of {units.duration(time)} ({units.percent(wasted / time)})"


def fact_rows(base: Roofline, opt: Roofline) -> list[tuple[str, str, str]]:
    """What it is, the baseline's, the optimized side's; without the files."""
    left, right = ({key: cell.text for key, cell in facts(side) if key != "file"} for side in (base, opt))
    return [(key, left.get(key, "–"), right.get(key, "–")) for key in dict.fromkeys((*left, *right))]


def families_table(base: Roofline, opt: Roofline) -> Table:
    """Compute by family and phase: bound, distance to the roof and wasted time of both sides; most wasted first."""
    left, right = ({(row.family, row.phase): row for row in side.families} for side in (base, opt))
    rows: list[Sides] = [(left.get(key), right.get(key)) for key in dict.fromkeys((*left, *right))]
    rows.sort(key=lambda each: (-max(map(_wasted, each)), -max(map(_time, each))))
    time = units.time_scale(_time(row) for each in rows for row in each)
    compiled = any(side.kind == "compiled" for side in (base, opt))
    est = " (est.)" if compiled else ""
    return Table(
        "Compute by family, most wasted time first",
        (
            Column("family", numeric=False),
            Column("phase", numeric=False),
            Column(f"calls/{base.unit}", minor=True),
            Column(f"time {time.unit}{est}"),
            Column("bound", numeric=False),
            Column("of roof"),
            Column(f"baseline wasted {time.unit}{est}"),
            Column(f"optimized wasted {time.unit}{est}"),
        ),
        tuple(
            (
                label(first.family),
                label(first.phase or "–", DIM),
                label(pair(*(row.calls_per_step if row else 0 for row in each))),
                label(_joined(time.show(row.time_ps_per_step) if row else "–" for row in each)),
                label(_joined(bound_text(row) for row in each if row)),
                label(_joined(units.percent(row.roof_fraction, 0) if row else "–" for row in each)),
                *(label(time.show(row.wasted_time_ps_per_step) if row else "–", STRONG) for row in each),
            )
            for each in rows
            for first in (each[0] or each[1],)
            if first is not None
        ),
        total=(
            label("sum", STRONG),
            *(label("") for _ in range(2)),
            label(_joined(time.show(sum(row.time_ps_per_step for row in side.families)) for side in (base, opt))),
            *(label("") for _ in range(2)),
            *(label(time.show(_total(side)), STRONG) for side in (base, opt)),
        ),
        caption=(
            f"per device and {base.unit}, of each side's own {base.unit}: calls from start to end; wasted: time − "
            "roofline time; of roof: the rest"
        ),
    )


def _time(row: RoofFamily | None) -> float:
    return row.time_ps_per_step if row else 0.0


def _wasted(row: RoofFamily | None) -> float:
    return (row.wasted_time_ps_per_step or 0.0) if row else 0.0


def _total(side: Roofline) -> float | None:
    known = [row.wasted_time_ps_per_step for row in side.families if row.wasted_time_ps_per_step is not None]
    return sum(known) if known else None


def _joined(texts: Iterable[str]) -> str:
    return " → ".join(dict.fromkeys(texts))
