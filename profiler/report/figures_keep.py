"""What keeping tensors for the backward pass costs and saves, as points: HBM against time, with the room in HBM."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.analysis.keeping import EVERYTHING
from profiler.report import units
from profiler.report.remat_view import room
from profiler.results_efficiency import RematReport

NEAR = 0.015  # of the axes: points that are closer share a label


@dataclass(frozen=True, slots=True)
class KeepPoint:
    """An option: ``gib`` of HBM, ``saved`` in the figure's unit of time.

    ``fits`` is None where the room is not known; ``together`` marks the option that keeps all tensors.
    """

    tensor: str
    gib: float
    saved: float
    fits: bool | None
    together: bool


@dataclass(frozen=True, slots=True)
class KeepFigure:
    """Options of one recording. ``room_gib`` is what the plan leaves; ``unknown`` options have no size."""

    points: tuple[KeepPoint, ...]
    room_gib: float | None
    unknown: tuple[str, ...]
    scale: units.Scale
    estimated: bool

    def text(self, point: KeepPoint) -> str:
        """A point in words."""
        fits = {True: "fits", False: "does not fit", None: "room not known"}[point.fits]
        saved = f"{units.fixed(point.saved, self.scale.decimals)} {self.scale.unit}"
        return f"{point.tensor}: {units.fixed(point.gib, 2)} GiB, saves {saved}, {fits}"

    @property
    def clusters(self) -> tuple[tuple[KeepPoint, ...], ...]:
        """The points; those that lie on nearly one spot together, for one label."""
        width, height = (
            NEAR * max(values, default=0.0)
            for values in ([point.gib for point in self.points], [point.saved for point in self.points])
        )
        found: list[list[KeepPoint]] = []
        for point in self.points:
            for other in found:
                if abs(point.gib - other[0].gib) <= width and abs(point.saved - other[0].saved) <= height:
                    other.append(point)
                    break
            else:
                found.append([point])
        return tuple(map(tuple, found))


def keep_figure(report: RematReport) -> KeepFigure | None:
    """None where no option has a size."""
    known = [(row, row.bytes) for row in report.options if row.bytes is not None]
    if not known:
        return None
    scale = units.time_scale(row.saved_time_ps_per_step for row, _ in known)
    free = room(report)
    return KeepFigure(
        points=tuple(
            KeepPoint(
                tensor=row.tensor,
                gib=size / units.GIB,
                saved=row.saved_time_ps_per_step / scale.divisor,
                fits=size <= free if free is not None else None,
                together=row.tensor == EVERYTHING,
            )
            for row, size in known
        ),
        room_gib=free / units.GIB if free is not None else None,
        unknown=tuple(row.tensor for row in report.options if row.bytes is None),
        scale=scale,
        estimated=report.kind == "compiled",
    )
