"""Tables that set both sides' steps beside each other: families, kernels, re-runs.

They count per step, whatever the diff is normalised by: how often a kernel runs in a step is the question here. Where
the step does another amount of work on each side, a longer time is not worse, and no cell is toned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from profiler.report import units
from profiler.report.diff_tables import pair
from profiler.report.kernels_diff import tile_changes
from profiler.report.model import DIM, STRONG, Cell, Column, Table, delta, label
from profiler.report.wording import kernel_caption, kernel_title, sides
from profiler.results import Diff, FamilyRow, KernelRow, RematFamily

Row = TypeVar("Row")


def _merged(diff: Diff, rows: Callable[[int], Iterable[Row]], key: Callable[[Row], Hashable]) -> list[list[Row | None]]:
    """Rows of both sides with equal keys, in the order in which they are first met."""
    found: dict[Hashable, list[Row | None]] = {}
    for side in (0, 1):
        for row in rows(side):
            found.setdefault(key(row), [None, None])[side] = row
    return list(found.values())


def _counts(calls: Iterable[float | None]) -> str:
    """Calls of both sides, 0 for a side without the row; a dash where nothing is counted, as for idle."""
    base, opt = calls
    return pair(base, opt) if base is not None and opt is not None else pair(base or None, opt or None)


def _change(diff: Diff, scale: units.Scale, base: float, opt: float) -> Cell:
    cell = delta(scale.delta(opt - base), opt - base)
    return cell if diff.normalization in ("step", "run") else label(cell.text)


def families_table(diff: Diff) -> Table:
    """Where each side's step goes, by family and phase; shares need no normalisation."""
    both = [side for _, side in sides(diff)]

    def key(row: FamilyRow) -> Hashable:
        return row.category, row.family, row.phase

    def times(rows: list[FamilyRow | None]) -> tuple[float, float]:
        base, opt = (row.time_ps_per_step if row else 0.0 for row in rows)
        return base, opt

    ordered = sorted(_merged(diff, lambda side: both[side].families, key), key=lambda rows: -max(times(rows)))
    scale = units.time_scale(time for rows in ordered for time in times(rows))
    unit = diff.baseline.steps.unit
    body = []
    for rows in ordered:
        first = next(row for row in rows if row is not None)
        base, opt = times(rows)
        body.append(
            (
                label(first.family),
                label(first.phase or "–", DIM),
                label(first.category, DIM),
                label(_counts(row.calls_per_step if row else 0 for row in rows)),
                label(scale.show(base)),
                label(scale.show(opt)),
                _change(diff, scale, base, opt),
                *(label(units.percent(row.fraction if row else 0.0)) for row in rows),
            )
        )
    totals = [sum(row.time_ps_per_step for row in side.families) for side in both]
    return Table(
        f"Where the {unit} goes",
        (
            *(Column(title, numeric=False, minor=title == "kind") for title in ("family", "phase", "kind")),
            Column("calls"),
            *(Column(f"{title} {scale.unit}") for title in ("baseline", "optimized", "Δ")),
            *(Column(f"{title} share") for title in ("baseline", "optimized")),
        ),
        tuple(body),
        total=(
            label("sum", STRONG),
            *(label("") for _ in range(3)),
            *(label(scale.show(total), STRONG) for total in totals),
            _change(diff, scale, *totals),
            *(label(units.percent(sum(row.fraction for row in side.families)), STRONG) for side in both),
        ),
        caption=f"exclusive time per device and {unit}; overlapped communication counts as the compute that hides it",
        folded=True,
    )


def kernels_table(diff: Diff) -> Table:
    """Custom kernels of both sides: calls per step and per layer, mean time, time per step."""
    both = [side for _, side in sides(diff)]

    def key(row: KernelRow) -> Hashable:
        return row.kernel, row.phase

    def time(row: KernelRow | None) -> float:
        return row.time_ps_per_step if row else 0.0

    ordered = sorted(_merged(diff, lambda side: both[side].kernels, key), key=lambda rows: -max(map(time, rows)))
    mean = units.time_scale(row.mean_time_ps for rows in ordered for row in rows if row)
    total = units.time_scale(time(row) for rows in ordered for row in rows)
    unit = diff.baseline.steps.unit
    body = []
    for rows in ordered:
        first = next(row for row in rows if row is not None)
        means = [mean.show(row.mean_time_ps) if row else "–" for row in rows]
        body.append(
            (
                Cell(kernel_title(first.kernel, first.family), name=True, under=_under(first, rows)),
                label(first.phase or "–", DIM),
                label(_counts(row.calls_per_step if row else 0 for row in rows)),
                label(_counts(row.calls_per_layer if row else 0 for row in rows)),
                label(means[0] if means[0] == means[1] else " → ".join(means)),
                label(total.show(time(rows[0]))),
                label(total.show(time(rows[1]))),
                _change(diff, total, time(rows[0]), time(rows[1])),
                label(pair(*(row.tflops_per_s if row else None for row in rows))),
                label(" → ".join(dict.fromkeys(units.percent(row.peak_fraction, 0) if row else "–" for row in rows))),
            )
        )
    return Table(
        "Kernels",
        (
            *(Column(title, numeric=False) for title in ("kernel", "phase")),
            Column(f"calls/{unit}"),
            Column("calls/layer", minor=True),
            Column(f"mean {mean.unit}"),
            *(Column(f"{title} {total.unit}", minor=title != "Δ") for title in ("baseline", "optimized", "Δ")),
            Column("TFLOP/s", minor=True),
            Column("of peak"),
        ),
        tuple(body),
        caption=f"per device and {unit}: {kernel_caption(unit)}",
        folded=True,
    )


def _under(row: KernelRow, rows: list[KernelRow | None]) -> str | None:
    """The tiles that differ, and the kernel's own name where its title is another."""
    own = None if kernel_title(row.kernel, row.family).startswith(row.kernel) else row.kernel
    return "; ".join(text for text in (_tiles(rows), own) if text) or None


def _tiles(rows: list[KernelRow | None]) -> str | None:
    """The tiles that differ, in a line."""
    base, opt = rows
    changes = tile_changes(base, opt) if base and opt else []
    return ", ".join(f"{key} {before} → {after}" for key, before, after in changes) or None


def rerun_table(diff: Diff) -> Table:
    """What rematerialisation runs again on each side, by family."""
    both = [side for _, side in sides(diff)]

    def key(row: RematFamily) -> Hashable:
        return row.family

    def time(row: RematFamily | None) -> float:
        return row.time_ps_per_step if row else 0.0

    ordered = sorted(_merged(diff, lambda side: both[side].remat.by_family, key), key=lambda r: -max(map(time, r)))
    scale = units.time_scale(time(row) for rows in ordered for row in rows)
    unit = diff.baseline.steps.unit
    body = []
    for rows in ordered:
        first = next(row for row in rows if row is not None)
        cells = [label(scale.show(time(row))) for row in rows]
        calls = label(_counts(row.calls_per_step if row else 0 for row in rows))
        body.append((label(first.family), calls, *cells, _change(diff, scale, time(rows[0]), time(rows[1]))))
    return Table(
        "Re-run by rematerialisation",
        (
            Column("family", numeric=False),
            Column(f"calls/{unit}"),
            *(Column(f"{title} {scale.unit}") for title in ("baseline", "optimized", "Δ")),
        ),
        tuple(body),
        folded=True,
    )
