"""What ``profiler remat`` says: what runs again, and what keeping a tensor would cost and save."""

from __future__ import annotations

from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Line,
    Notes,
    Table,
    capped,
    label,
    limit,
    name,
)
from profiler.report.summary_view import ESTIMATE
from profiler.results_efficiency import KeepOption, RematReport

DEFAULT_ROWS = 20


def remat_document(report: RematReport, top: int | None = None) -> Document:
    """The report as blocks.

    Args:
        report: of one recording.
        top: rows per table; None for the default, 0 for all.
    """
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Facts(_facts(report))]
    if report.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    tables = [
        table for table in (options_table(report), _ops(report), _collectives(report), _kept(report)) if table.rows
    ]
    blocks.extend(table if rows is None else capped(table, rows, ALL_ROWS) for table in tables)
    blocks.append(Notes("Warnings", report.warnings))
    return Document(f"profiler remat: {report.label}", tuple(blocks))


def _facts(report: RematReport) -> tuple[tuple[str, Cell], ...]:
    calls, time = units.number(report.rerun_calls_per_step), units.duration(report.rerun_time_ps_per_step)
    again = f"{time} of {units.duration(report.step_time_ps)} ({units.percent(report.fraction)}), {calls} calls"
    facts = [
        ("file", name(report.file)),
        ("runs again", label(again if report.rerun_calls_per_step else "nothing seen", STRONG)),
        ("layers", label(units.number(report.layers) if report.layers else f"{units.UNKNOWN} (`layers` in --config)")),
    ]
    free, used, capacity = room(report), report.static_allocated_bytes, report.capacity_bytes
    if free is not None:
        text = f"{units.size(free)}: the plan allocates {units.size(used)} of {units.size(capacity)}"
        facts.append(("HBM free", label(text)))
    return tuple(facts)


def room(report: RematReport) -> int | None:
    """What the plan leaves, gaps of packing counted: the same as the headroom of ``profiler memory``."""
    used, capacity = report.static_allocated_bytes, report.capacity_bytes
    return capacity - used if used and capacity else None


def options_table(report: RematReport) -> Table:
    """What keeping each tensor would cost and save."""
    rows = report.options
    time = units.time_scale(each for row in rows for each in (row.saved_time_ps_per_step, row.still_time_ps_per_step))
    free = room(report)
    size = units.byte_scale(row.bytes for row in rows)
    return Table(
        "What keeping a tensor would cost and save",
        (
            Column("tensor", numeric=False),
            Column(f"HBM {size.unit}"),
            Column(f"saves {time.unit}"),
            Column("of step"),
            Column(f"saves {time.unit}/GiB"),
            Column(f"inputs still {time.unit}"),
        ),
        tuple(
            (
                label(row.tensor),
                _size(row, size, free),
                label(time.show(row.saved_time_ps_per_step), STRONG),
                label(units.percent(row.saved_fraction)),
                label(_per_gib(row, time)),
                label(time.show(row.still_time_ps_per_step), DIM),
            )
            for row in rows
        ),
        caption=(
            "per device, all layers, without padding; saves: re-run ops that nothing else needs; inputs still: what "
            "makes the tensor and runs again all the same, for something else; a new compile may differ"
            + ("; !: more than the free HBM" if any(_is_too_large(row, free) for row in rows) else "")
        ),
    )


def _is_too_large(row: KeepOption, free: float | None) -> bool:
    return row.bytes is not None and free is not None and row.bytes > free


def _size(row: KeepOption, size: units.Scale, free: float | None) -> Cell:
    text = size.show(row.bytes)
    return label(f"{text} !", BAD) if _is_too_large(row, free) else label(text)


def _per_gib(row: KeepOption, time: units.Scale) -> str:
    return units.number(row.saved_time_ps_per_step / time.divisor / (row.bytes / units.GIB), 3) if row.bytes else "n/a"


def _ops(report: RematReport) -> Table:
    rows = report.ops
    time = units.time_scale(row.time_ps_per_step for row in rows)
    return Table(
        "What runs again",
        (
            Column("scope", numeric=False),
            Column("family", numeric=False),
            Column("calls"),
            Column("/layer"),
            Column(f"{time.unit}/{report.unit}"),
            Column("share"),
        ),
        tuple(
            (
                name(row.scope),
                label(row.family),
                label(units.number(row.calls_per_step)),
                label(units.number(row.calls_per_layer, 3)),
                label(time.show(row.time_ps_per_step)),
                label(units.percent(row.fraction)),
            )
            for row in rows
        ),
        total=(
            label("sum", STRONG),
            label(""),
            label(units.number(sum(row.calls_per_step for row in rows)), STRONG),
            label(""),
            label(time.show(sum(row.time_ps_per_step for row in rows)), STRONG),
            label(units.percent(sum(row.fraction for row in rows)), STRONG),
        ),
        caption=f"exclusive time per device and {report.unit}",
    )


def _collectives(report: RematReport) -> Table:
    rows = report.collectives
    time = units.time_scale(row.exposed_time_ps_per_step for row in rows)
    words = {True: "yes", False: "no", None: units.UNKNOWN}
    return Table(
        "Communication that runs again",
        (
            Column("collective", numeric=False),
            Column("scope", numeric=False),
            Column("calls"),
            Column(f"exposed {time.unit}"),
            Column("backward needs it", numeric=False),
        ),
        tuple(
            (
                label(row.family),
                name(row.scope),
                label(units.number(row.calls_per_step)),
                label(time.show(row.exposed_time_ps_per_step)),
                label(words[row.needed_by_backward]),
            )
            for row in rows
        ),
        caption="what the backward pass needs itself would be gathered again whatever activations are kept",
    )


def _kept(report: RematReport) -> Table:
    rows = report.kept
    size = units.byte_scale(row.bytes for row in rows)
    return Table(
        "Kept for the backward pass now",
        (
            Column("tensor", numeric=False),
            Column("shape", numeric=False),
            Column(size.unit),
            Column("in", numeric=False),
        ),
        tuple((name(row.tensor), name(row.shape), label(size.show(row.bytes)), label(row.memory, DIM)) for row in rows),
    )
