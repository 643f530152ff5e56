"""A chain of runs: each against the one before and against the first, measured per one unit of work.

Along the chain MFU_n − MFU_1 = Σ (MFU_i+1 − MFU_i), and each difference is split exactly (attribute), so that the
contributions of all rungs sum to the whole. A category's sum over the rungs is not its part of the direct comparison of
last and first: how much a second saved is worth in points depends on the MFU at which it is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from profiler.analysis.summary import Measured
from profiler.compare import compare, delta_of
from profiler.compare.comparable import work_of
from profiler.compare.devicetime import unmarked_and_idle, without_idle
from profiler.compare.phrases import duration, percent, points
from profiler.results import Contribution, Delta, Diff, Ladder, LadderRow, Note, Rung

UNITS = ("flop", "token")


def ladder(runs: Sequence[Measured], *, normalize: str = "auto", force: bool = False) -> Ladder:
    """Compares every run with the one before and with the first.

    Args:
        runs: two or more sides, in order.
        normalize: as in ``compare``; "auto" takes what all runs know.
        force: compare what is not comparable.

    Raises:
        NotComparableError, UsageError: as ``compare``.
    """
    if any(unmarked_and_idle(run) for run in runs):
        runs = [without_idle(run) for run in runs]
    unit = _unit(runs, normalize)
    first, last = runs[0], runs[-1]
    whole = compare(first, last, normalize=unit, force=force)
    rungs = []
    for before, after in pairwise(runs):
        diff = whole if len(runs) == 2 else compare(before, after, normalize=unit, force=force)
        scale = work_of(first, before, unit).scale
        rungs.append(_rung(diff, scale, delta_of(first, after, work_of(first, after, unit))))
    return Ladder(
        normalization=whole.normalization,
        verdict=_verdict(runs, whole, rungs),
        runs=tuple(run.summary for run in runs),
        rungs=tuple(rungs),
        rows=_rows(rungs),
        delta=whole.delta,
        comparable=whole.comparable and all(rung.comparable for rung in rungs),
        warnings=_warnings(rungs),
    )


def _unit(runs: Sequence[Measured], normalize: str) -> str:
    """One unit for all: model FLOPs or tokens where every run has them, else the step or the run as it is."""
    if normalize != "auto":
        return normalize
    if all(run.model_flops for run in runs):
        return "flop"
    if all(run.tokens for run in runs):
        return "token"
    return "step" if all(run.times.unit == "step" for run in runs) else "run"


def _rung(diff: Diff, scale: float, from_first: Delta) -> Rung:
    """``scale`` makes times of the rung's baseline those of the first run's work."""
    return Rung(
        label=diff.optimized.label,
        verdict=diff.verdict,
        delta=diff.delta,
        from_first=from_first,
        contributions=tuple(_scaled(each, scale) for each in diff.contributions),
        knobs=diff.knobs,
        effects=diff.effects,
        findings=diff.findings,
        comparable=diff.comparable,
        warnings=diff.warnings,
    )


def _scaled(each: Contribution, scale: float) -> Contribution:
    return replace(
        each,
        baseline_time_ps=each.baseline_time_ps * scale,
        optimized_time_ps=each.optimized_time_ps * scale,
        time_ps=each.time_ps * scale,
        calls_time_ps=each.calls_time_ps * scale,
        per_call_time_ps=each.per_call_time_ps * scale,
        interval_time_ps=_pair(each.interval_time_ps, scale),
    )


def _pair(ends: tuple[float, float] | None, scale: float) -> tuple[float, float] | None:
    return None if ends is None else (ends[0] * scale, ends[1] * scale)


def _rows(rungs: Sequence[Rung]) -> tuple[LadderRow, ...]:
    """Categories over the rungs, the largest anywhere first; a category that a rung lacks did not change there."""
    found: dict[tuple[str, str, str | None], list[Contribution | None]] = {}
    for index, rung in enumerate(rungs):
        for each in rung.contributions:
            key = each.category, each.family, each.phase
            found.setdefault(key, [None] * len(rungs))[index] = each
    known = all(each.mfu_points is not None for rung in rungs for each in rung.contributions)
    rows = []
    for (category, family, phase), members in found.items():
        times = tuple(each.time_ps if each else 0.0 for each in members)
        values = tuple((each.mfu_points or 0.0) if each else 0.0 for each in members) if known else None
        rows.append(LadderRow(category, family, phase, values, times, sum(values) if values else None, sum(times)))
    return tuple(sorted(rows, key=lambda row: -max(abs(value) for value in row.mfu_points or row.time_ps)))


def _verdict(runs: Sequence[Measured], whole: Diff, rungs: Sequence[Rung]) -> str:
    """The whole change, and the rung that makes most of it."""
    delta, unit = whole.delta, whole.baseline.steps.unit
    before, after = duration(delta.baseline_time_ps, delta.optimized_time_ps)
    ratio = percent(delta.optimized_time_ps / delta.baseline_time_ps) if delta.baseline_time_ps else "n/a"
    work = " for equal work" if whole.normalization in UNITS else ""
    text = f"{len(runs)} runs: {unit} {before} → {after} ({ratio}){work}"
    if delta.mfu_points is not None and runs[0].summary.mfu and runs[-1].summary.mfu:
        mfu = f"MFU {100 * runs[0].summary.mfu:.2f} % → {100 * runs[-1].summary.mfu:.2f} %"
        text = f"{len(runs)} runs: {mfu} ({points(delta.mfu_points)}), {unit} {before} → {after} ({ratio}){work}"
    if whole.baseline.kind == "compiled":
        text += " (compiler estimates)"
    sized = [
        (abs(_size(rung)), number, rung) for number, rung in enumerate(rungs, 1) if rung.delta.significant is not False
    ]
    if len(rungs) < 2 or not sized:
        return f"{text}."
    _, number, largest = max(sized, key=lambda each: (each[0], -each[1]))
    value = largest.delta.mfu_points
    time = largest.delta.optimized_time_ps / largest.delta.baseline_time_ps if largest.delta.baseline_time_ps else 1.0
    return f"{text}. Largest rung: {number} → {number + 1} ({points(value) if value is not None else percent(time)})."


def _size(rung: Rung) -> float:
    return sum(each.time_ps for each in rung.contributions)


def _warnings(rungs: Sequence[Rung]) -> tuple[Note, ...]:
    """Notes on any rung, once each, with where they hold unless everywhere."""
    places: dict[Note, list[str]] = {}
    for number, rung in enumerate(rungs, 1):
        for note in rung.warnings:
            places.setdefault(note, []).append(f"{number} → {number + 1}")
    found = [
        note if len(where) == len(rungs) else Note(note.code, f"{', '.join(where)}: {note.message}")
        for note, where in places.items()
    ]
    return tuple(dict.fromkeys(found))
