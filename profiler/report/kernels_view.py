"""What ``profiler kernels`` says: how often, how long and how fast each kernel runs, then its tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from profiler.analysis.kernelflops import SOURCES
from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
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
from profiler.report.wording import kernel_caption, kernel_title
from profiler.results import KernelRow
from profiler.results_efficiency import Kernels, KernelVariant

DEFAULT_ROWS = 20


def kernels_document(result: Kernels, top: int | None = None) -> Document:
    """The kernels as blocks.

    Args:
        result: of one recording.
        top: rows per table; None for the default, 0 for all.
    """
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Facts(_facts(result))]
    if result.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    tables = [table for table in (_kernels(result), _variants(result)) if table.rows]
    blocks.extend(table if rows is None else capped(table, rows, ALL_ROWS) for table in tables)
    blocks.extend(_tiles(result, rows))
    blocks.append(Notes("Warnings", result.warnings))
    return Document(f"profiler kernels: {result.label}", tuple(blocks))


def tiles_text(tiles: Mapping[str, Any]) -> str:
    """Tiles in a line: "q 1024, kv 1024, kv_compute 512; q HEAD_DIM_MINOR"."""
    sizes = [f"{key.removeprefix('block_')} {_size(value)}" for key, value in tiles.items() if not _is_layout(key)]
    layouts = [f"{key.removesuffix('_layout')} {value}" for key, value in tiles.items() if _is_layout(key)]
    return "; ".join(", ".join(part) for part in (sizes, layouts) if part)


def _is_layout(key: str) -> bool:
    return key.endswith("_layout")


def _size(value: Any) -> str:
    return " × ".join(map(str, value)) if isinstance(value, list) else str(value)


def _facts(result: Kernels) -> tuple[tuple[str, Cell], ...]:
    spent = sum(row.time_ps_per_step for row in result.kernels)
    share = f" ({units.percent(spent / result.step_time_ps)})" if result.step_time_ps else ""
    peak = f"{units.number(result.peak_tflops, 5)} TFLOP/s dense bf16 per device" if result.peak_tflops else None
    return (
        ("file", name(result.file)),
        (result.unit, label(f"{units.duration(result.step_time_ps)}, {units.duration(spent)}{share} of it in kernels")),
        ("layers", label(units.number(result.layers) if result.layers else f"{units.UNKNOWN} (`layers` in --config)")),
        ("peak", label(peak or f"{units.UNKNOWN} (--peak-tflops)")),
    )


def _kernels(result: Kernels) -> Table:
    rows = result.kernels
    mean = units.time_scale(row.mean_time_ps for row in rows)
    total = units.time_scale(row.time_ps_per_step for row in rows)
    return Table(
        "Kernels",
        (
            Column("kernel", numeric=False),
            Column("phase", numeric=False),
            Column("calls"),
            Column("/layer"),
            Column(f"mean {mean.unit}"),
            Column(f"{total.unit}/{result.unit}"),
            Column("TFLOP/s"),
            Column("of peak"),
        ),
        tuple(
            (
                name(kernel_title(row.kernel, row.family)),
                label(row.phase or "–", DIM),
                label(units.number(row.calls_per_step)),
                label(units.number(row.calls_per_layer)),
                label(mean.show(row.mean_time_ps)),
                label(total.show(row.time_ps_per_step)),
                *rate_cells(row),
            )
            for row in rows
        ),
        caption=kernel_caption(result.unit),
    )


def rate_cells(row: KernelRow | KernelVariant) -> tuple[Cell, Cell]:
    """TFLOP/s and the share of the peak; a share that cannot be is marked."""
    share = units.percent(row.peak_fraction, 0)
    impossible = row.peak_fraction is not None and row.peak_fraction > 1
    return label(units.number(row.tflops_per_s)), label(f"{share} !", BAD) if impossible else label(share)


def _variants(result: Kernels) -> Table:
    """The kernels that run with more than one shape or set of tiles."""
    count = Counter((row.kernel, row.phase) for row in result.variants)
    rows = [row for row in result.variants if count[row.kernel, row.phase] > 1]
    mean = units.time_scale(row.mean_time_ps for row in rows)
    return Table(
        "Kernels of several shapes",
        (
            Column("kernel", numeric=False),
            Column("phase", numeric=False),
            Column("shape", numeric=False),
            Column("calls"),
            Column(f"mean {mean.unit}"),
            Column("TFLOP/s"),
            Column("of peak"),
        ),
        tuple(
            (
                name(kernel_title(row.kernel, row.family)),
                label(row.phase or "–", DIM),
                label(_short(row.shape)),
                label(units.number(row.calls_per_step)),
                label(mean.show(row.mean_time_ps)),
                *rate_cells(row),
            )
            for row in rows
        ),
    )


def _short(shape: str | None) -> str:
    return (shape or units.UNKNOWN).partition(",")[0]


def _tiles(result: Kernels, rows: int | None) -> list[Block]:
    """Shapes, tiles and the source of the FLOPs, once for all phases that share them."""
    alike: dict[tuple[str, str, str], list[KernelVariant]] = {}
    for row in result.variants:
        tiles = tiles_text(row.tiles) or units.UNKNOWN
        source = SOURCES[row.flops_source] if row.flops_source else units.UNKNOWN
        alike.setdefault((kernel_title(row.kernel, row.family), tiles, source), []).append(row)
    facts = [
        (title, label(f"{_shapes(group)}tiles: {tiles}; FLOPs: {source}"))
        for (title, tiles, source), group in alike.items()
    ]
    if not facts:
        return []
    shown = facts if rows is None else facts[:rows]
    hidden = len(facts) - len(shown)
    block = Facts(tuple(shown), "Shapes, tiles, and where the FLOPs come from")
    return [block, *([Line(f"{hidden} more ({ALL_ROWS})", DIM)] if hidden else [])]


def _shapes(group: Sequence[KernelVariant]) -> str:
    shapes = " / ".join(dict.fromkeys(row.shape for row in group if row.shape))
    return f"{shapes}; " if shapes else ""
