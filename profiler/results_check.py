"""What ``profiler check`` says; part of ``profiler.results``, which has the house rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.results import Note

HIT, WITHIN_NOISE, PASSED, UNKNOWN = "hit", "within noise", "pass", "unknown"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One threshold and what the pair says of it.

    ``action``: what a hit does, "fail" or "warn". ``threshold``, ``value`` (optimized against baseline) and its 95 %
    ``interval`` are in ``unit``; ``value`` is None where the metric is unknown, and where it is a percentage of
    nothing. ``noise``: "interval", "none" (counted or planned, not timed), "estimate" (compiled times have none) or
    "unknown" (a single sample: the point value decides). ``baseline`` and ``optimized`` are the metric itself, in
    ``figure_unit``: "fraction", "ratio" (to the baseline), "ps", "bytes", "calls" or "nats". ``verdict``: "hit",
    "within noise", "pass" or "unknown"; ``remark`` is what else there is to say, and why a metric is unknown.
    """

    expression: str
    action: str
    metric: str
    operator: str
    threshold: float
    unit: str
    baseline: float | None
    optimized: float | None
    figure_unit: str
    value: float | None
    interval: tuple[float, float] | None
    noise: str
    verdict: str
    remark: str


@dataclass(frozen=True, slots=True)
class Check:
    """A pair against all its thresholds; ``exit_code`` is 1 unless ``passed``.

    ``baseline`` and ``optimized`` name the sides, ``kinds`` is what each is ("recorded" | "compiled"), ``diff`` the
    verdict of the comparison. ``hits``, ``warned`` and ``unknown`` count rows: thresholds that fail the check, those
    that only warn, and those that cannot be checked.
    """

    passed: bool
    exit_code: int
    verdict: str
    baseline: str
    optimized: str
    kinds: tuple[str, str]
    comparable: bool
    normalization: str
    diff: str
    allow_unknown: bool
    hits: int
    warned: int
    unknown: int
    rows: tuple[CheckRow, ...]
    warnings: tuple[Note, ...]
