"""HBM in a diff: both static peaks by group, and the tensors that came, went or changed."""

from __future__ import annotations

from profiler.report import units
from profiler.report.memory_view import OUTSIDE, SMALL, group_text
from profiler.report.model import (
    ALL_ROWS,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Line,
    Table,
    capped,
    delta,
    label,
    limit,
    name,
)
from profiler.results import Diff, MemoryDelta, MemoryTensorDelta

DEFAULT_CHANGES = 12


def memory_blocks(diff: Diff, top: int | None) -> list[Block]:
    """The tables of a diff; none where a side has no static peak."""
    found = diff.memory
    if found is None:
        return []
    if not any(row.baseline_bytes != row.optimized_bytes for row in found.groups):
        return [Line("HBM at the static peak: the same on both sides, group by group.", DIM)]
    most = limit(top, DEFAULT_CHANGES)
    changes = _changes(found)
    return [groups_table(found), changes if most is None else capped(changes, most, ALL_ROWS)]


def groups_table(found: MemoryDelta) -> Table:
    """Both static peaks by group, with what packing loses and what is left below the limit."""
    sums = [sum(row.baseline_bytes for row in found.groups), sum(row.optimized_bytes for row in found.groups)]
    scale = units.byte_scale(sums)

    def cells(base: int | None, opt: int | None, lower_is_better: bool = True) -> tuple[Cell, ...]:
        change = opt - base if base is not None and opt is not None else None
        return label(scale.show(base)), label(scale.show(opt)), delta(scale.delta(change), change, lower_is_better)

    ordered = sorted(found.groups, key=lambda row: -abs(row.optimized_bytes - row.baseline_bytes))
    rows = [
        (label(row.group), *cells(row.baseline_bytes, row.optimized_bytes))
        for row in ordered
        if max(row.baseline_bytes, row.optimized_bytes) >= SMALL * max(sums)
    ]
    lost = (found.baseline_fragmentation_bytes, found.optimized_fragmentation_bytes)
    room = (found.baseline_headroom_bytes, found.optimized_headroom_bytes)
    beside = [(label("fragmentation, on top", DIM), *cells(*lost))]
    if room != (None, None):
        beside.append((label("headroom to the limit", DIM), *cells(*room, lower_is_better=False)))
    return Table(
        "HBM at the peak",
        (Column("group", numeric=False), *(Column(f"{title} {scale.unit}") for title in ("base", "opt", "Δ"))),
        (*rows, *beside),
        total=(label("sum of the groups = static peak", STRONG), *cells(sums[0], sums[1])),
        caption="the static peak of each side's largest program; groups too small to show are in the sum",
    )


def _changes(found: MemoryDelta) -> Table:
    scale = units.byte_scale(value for row in found.tensors for value in (row.baseline_bytes, row.optimized_bytes))
    shown = [row for row in found.tensors if scale.delta(row.optimized_bytes - row.baseline_bytes).strip("0.+−")]
    hidden = len(found.tensors) - len(shown)
    return Table(
        "Tensors at the peak that came, went or changed",
        (
            Column("", numeric=False),
            Column("tensor", numeric=False),
            Column("group", numeric=False),
            Column("shape", numeric=False, minor=True),
            *(Column(f"{title} {scale.unit}") for title in ("base", "opt", "Δ")),
        ),
        tuple(_change_row(row, scale) for row in shown),
        caption=f"{hidden} more changed by too little to show" if hidden else None,
    )


def _change_row(row: MemoryTensorDelta, scale: units.Scale) -> tuple[Cell, ...]:
    change = row.optimized_bytes - row.baseline_bytes
    base, opt = row.baseline_shape, row.optimized_shape
    both = base and opt and base != opt
    return (
        label(row.change),
        name(row.tensor or f"unnamed, {row.stack or OUTSIDE}"),
        label(group_text(row.group, row.part)),
        Cell(base or opt or "–", name=True, to=opt if both else None),
        label(scale.show(row.baseline_bytes)),
        label(scale.show(row.optimized_bytes)),
        delta(scale.delta(change), change),
    )
