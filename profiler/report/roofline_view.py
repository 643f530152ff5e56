"""What ``profiler roofline`` says: where compute stays furthest below what the chip can do."""

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
from profiler.report.summary_view import ESTIMATE, impossible
from profiler.results_efficiency import RoofFamily, Roofline, RoofOp

DEFAULT_ROWS = 15
_NAMED_UNKNOWN = 3


def roofline_document(result: Roofline, top: int | None = None) -> Document:
    """The roofline as blocks.

    Args:
        result: of one recording.
        top: rows per table; None for the default, 0 for all.
    """
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Facts(facts(result))]
    if result.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    tables = [table for table in (_families(result), _ops(result)) if table.rows]
    blocks.extend(table if rows is None else capped(table, rows, ALL_ROWS) for table in tables)
    blocks.append(Notes("Warnings", result.warnings))
    return Document(f"profiler roofline: {result.label}", tuple(blocks))


def facts(result: Roofline) -> tuple[tuple[str, Cell], ...]:
    """The roof, MFU and HFU, and how much of the time has a roof."""
    told = [row for row in result.ops if row.roof_time_ps_per_step is not None]
    time = sum(row.time_ps_per_step for row in told)
    wasted = sum(row.wasted_time_ps_per_step or 0.0 for row in told)
    found = [
        ("file", name(result.file)),
        (result.unit, label(units.duration(result.step_time_ps))),
        ("roof", label(_roof(result))),
        ("MFU", label(units.percent(result.mfu, 2), STRONG)),
        ("HFU", _hfu(result)),
    ]
    if told:
        share = f" ({units.percent(wasted / time)})" if time else ""
        found.append(
            ("compute", label(f"{units.duration(time)}, {units.duration(wasted)}{share} of it beyond the roof"))
        )
    unknown = sorted((row for row in result.ops if row.bound is None), key=lambda row: -row.time_ps_per_step)
    if unknown and told:
        named = ", ".join(f"{row.op} {units.duration(row.time_ps_per_step)}" for row in unknown[:_NAMED_UNKNOWN])
        more = f" and {len(unknown) - _NAMED_UNKNOWN} more" if len(unknown) > _NAMED_UNKNOWN else ""
        total = units.duration(sum(row.time_ps_per_step for row in unknown))
        found.append(("no roof", name(f"{total} in ops whose FLOPs or bytes are unknown: {named}{more}")))
    if result.left_out:
        text = ", ".join(f"{row.category} {units.duration(row.time_ps_per_step)}" for row in result.left_out)
        found.append(("left out", label(f"{text} (exposed)")))
    return tuple(found)


def _roof(result: Roofline) -> str:
    peak = f"{units.number(result.peak_tflops, 5)} TFLOP/s dense bf16" if result.peak_tflops else "peak n/a"
    memory = f"{units.number(result.hbm_bytes_per_s / 1e9)} GB/s HBM" if result.hbm_bytes_per_s else "HBM bandwidth n/a"
    ridge = result.ridge_flops_per_byte
    return f"{peak}, {memory} per device" + (
        f": memory-bound under {units.number(ridge, 3)} FLOP/byte" if ridge else ""
    )


def _hfu(result: Roofline) -> Cell:
    if result.hfu is None:
        return label(units.UNKNOWN)
    text = f"{units.percent(result.hfu, 2)}, re-runs and masked parts of blocks counted"
    if result.hfu_unknown_time_ps:
        unknown = units.duration(result.hfu_unknown_time_ps)
        text = f"at least {text}; nobody counted the FLOPs of {unknown} of ops"
    return label(text, BAD if impossible(result.hfu) else "")


def _families(result: Roofline) -> Table:
    rows = result.families
    time = units.time_scale(row.time_ps_per_step for row in rows)
    return Table(
        "Compute by family, most wasted time first",
        (
            Column("family", numeric=False),
            Column("phase", numeric=False),
            Column(f"{time.unit}/{result.unit}"),
            Column("bound", numeric=False),
            Column("of roof"),
            Column(f"wasted {time.unit}"),
            Column("no roof"),
        ),
        tuple(
            (
                label(row.family),
                label(row.phase or "–", DIM),
                label(time.show(row.time_ps_per_step)),
                label(bound_text(row)),
                _of_roof(row.roof_fraction),
                label(time.show(row.wasted_time_ps_per_step), STRONG),
                label(_unknown(row), DIM),
            )
            for row in rows
        ),
        caption=(
            "calls from start to end; wasted: time − roofline time; of roof: the rest; no roof: share of the time "
            "whose FLOPs or bytes are unknown"
        ),
    )


def bound_text(row: RoofFamily) -> str:
    """What the time of a family is bound by; mixed ones say how much of it is memory-bound."""
    share = row.memory_bound_fraction
    if share is None:
        return units.UNKNOWN
    return "memory" if share > 0.95 else "compute" if share < 0.05 else f"{units.percent(share, 0)} memory"


def _unknown(row: RoofFamily) -> str:
    unknown = row.time_ps_per_step - row.known_time_ps_per_step
    if not row.time_ps_per_step or unknown <= 1e-9 * row.time_ps_per_step:
        return "–"
    return units.percent(unknown / row.time_ps_per_step, 0)


def _of_roof(fraction: float | None) -> Cell:
    text = units.percent(fraction, 0)
    return label(f"{text} !", BAD) if fraction is not None and fraction > 1.02 else label(text)


def _ops(result: Roofline) -> Table:
    rows = [row for row in result.ops if row.bound is not None] or result.ops
    time = units.time_scale(row.time_ps_per_step for row in rows)
    flagged = any((row.roof_fraction or 0.0) > 1.02 for row in rows)
    return Table(
        "Ops, most wasted time first",
        (
            Column("op", numeric=False),
            Column("calls"),
            Column(f"{time.unit}/{result.unit}"),
            Column("bound", numeric=False),
            Column("FLOP/byte"),
            Column("TFLOP/s"),
            Column("GB/s"),
            Column("of roof"),
            Column(f"wasted {time.unit}"),
        ),
        tuple(_op(row, time) for row in rows),
        caption="!: faster than its roof: its bytes are not all HBM traffic, or its FLOPs are wrong"
        if flagged
        else None,
    )


def _op(row: RoofOp, time: units.Scale) -> tuple[Cell, ...]:
    title = f"{row.op} ×{row.instructions}" if row.instructions > 1 else row.op
    return (
        Cell(title, name=True, under=" · ".join(part for part in (row.family, row.phase) if part)),
        label(units.number(row.calls_per_step)),
        label(time.show(row.time_ps_per_step)),
        label(row.bound or units.UNKNOWN),
        label(units.number(row.flops_per_byte, 3)),
        label(units.number(row.tflops_per_s) if row.tflops_per_s else "–"),
        label(units.number(row.gb_per_s) if row.gb_per_s else units.UNKNOWN),
        _of_roof(row.roof_fraction),
        label(time.show(row.wasted_time_ps_per_step), STRONG),
    )
