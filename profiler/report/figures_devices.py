"""The steps of every device of both sides on one axis: a device that is slower than the others stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.analysis.stepspread import DeviceSteps
from profiler.report import units

MOST_DEVICES = 64  # rows that are drawn; of more, those that differ most from the rest


@dataclass(frozen=True, slots=True)
class Spread:
    """One device of one side: its mean step and its 10th and 90th percentile, in the scale's unit."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """A device; a side that has none of this name is None."""

    name: str
    baseline: Spread | None
    optimized: Spread | None


@dataclass(frozen=True, slots=True)
class SpreadFigure:
    """Rows in the order of the trace; ``hidden`` devices are not drawn. Values are in ``scale``'s unit."""

    rows: tuple[SpreadRow, ...]
    scale: units.Scale
    hidden: int


def spread_figure(baseline: Sequence[DeviceSteps], optimized: Sequence[DeviceSteps]) -> SpreadFigure | None:
    """None where neither side has several devices: then there is nothing to spread."""
    if max(len(baseline), len(optimized)) < 2:
        return None
    scale = units.time_scale(each.p90_ps for each in (*baseline, *optimized))
    sides = tuple({each.name: each for each in side} for side in (baseline, optimized))
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    typical = [_middle([each.mean_ps for each in side.values()]) for side in sides]

    def oddity(name: str) -> float:
        return max(
            abs(side[name].mean_ps / middle - 1) if name in side and middle else 0.0
            for side, middle in zip(sides, typical, strict=True)
        )

    kept = set(sorted(names, key=oddity, reverse=True)[:MOST_DEVICES])
    rows = tuple(
        SpreadRow(name, *(_spread(side.get(name), scale.divisor) for side in sides)) for name in names if name in kept
    )
    return SpreadFigure(rows, scale, len(names) - len(rows))


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _spread(device: DeviceSteps | None, divisor: float) -> Spread | None:
    if device is None:
        return None
    return Spread(device.mean_ps / divisor, device.p10_ps / divisor, device.p90_ps / divisor, device.count)
