"""Kernels of both sides by the work of a call: which tiles each shape has on either side, and how fast it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from profiler.analysis.kernelflops import SOURCES
from profiler.report import units
from profiler.report.diff_tables import pair
from profiler.report.kernels_diff import tile_value
from profiler.report.model import DIM, STRONG, Cell, Column, Table, label, name
from profiler.report.wording import kernel_title
from profiler.results_efficiency import Kernels, KernelVariant

COUNTS = ("groups",)  # among the tiles, but no size that anybody chose


@dataclass(frozen=True, slots=True)
class VariantPair:
    """Calls that do the same thing on both sides, for a batch of any size; a side without them is None."""

    baseline: KernelVariant | None
    optimized: KernelVariant | None

    @property
    def both(self) -> tuple[KernelVariant | None, KernelVariant | None]:
        """Baseline, optimized."""
        return self.baseline, self.optimized

    @property
    def first(self) -> KernelVariant:
        """The side that there is."""
        found = self.baseline or self.optimized
        assert found is not None
        return found

    @property
    def title(self) -> str:
        """What the kernel is called."""
        return kernel_title(self.first.kernel, self.first.family)


def work_of(shape: str | None) -> str | None:
    """A shape without what the batch and the tiles change: the rows of a matmul, the batch and blocks of attention."""
    if shape is None:
        return None
    size, *more = (part for part in shape.split(", ") if not part.endswith(" blocks"))
    rows, times, rest = size.partition(" × ")
    return ", ".join((rest if times else rows, *more))


def variant_pairs(base: Kernels, opt: Kernels) -> list[VariantPair]:
    """Variants of both sides by kernel, phase and work, most time first; several of one work in the order of time."""
    found: dict[tuple[str, str, str | None, str | None], tuple[list[KernelVariant], list[KernelVariant]]]
    found = defaultdict(lambda: ([], []))
    for side, result in enumerate((base, opt)):
        for row in result.variants:
            found[row.kernel, row.family, row.phase, work_of(row.shape)][side].append(row)
    pairs = [VariantPair(*rows) for sides in found.values() for rows in zip_longest(*sides)]
    return sorted(pairs, key=lambda each: -max(row.time_ps_per_step for row in each.both if row))


def tiles_table(pairs: Sequence[VariantPair]) -> Table:
    """Tile by tile; phases with the same tiles share a row. What differs has an arrow and is bold."""
    rows: dict[tuple[Cell, ...], list[str]] = {}
    keys, titles = _keys(pairs), [each.title for each in pairs]
    for each in sorted(pairs, key=lambda each: titles.index(each.title)):
        cells = name(each.title), name(work_of(each.first.shape) or units.UNKNOWN), *(_tile(each, key) for key in keys)
        rows.setdefault(cells, []).append(each.first.phase or "–")
    columns = "kernel", "matmul, k × n", *keys, "phases"
    return Table(
        "Tiles of both sides",
        tuple(Column(title, numeric=False) for title in columns),
        tuple((*cells, label(", ".join(dict.fromkeys(phases)), DIM)) for cells, phases in rows.items()) if keys else (),
        caption="baseline → optimized where they differ; one value where they are the same",
    )


def _keys(pairs: Iterable[VariantPair]) -> tuple[str, ...]:
    found = dict.fromkeys(key for each in pairs for row in each.both if row for key in row.tiles)
    return tuple(key for key in found if key not in COUNTS)


def _tile(each: VariantPair, key: str) -> Cell:
    base, opt = (_value(row, key) for row in each.both)
    return name(base) if base == opt else Cell(base, STRONG, name=True, to=opt)


def _value(row: KernelVariant | None, key: str) -> str:
    if row is None:
        return "–"
    return tile_value(row.tiles[key]) if key in row.tiles else units.UNKNOWN


def variants_table(pairs: Sequence[VariantPair], unit: str) -> Table:
    """Calls, time and speed of every shape and set of tiles."""
    mean = units.time_scale(row.mean_time_ps for each in pairs for row in each.both if row)
    return Table(
        "Every shape and set of tiles",
        (
            *(Column(title, numeric=False) for title in ("kernel", "shape")),
            Column(f"calls/{unit}"),
            Column(f"mean {mean.unit}"),
            Column("TFLOP/s"),
            Column("of peak"),
            Column("FLOPs from", numeric=False),
        ),
        tuple(
            (
                Cell(each.title, name=True, under=each.first.phase),
                _texts(each, lambda row: row.shape or units.UNKNOWN),
                label(pair(*(row.calls_per_step if row else 0 for row in each.both))),
                _texts(each, lambda row: mean.show(row.mean_time_ps), name=False),
                _texts(each, lambda row: units.number(row.tflops_per_s), name=False),
                _texts(each, lambda row: units.percent(row.peak_fraction, 0), name=False),
                label(_sources(each), DIM),
            )
            for each in pairs
        ),
        caption="baseline → optimized; calls from start to end",
    )


def _texts(each: VariantPair, show: Callable[[KernelVariant], str], *, name: bool = True) -> Cell:
    base, opt = (show(row) if row else "–" for row in each.both)
    if name:
        return Cell(base, name=True, to=None if base == opt else opt)
    return label(base if base == opt else f"{base} → {opt}")


def _sources(each: VariantPair) -> str:
    texts = (SOURCES[row.flops_source] if row.flops_source else units.UNKNOWN for row in each.both if row)
    return " → ".join(dict.fromkeys(texts))
