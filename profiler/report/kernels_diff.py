"""Both sides' kernels beside each other: calls, time, share of the peak, and the tiles that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiler.report import units
from profiler.report.diff_tables import pair
from profiler.report.model import DIM, Column, Table, label, name
from profiler.report.wording import kernel_caption, kernel_title
from profiler.results import Diff, KernelRow

Pair = tuple[KernelRow | None, KernelRow | None]


def kernel_pairs(diff: Diff) -> list[Pair]:
    """Kernels of both sides with equal name and phase, most time first."""
    base, opt = ({(row.kernel, row.phase): row for row in side.kernels} for side in (diff.baseline, diff.optimized))
    pairs = [(base.get(key), opt.get(key)) for key in dict.fromkeys((*base, *opt))]
    return sorted(pairs, key=lambda rows: -max(row.time_ps_per_step if row else 0.0 for row in rows))


def kernels_table(diff: Diff) -> Table:
    """Kernels per step, whatever the diff is normalised by: how often and how fast they run is the question here."""
    pairs = kernel_pairs(diff)
    mean = units.time_scale(row.mean_time_ps for rows in pairs for row in rows if row)

    def both(rows: Pair, show: Callable[[KernelRow], str]) -> str:
        base, opt = (show(row) if row else "–" for row in rows)
        return base if base == opt else f"{base} → {opt}"

    body = []
    for rows in pairs:
        first = rows[0] or rows[1]
        assert first is not None
        body.append(
            (
                name(kernel_title(first.kernel, first.family)),
                label(first.phase or "–", DIM),
                label(pair(*(row.calls_per_step if row else 0 for row in rows))),
                label(_per_layer(rows)),
                label(both(rows, lambda row: mean.show(row.mean_time_ps))),
                label(both(rows, lambda row: units.number(row.tflops_per_s))),
                label(both(rows, lambda row: units.percent(row.peak_fraction, 0))),
            )
        )
    return Table(
        "Kernels",
        (
            *(Column(title, numeric=False) for title in ("kernel", "phase")),
            Column("calls"),
            Column("/layer", minor=True),
            Column(f"mean {mean.unit}"),
            Column("TFLOP/s"),
            Column("of peak"),
        ),
        tuple(body),
        caption=f"per device and {diff.baseline.steps.unit}: {kernel_caption(diff.baseline.steps.unit)}",
        folded=True,
    )


def _per_layer(rows: Pair) -> str:
    known = [row.calls_per_layer for row in rows if row]
    if None in known:
        return units.UNKNOWN
    return pair(*(row.calls_per_layer if row else 0 for row in rows))


def tiles_table(diff: Diff) -> Table:
    """Tile sizes and layouts that differ between the sides, once for all phases of a kernel."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for base, opt in kernel_pairs(diff):
        if base is None or opt is None:
            continue
        for key, before, after in tile_changes(base, opt):
            row = kernel_title(base.kernel, base.family), key, before, after
            found.setdefault(row, []).append(base.phase or "")
    return Table(
        "Tiles and layouts that differ",
        tuple(Column(title, numeric=False) for title in ("kernel", "tile", "baseline", "optimized", "phases")),
        tuple(
            (name(title), name(key), name(before), name(after), label(", ".join(filter(None, phases)) or "–", DIM))
            for (title, key, before, after), phases in found.items()
        ),
        folded=True,
    )


def tile_changes(base: KernelRow, opt: KernelRow) -> list[tuple[str, str, str]]:
    """(tile, before, after) of what differs; of calls with several tiles, all their values.

    A tile that only one side tells (an older compile noted none) is not known to differ.
    """
    keys = dict.fromkeys(key for row in (base, opt) for tiles in row.tiles for key in tiles)
    values = [(key, tile_text(base, key), tile_text(opt, key)) for key in keys]
    return [each for each in values if each[1] != each[2] and units.UNKNOWN not in each[1:]]


def tile_text(row: KernelRow, key: str) -> str:
    """One tile of a kernel; of calls with several, all its values."""
    return " / ".join(dict.fromkeys(tile_value(tiles[key]) for tiles in row.tiles if key in tiles)) or units.UNKNOWN


def tile_value(value: Any) -> str:
    """One size, or the sizes of several dimensions."""
    return " × ".join(map(str, value)) if isinstance(value, list) else str(value)
