"""Kernels in the HTML report: how often splash attention and the grouped matmuls run, and the tiles of all kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiler.report import units
from profiler.report.diff_tables import pair
from profiler.report.kernels_diff import kernel_pairs, tile_text
from profiler.report.model import DIM, STRONG, Cell, Column, Table, label, name
from profiler.report.wording import kernel_title
from profiler.results import Diff, KernelRow

MOST_PHASES = 12


def counts_table(diff: Diff) -> Table | None:
    """How often splash attention and the grouped matmuls run in each phase, and in all; per layer where known."""
    found: dict[str, dict[str, list[KernelRow | None]]] = {}
    for pair_of in kernel_pairs(diff):
        first = pair_of[0] or pair_of[1]
        if first is None or not (first.family or "").startswith(("splash", "gmm", "tgmm")):
            continue
        cell = found.setdefault(first.family or "", {}).setdefault(first.phase or "–", [None, None])
        for index, row in enumerate(pair_of):
            cell[index] = _added(cell[index], row)
    if not found:
        return None
    order = ("teacher", "forward", "student forward", "re-run", "backward", "student backward")
    phases = sorted(
        dict.fromkeys(phase for row in found.values() for phase in row),
        key=lambda phase: (order.index(phase) if phase in order else len(order), phase),
    )
    hidden = max(len(phases) - MOST_PHASES, 0)
    phases = phases[:MOST_PHASES]
    body = []
    for family in sorted(found, key=_kernel_order):
        cells = [_count(found[family].get(phase, [None, None])) for phase in phases]
        totals = [_added(None, None)] * 2
        for rows in found[family].values():
            totals = [_added(total, row) for total, row in zip(totals, rows, strict=True)]
        body.append((name(family, STRONG), *cells, _count(totals)))
    return Table(
        "How often splash attention and the grouped matmuls run",
        (Column("kernel", numeric=False), *(Column(units.shorten(phase, 40)) for phase in phases), Column("all")),
        tuple(body),
        caption=f"calls per device and {diff.baseline.steps.unit}, below them calls per layer; counts are exact",
        more=f"{hidden} more phases, in the sums" if hidden else None,
    )


def _kernel_order(family: str) -> tuple[int, str]:
    """Splash before the grouped matmuls, forward before backward."""
    starts = ("splash forward", "splash", "gmm forward", "gmm", "tgmm")
    return next((index for index, start in enumerate(starts) if family.startswith(start)), len(starts)), family


def _added(total: KernelRow | None, row: KernelRow | None) -> KernelRow | None:
    """Counts of two kernels of one family together; the other figures are of no use here."""
    if total is None or row is None:
        return total or row
    known = total.calls_per_layer is not None and row.calls_per_layer is not None
    layers = (total.calls_per_layer or 0) + (row.calls_per_layer or 0) if known else None
    return replace(total, calls_per_step=total.calls_per_step + row.calls_per_step, calls_per_layer=layers)


def _count(rows: Sequence[KernelRow | None]) -> Cell:
    if not any(rows):
        return label("–", DIM)
    base, opt = (row.calls_per_step if row else 0 for row in rows)
    known = [row.calls_per_layer for row in rows if row]
    layers = None if None in known else pair(*(row.calls_per_layer if row else 0 for row in rows))
    return Cell(pair(base, opt), STRONG if base != opt else "", under=f"{layers} per layer" if layers else None)


def tiles_table(diff: Diff) -> Table:
    """All tile sizes and layouts that are known, kernel by kernel; phases with equal tiles share a row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for base, opt in kernel_pairs(diff):
        first = base or opt
        if first is None or not any(row.tiles for row in (base, opt) if row):
            continue
        texts = (_tiles(base, opt), _tiles(opt, base))
        found.setdefault((kernel_title(first.kernel, first.family), *texts), []).append(first.phase or "–")
    return Table(
        "Tiles and layouts of all kernels",
        tuple(Column(title, numeric=False) for title in ("kernel", "phases", "baseline", "optimized")),
        tuple(
            (name(title), label(", ".join(phases), DIM), name(before), name(after))
            for (title, before, after), phases in found.items()
        ),
    )


def _tiles(row: KernelRow | None, other: KernelRow | None) -> str:
    if row is None:
        return "does not run"
    if not row.tiles:
        return "not known"
    keys = dict.fromkeys(key for each in (row, other) if each for tiles in each.tiles for key in tiles)
    return ", ".join(f"{key} {tile_text(row, key)}" for key in keys)
