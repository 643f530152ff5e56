"""Baseline against optimized: comparability, alignment, exact attribution, words."""

from __future__ import annotations

from typing import Any

from profiler.analysis.summary import Measured
from profiler.compare.align import align
from profiler.compare.attribute import Work, contributions, points_per_ps
from profiler.compare.comparable import check, same_work, work_of
from profiler.compare.devicetime import unmarked_and_idle, without_idle
from profiler.compare.estimates import band, unseen
from profiler.compare.noise import interval, significant
from profiler.compare.words import causes, counted_flops, verdict
from profiler.errors import NotComparableError
from profiler.results import Delta, Diff, Knob
from profiler.runinfo import flat


def compare(baseline: Measured, optimized: Measured, *, normalize: str = "auto", force: bool = False) -> Diff:
    """Explains the change between two measured sides.

    Raises:
        NotComparableError: they differ in kind, device or unit, and ``force`` is not set.
        UsageError: ``normalize`` asks for what is not known.
    """
    work = work_of(baseline, optimized, normalize)
    comparability = check(baseline, optimized, work)
    if comparability.blocking and not force:
        raise NotComparableError(
            "; ".join(note.message for note in comparability.blocking),
            file=f"{baseline.trace.label} against {optimized.trace.label}",
            remedy="--force compares all the same",
        )
    device_time = unmarked_and_idle(baseline) or unmarked_and_idle(optimized)
    if device_time:
        baseline, optimized = without_idle(baseline), without_idle(optimized)
    parts = contributions(baseline, optimized, work)
    alignment = align(baseline, optimized, work.scale)
    delta, changed = _delta(baseline, optimized, work), knobs(baseline, optimized)
    found = causes(parts, alignment, baseline, optimized, delta, points_per_ps(baseline, optimized, work))
    return Diff(
        comparable=not comparability.blocking,
        normalization=work.unit,
        verdict=verdict(baseline, optimized, delta, work, found, device_time=device_time),
        baseline=baseline.summary,
        optimized=optimized.summary,
        delta=delta,
        contributions=parts,
        matched_time_fraction=alignment.matched_fraction,
        baseline_matched_fraction=alignment.baseline_fraction,
        optimized_matched_fraction=alignment.optimized_fraction,
        ops=alignment.ops,
        knobs=changed,
        findings=(*(cause.finding for cause in found), *counted_flops(baseline, optimized)),
        warnings=(*comparability.blocking, *comparability.notes, *unseen(baseline, optimized, changed)),
    )


def knobs(baseline: Measured, optimized: Measured) -> tuple[Knob, ...]:
    """Configuration keys whose value differs; None where a side lacks the key."""
    before, after = (flat((side.trace.run_info or {}).get("config")) for side in (baseline, optimized))
    return tuple(
        Knob(key, before.get(key), after.get(key), key in before, key in after)
        for key in sorted(set(before) | set(after))
        if key not in before or key not in after or not _equal(before[key], after[key])
    )


def _equal(before: Any, after: Any) -> bool:
    """Whether two configuration values are the same; 1 is not true, but 1 and 1.0 are one number."""
    if isinstance(before, bool) is not isinstance(after, bool):
        return False
    return bool(before == after) or (before != before and after != after)  # NaN is itself here


def _delta(baseline: Measured, optimized: Measured, work: Work) -> Delta:
    step_b, step_o = baseline.times.step_ps, optimized.times.step_ps
    mfu_b, mfu_o = baseline.summary.mfu, optimized.summary.mfu
    known = work.unit in ("flop", "token") or same_work(baseline, optimized)
    bounds = interval(baseline, optimized, work.scale)
    return Delta(
        mfu_points=None if mfu_b is None or mfu_o is None else 100 * (mfu_o - mfu_b),
        throughput_ratio=step_b / (step_o * work.scale) if known and step_o else None,
        step_time_ratio=step_o / step_b if step_b else 1.0,
        significant=significant(bounds),
        interval=bounds,
        band=band(baseline, optimized, work.scale),
        baseline_time_ps=step_b,
        optimized_time_ps=step_o * work.scale,
    )
