"""What ``profiler ops`` and ``profiler peaks`` say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from profiler.hardware import CHIPS, PEAK_DTYPE
from profiler.report import units
from profiler.report.model import (
    DIM,
    STRONG,
    Block,
    Column,
    Document,
    Facts,
    Items,
    Notes,
    Table,
    label,
    limit,
    name,
)

if TYPE_CHECKING:
    import polars as pl

    from profiler.api import OpTable

DEFAULT_ROWS = 30
DEFAULT_UNATTRIBUTED = 5
_HALF = re.compile(r"-(start|done|update)(\.|$)")


def ops_document(table: OpTable, top: int | None = None) -> Document:
    """The per-op table, largest self time first.

    Args:
        table: the ops of one recording, already sorted.
        top: rows; None for the default, 0 for all.
    """
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = []
    if table.ops.height or not table.unattributed.height:
        blocks.append(_ops_table("Ops", "ops", table.ops, rows, table.devices))
    if table.unattributed.height:
        fewer = rows if not table.ops.height or top is not None else DEFAULT_UNATTRIBUTED
        title = "Device activity without an HLO op, not in the table above" if blocks else "Kernels, no HLO op is named"
        blocks.append(_ops_table(title, "names", table.unattributed, fewer, table.devices))
    return Document(f"profiler ops: {table.file}", (*blocks, Notes("Warnings", table.warnings)))


def _ops_table(title: str, what: str, frame: pl.DataFrame, most: int | None, devices: int) -> Table:
    rows = frame.head(frame.height if most is None else most).to_dicts()
    everything = float(frame["self_time_ps"].sum() or 0)
    time = units.time_scale(row["self_time_ps"] for row in rows)
    per_call = units.time_scale(row["self_time_ps"] / row["occurrences"] for row in rows if row["occurrences"])
    shown = float(sum(row["self_time_ps"] for row in rows))
    hidden = frame.height - len(rows)
    over = f"summed over {devices} devices" if devices != 1 else "one device"
    return Table(
        title,
        (
            Column("op", numeric=False, kept=True),  # its number, often at the end, tells it from its like
            *(Column(text, numeric=False) for text in ("family", "phase")),
            Column("calls"),
            Column(f"self {time.unit}"),
            Column("share"),
            Column(f"mean {per_call.unit}", minor=True),
            Column("TFLOP/s"),
            Column("GB/s"),
        ),
        tuple(
            (
                name(row["op"]),
                label(row["family"] or "–"),
                label(row["phase"] or "–", DIM),
                label(units.number(row["occurrences"])),
                label(time.show(row["self_time_ps"])),
                label(units.percent(row["self_time_ps"] / everything if everything else None)),
                label(per_call.show(row["self_time_ps"] / row["occurrences"] if row["occurrences"] else None)),
                label(_rate(row, "flops", 1.0)),  # FLOP per ps is TFLOP per s
                label(_rate(row, "bytes_accessed", 1e3)),  # byte per ps is 1000 GB per s
            )
            for row in rows
        ),
        total=(
            label(f"sum of {units.number(frame.height)} {what}", STRONG),
            *(label("") for _ in range(3)),
            label(units.duration(everything), STRONG),
            label("100.0 %" if everything else units.UNKNOWN, STRONG),
            *(label("") for _ in range(3)),
        ),
        caption=f"self time, {over}; a loop does not count its body; rates use total time; starts and dones have none",
        more=f"{hidden} more {what}, {units.duration(everything - shown)} (--top 0 shows all)" if hidden else None,
    )


def _rate(row: dict[str, Any], amount: str, factor: float) -> str:
    # Custom calls count 0 FLOPs: a rate of zero would be a figure nobody measured. The start of an asynchronous op and
    # its done take no part of the time in which its bytes move.
    if not row[amount] or not row["total_time_ps"] or _HALF.search(row["op"]):
        return "–"
    return units.number(row[amount] / row["total_time_ps"] * factor)


def peaks_document() -> Document:
    """The chip table with sources."""
    rows = tuple(
        (
            label(chip.name),
            label(units.number(chip.chip_tflops, 5)),
            label(str(chip.devices_per_chip)),
            label(units.number(chip.peak_tflops, 5), STRONG),
            label(units.number(chip.hbm_bytes / units.GIB)),
            label(units.number(chip.hbm_bytes_per_s / 1e9)),
            label(units.number(chip.chip_interconnect_gb_per_s)),
            label(chip.interconnect, DIM),
        )
        for chip in CHIPS
    )
    table = Table(
        f"Chips: dense {PEAK_DTYPE} peaks",
        (
            Column("chip", numeric=False),
            Column("TFLOP/s chip"),
            Column("devices"),
            Column("TFLOP/s device"),
            Column("HBM GiB"),
            Column("HBM GB/s"),
            Column("link GB/s"),
            Column("counted", numeric=False),
        ),
        rows,
        caption="HBM is nominal and per JAX device; links are per chip; MFU divides by the peak per JAX device",
    )
    notes = Facts(tuple((chip.name, label(chip.note)) for chip in CHIPS if chip.note), "Notes")
    by_source: dict[str, list[str]] = {}
    for chip in CHIPS:
        for source in chip.sources:
            by_source.setdefault(source, []).append(chip.name)
    sources = Items("Sources", tuple((label(source), (", ".join(chips),)) for source, chips in by_source.items()))
    return Document("profiler peaks", (table, notes, sources))
