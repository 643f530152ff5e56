"""The tables of a diff: the exact split of the change, the matched ops, both sides' families."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from profiler.report import units
from profiler.report.model import BAD, DIM, GOOD, PLAIN, STRONG, Cell, Column, Table, delta, label
from profiler.report.summary_view import mfu_text
from profiler.report.wording import basis, contribution_label, in_points
from profiler.results import Contribution, Diff

MATCH_TONES = {"same": DIM, "changed": PLAIN, "replaced": STRONG, "added": BAD, "removed": GOOD}


def contributions_table(diff: Diff, rows: int | None) -> Table:
    """The exact split of the delta, largest part first; the last rows sum what is not shown and everything."""
    points = in_points(diff)
    # A category that took no time on either side says nothing.
    present = [
        item for item in diff.contributions if item.baseline_time_ps or item.optimized_time_ps or item.mfu_points
    ]
    ordered = sorted(present, key=lambda item: -abs(weight(item, points)))
    shown, hidden = ordered[:rows], ordered[rows:] if rows is not None else []
    times = [time for item in ordered for time in (item.baseline_time_ps, item.optimized_time_ps)]
    scale = units.time_scale(times)
    parts = [_contribution_row(item, scale, points) for item in shown]
    if hidden:
        parts.append(_sum_row(f"{len(hidden)} smaller", hidden, scale, points, DIM))
    gain = ("points", "= calls", "+ per call") if points else ("= calls", "+ per call")
    return Table(
        "What the change is made of" + (", in MFU points" if points else ", in time"),
        (
            Column("family · phase", numeric=False),
            Column(f"base {scale.unit}"),
            Column(f"opt {scale.unit}"),
            Column(f"Δ {scale.unit}"),
            Column("calls"),
            *(Column(title) for title in gain),
        ),
        tuple(parts),
        total=_sum_row("sum = delta", ordered, scale, points, STRONG),
        caption=f"exclusive time {basis(diff)}; {_convention(diff)}{_noise(shown)}",
    )


def _noise(items: Iterable[Contribution]) -> str:
    return "; ~: within the noise of its own steps" if any(item.significant is False for item in items) else ""


def _convention(diff: Diff) -> str:
    if in_points(diff):
        return "points sum to the MFU delta exactly"
    if diff.delta.mfu_points is not None:
        return f"in time: normalised per {diff.normalization}, so the MFU delta is not split"
    return f"in time, since MFU is unknown ({mfu_text(diff.baseline).removeprefix('n/a: ')})"


def weight(item: Contribution, in_points: bool) -> float:
    """The size of a contribution in the unit of the split."""
    return (item.mfu_points or 0.0) if in_points else item.time_ps


def _contribution_row(item: Contribution, scale: units.Scale, in_points: bool) -> tuple[Cell, ...]:
    change = item.optimized_time_ps - item.baseline_time_ps
    cell = delta(scale.delta(change), change)
    parts = _split_cells(item.mfu_points, item.calls_points, item.per_call_points, item, scale, in_points)
    if item.significant is False:
        cell = Cell(f"~{cell.text}", DIM)
        parts = tuple(Cell(each.text, DIM) for each in parts)
    return (
        label(contribution_label(item)),
        label(scale.show(item.baseline_time_ps)),
        label(scale.show(item.optimized_time_ps)),
        cell,
        label(pair(item.baseline_calls, item.optimized_calls)),
        *parts,
    )


def _split_cells(
    points: float | None,
    calls: float | None,
    per_call: float | None,
    item: Contribution | None,
    scale: units.Scale,
    in_points: bool,
) -> tuple[Cell, ...]:
    if in_points:
        return tuple(delta(units.points(value), value, lower_is_better=False) for value in (points, calls, per_call))
    times = (item.calls_time_ps, item.per_call_time_ps) if item else (calls or 0.0, per_call or 0.0)
    return tuple(delta(scale.delta(value), value) for value in times)


def _sum_row(
    title: str, items: Iterable[Contribution], scale: units.Scale, in_points: bool, tone: str
) -> tuple[Cell, ...]:
    items = list(items)
    base, opt = (sum(item.baseline_time_ps for item in items), sum(item.optimized_time_ps for item in items))
    if in_points:
        calls = sum(item.calls_points or 0.0 for item in items)
        per_call = sum(item.per_call_points or 0.0 for item in items)
    else:
        calls, per_call = sum(item.calls_time_ps for item in items), sum(item.per_call_time_ps for item in items)
    points = sum(item.mfu_points or 0.0 for item in items)
    return (
        label(title, tone),
        label(scale.show(base), tone),
        label(scale.show(opt), tone),
        delta(scale.delta(opt - base), opt - base),
        label(""),
        *_split_cells(points, calls, per_call, None, scale, in_points),
    )


def pair(base: float | None, opt: float | None) -> str:
    """ "96 → 48"; one number where nothing changed; a dash for a side that has none."""
    left, right = ("–" if value is None else units.number(value) for value in (base, opt))
    return left if left == right else f"{left} → {right}"


def ops_table(diff: Diff, rows: int | None) -> Table:
    """The ops that changed most, matched across the two compiles."""
    frame = diff.ops
    shown = frame.head(rows if rows is not None else frame.height).to_dicts()
    scale, mean = op_scales(shown)
    hidden = frame.height - len(shown)
    rest = float(frame["delta_time_ps"].tail(hidden).sum() or 0) if hidden else 0.0
    return Table(
        "Ops that changed most",
        (
            Column("match", numeric=False),
            Column("op", numeric=False),
            Column(f"base {scale.unit}"),
            Column(f"opt {scale.unit}"),
            Column(f"Δ {scale.unit}"),
            Column("calls"),
            Column(f"mean {mean.unit}"),
        ),
        tuple(op_cells(row, scale, mean) for row in shown),
        caption=f"exclusive time {basis(diff)}; rows sum to the device time; calls and mean time apart",
        more=f"{hidden} more rows, net {scale.delta(rest)} {scale.unit} (--top 0 shows all)" if hidden else None,
        folded=True,
    )


def _op_cell(base: str | None, opt: str | None, family: str) -> Cell:
    """One name where both sides agree or only one has the op, else "old → new"; the family under it."""
    both = base and opt and base != opt
    return Cell(base or opt or "–", name=True, to=opt if both else None, under=family or None)


def op_scales(rows: list[dict[str, Any]]) -> tuple[units.Scale, units.Scale]:
    """The units of the op table: for times per unit of work and for means per call."""
    times = [(row[f"{side}_time_ps"] or 0.0) for row in rows for side in ("baseline", "optimized")]
    return units.time_scale(times), units.time_scale(
        row[f"{side}_mean_ps"] for row in rows for side in ("baseline", "optimized")
    )


def op_cells(row: dict[str, Any], scale: units.Scale, mean: units.Scale) -> tuple[Cell, ...]:
    """One matched op: kind of match, names, times, calls, mean time."""
    base, opt = ((value or 0.0) for value in (row["baseline_time_ps"], row["optimized_time_ps"]))
    family = " · ".join(part for part in (row["family"], row["phase"]) if part)
    means = [
        mean.show(value) if value is not None else "–" for value in (row["baseline_mean_ps"], row["optimized_mean_ps"])
    ]
    return (
        label(row["match"], MATCH_TONES.get(row["match"], PLAIN)),
        _op_cell(row["baseline_op"], row["optimized_op"], family),
        label(scale.show(base)),
        label(scale.show(opt)),
        delta(scale.delta(opt - base), opt - base),
        label(pair(row["baseline_calls"], row["optimized_calls"])),
        label(means[0] if means[0] == means[1] else " → ".join(means)),
    )
