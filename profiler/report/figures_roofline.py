"""The ops of both sides under the roof of their chip: FLOPs per byte against TFLOP/s; pure functions on rooflines.

Both axes are logarithmic: an op of 0 FLOPs has no place on them, and neither has one whose FLOPs or bytes are unknown.
How much time is left out is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields

import polars as pl

from profiler.report import units
from profiler.results_efficiency import Roofline, RoofOp

MOST_POINTS = 400
MOST_FAMILIES = 7  # that have a symbol of their own
OTHERS = "other families"
ABOVE = 1.02  # of the roof; less is rounding and clocks
MARGIN = 2.0  # of the axes, beyond the outermost point


@dataclass(frozen=True, slots=True)
class Roof:
    """What a chip can do at most: ``peak`` in TFLOP/s from ``ridge`` FLOPs per byte on, below it the HBM bandwidth."""

    peak: float
    bandwidth: float
    ridge: float

    def at(self, intensity: float) -> float:
        """TFLOP/s at most, of an op of so many FLOPs per byte."""
        return min(self.peak, intensity * self.bandwidth / 1e12)

    def text(self) -> str:
        """The roof in words."""
        return (
            f"{units.number(self.peak, 5)} TFLOP/s, {units.number(self.bandwidth / 1e9)} GB/s of HBM, "
            f"ridge at {units.number(self.ridge, 3)} FLOP/byte"
        )


@dataclass(frozen=True, slots=True)
class RoofSide:
    """One side: its roof, None where unknown, and its ops with a place in the figure, most time first.

    ``moves_ps`` is the time of ops of 0 FLOPs, ``unknown_ps`` of those without a place since FLOPs or bytes are
    unknown, ``small_ps`` of the ops that are too many to draw.
    """

    title: str
    roof: Roof | None
    points: tuple[RoofOp, ...]
    moves_ps: float
    unknown_ps: float
    small_ps: float
    unit: str
    estimated: bool

    def text(self, op: RoofOp) -> tuple[str, ...]:
        """An op in lines of words."""
        est = " (est.)" if self.estimated else ""
        wasted = op.wasted_time_ps_per_step
        lines = [
            f"{op.op} ×{op.instructions}" if op.instructions > 1 else op.op,
            f"{op.family} · {op.phase}" if op.phase else op.family,
            f"{units.duration(op.time_ps_per_step)} per {self.unit}{est}, {units.number(op.calls_per_step)} calls",
            f"{units.number(op.flops_per_byte, 3)} FLOP/byte, {units.number(op.tflops_per_s)} TFLOP/s",
        ]
        if wasted is not None:
            share = units.percent(op.roof_fraction, 0)
            lines.append(f"{op.bound}-bound, {share} of its roof, {units.duration(wasted)} wasted{est}")
        return (f"{self.title}: {lines[0]}", *lines[1:], *([op.source] if op.source else []))

    @property
    def above(self) -> int:
        """How many of the points lie above their roof."""
        return sum((op.roof_fraction or 0.0) > ABOVE for op in self.points)

    def missing(self) -> str | None:
        """What of the compute time has no place in the figure, in words."""
        parts = [
            (self.moves_ps, "in ops of 0 FLOPs, such as copies"),
            (self.unknown_ps, "in ops whose FLOPs or bytes are unknown"),
            (self.small_ps, f"in ops beyond the {MOST_POINTS} that take the most time"),
        ]
        texts = [f"{units.duration(time)} {what}" for time, what in parts if time]
        return f"{self.title}: {', '.join(texts)}" if texts else None


@dataclass(frozen=True, slots=True)
class RooflineFigure:
    """Sides that are drawn; ``families`` with a symbol of their own, in the order of their time."""

    sides: tuple[RoofSide, ...]
    families: tuple[str, ...]

    @property
    def roofs(self) -> tuple[tuple[str, Roof], ...]:
        """The roofs with what they are of: one where all sides have the same."""
        found = [(side.title, side.roof) for side in self.sides if side.roof is not None]
        if len({roof for _, roof in found}) == 1:
            return (("both" if len(found) > 1 else found[0][0], found[0][1]),)
        return tuple(found)

    def group(self, op: RoofOp) -> str:
        """The family that an op is drawn as."""
        return op.family if op.family in self.families else OTHERS

    @property
    def x(self) -> tuple[float, float]:
        """The ends of the axis of FLOPs per byte."""
        values = [op.flops_per_byte for side in self.sides for op in side.points]
        return _ends([*values, *(roof.ridge for _, roof in self.roofs)])

    @property
    def y(self) -> tuple[float, float]:
        """The ends of the axis of TFLOP/s."""
        values = [op.tflops_per_s for side in self.sides for op in side.points]
        return _ends([*values, *(roof.peak for _, roof in self.roofs)])


def _ends(values: Iterable[float | None]) -> tuple[float, float]:
    known = [value for value in values if value]
    return min(known, default=1.0) / MARGIN, max(known, default=1.0) * MARGIN


def roofline_figure(
    sides: Sequence[tuple[str, Roofline]], families: Collection[str] = (), most: int = MOST_POINTS
) -> RooflineFigure | None:
    """The figure; None where no op has a place in it.

    Args:
        sides: what to draw, with the word for each.
        families: only these; empty for all.
        most: ops drawn of a side, those with the most time.
    """
    drawn = tuple(_side(title, result, families, most) for title, result in sides)
    spent: dict[str, float] = {}
    for side in drawn:
        for op in side.points:
            spent[op.family] = spent.get(op.family, 0.0) + op.time_ps_per_step
    if not spent:
        return None
    ordered = sorted(spent, key=lambda family: (-spent[family], family))
    return RooflineFigure(drawn, tuple(ordered if len(ordered) <= MOST_FAMILIES else ordered[: MOST_FAMILIES - 1]))


def _side(title: str, result: Roofline, families: Collection[str], most: int) -> RoofSide:
    chosen = [op for op in result.ops if not families or op.family in families]
    placed = [op for op in chosen if op.flops_per_byte and op.tflops_per_s]
    placed.sort(key=lambda op: -op.time_ps_per_step)
    moves = [op for op in chosen if op.flops_per_call == 0 and op.bytes_per_call]
    peak, bandwidth, ridge = result.peak_tflops, result.hbm_bytes_per_s, result.ridge_flops_per_byte
    times = [sum(op.time_ps_per_step for op in ops) for ops in (chosen, placed, moves)]
    rest = times[0] - times[1] - times[2] if len(placed) + len(moves) < len(chosen) else 0.0
    return RoofSide(
        title=title,
        roof=Roof(peak, bandwidth, ridge) if peak and bandwidth and ridge else None,
        points=tuple(placed[:most]),
        moves_ps=times[2],
        unknown_ps=rest,
        small_ps=sum(op.time_ps_per_step for op in placed[most:]),
        unit=result.unit,
        estimated=result.kind == "compiled",
    )


def ops_frame(sides: Sequence[tuple[str, Roofline]], families: Collection[str] = ()) -> pl.DataFrame:
    """All ops of the sides, most wasted time first: a column ``side``, then the fields of RoofOp; null is unknown."""
    names = [field.name for field in fields(RoofOp)]
    rows = [
        {"side": title, **{name: getattr(op, name) for name in names}}
        for title, result in sides
        for op in result.ops
        if not families or op.family in families
    ]
    frame = pl.DataFrame(rows, schema=_SCHEMA)
    return frame.sort(
        ["wasted_time_ps_per_step", "time_ps_per_step"], descending=True, nulls_last=True, maintain_order=True
    )


_TEXTS = ("side", "op", "family", "phase", "bound", "name_stack", "source")
_COUNTS = ("instructions",)
_SCHEMA = {
    name: pl.String if name in _TEXTS else pl.Int64 if name in _COUNTS else pl.Float64
    for name in ("side", *(field.name for field in fields(RoofOp)))
}
