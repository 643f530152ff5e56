"""Exposed and hidden time of every kind of communication on both sides: a pure function on a diff, like ``figures``."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.report import units
from profiler.report.comm_view import SMALL
from profiler.report.wording import basis
from profiler.results import CommDeltaRow, Diff

MOST_KINDS = 14


@dataclass(frozen=True, slots=True)
class Moved:
    """One kind on both sides: (exposed, hidden) in ps, which sum to the time in flight; None for a side without it."""

    kind: str
    where: str | None
    category: str
    baseline: tuple[float, float] | None
    optimized: tuple[float, float] | None

    @property
    def longest(self) -> float:
        """The longer time in flight."""
        return max(sum(self.baseline or ()), sum(self.optimized or ()))


@dataclass(frozen=True, slots=True)
class CommFigure:
    """Kinds by their time in flight, longest first; ``smaller`` are not drawn. ``basis`` says what times are of."""

    kinds: tuple[Moved, ...]
    smaller: int
    scale: units.Scale
    basis: str
    estimated: bool

    def text(self) -> str:
        """The drawing in words."""
        return "; ".join(
            f"{' '.join(filter(None, (kind.kind, kind.where)))}: "
            + ", ".join(
                f"{side} exposed {units.duration(times[0])}, hidden {units.duration(times[1])}"
                for side, times in (("baseline", kind.baseline), ("optimized", kind.optimized))
                if times is not None
            )
            for kind in self.kinds
        )


def comm_figure(diff: Diff, most: int = MOST_KINDS) -> CommFigure | None:
    """What is drawn of a diff; None where neither side moves anything for a time that could be seen.

    Args:
        diff: its communication; times per device, for the work of one baseline step.
        most: kinds drawn at most.
    """
    found = sorted(map(_moved, diff.communication.rows if diff.communication else ()), key=lambda kind: -kind.longest)
    small = SMALL * max(diff.delta.baseline_time_ps, diff.delta.optimized_time_ps)
    shown = tuple(kind for kind in found[:most] if kind.longest >= small and kind.longest)
    if not shown:
        return None
    compiled = "compiled" in (diff.baseline.kind, diff.optimized.kind)
    scale = units.time_scale(kind.longest for kind in shown)
    return CommFigure(shown, len(found) - len(shown), scale, basis(diff), compiled)


def _moved(row: CommDeltaRow) -> Moved:
    def both(exposed: float | None, hidden: float | None) -> tuple[float, float] | None:
        return None if exposed is None or hidden is None else (exposed, hidden)

    return Moved(
        row.kind,
        row.where,
        row.category,
        both(row.baseline_exposed_ps, row.baseline_hidden_ps),
        both(row.optimized_exposed_ps, row.optimized_hidden_ps),
    )
