"""The verdict: faster or slower, by how much, what for and at which price."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.analysis.summary import Measured
from profiler.compare.attribute import Work
from profiler.compare.evidence import Cause
from profiler.compare.findings import IDLE, PRICE
from profiler.compare.phrases import amount, duration, percent, points
from profiler.results import Delta

MAIN_CAUSE = 0.1  # of the change: what the verdict names


def verdict(
    baseline: Measured,
    optimized: Measured,
    delta: Delta,
    work: Work,
    causes: tuple[Cause, ...],
    *,
    device_time: bool,
    methods: Sequence[str] = (),
) -> str:
    """Faster or slower, by how much, on which basis, and what for the most part.

    Args:
        device_time: without idle time.
        methods: how the estimates of the two sides were made differently, so that causes cannot be told.
    """
    headline = _headline(baseline, optimized, delta, work, device_time=device_time)
    if methods:
        why = f"{methods[0]}{', and more' if len(methods) > 1 else ''}"
        headline = f"Unclear, since the two estimates are made differently ({why}):{headline.partition(':')[2]}"
    impossible = any((side.summary.mfu or 0) > 1 for side in (baseline, optimized))
    if impossible:
        headline += " An MFU above 100 % is impossible: check the model FLOPs and the peak."
    busy = baseline.times.unit == "run" and delta.mfu_points is None
    because = _price(causes) if methods else _because(delta, causes, idle=not busy)
    return f"{headline} {because}" if because else headline


def _headline(baseline: Measured, optimized: Measured, delta: Delta, work: Work, *, device_time: bool) -> str:
    kinds = [side.trace.kind == "compiled" for side in (baseline, optimized)]
    which = "" if all(kinds) else "the baseline's are " if kinds[0] else "the optimized side's are "
    estimate = f" ({which}compiler estimates)" if any(kinds) else ""
    before, after = duration(baseline.times.step_ps, optimized.times.step_ps)
    unit = baseline.times.unit
    ratio = delta.optimized_time_ps / delta.baseline_time_ps if delta.baseline_time_ps else 1.0
    mfu = baseline.summary.mfu, optimized.summary.mfu
    growth = work.optimized / work.baseline
    extra = f" for {growth:.2f}× the work" if abs(growth - 1) > 0.005 else ""
    if mfu[0] and mfu[1] and mfu[0] <= 1 and mfu[1] <= 1 and delta.mfu_points is not None:
        word = _word(mfu[0] / mfu[1], delta.significant, "More efficient", "Less efficient")
        what = "device time" if device_time else unit
        return (
            f"{word}: MFU {100 * mfu[0]:.2f} % → {100 * mfu[1]:.2f} % ({points(delta.mfu_points)}), {what} {before} → "
            f"{after} ({percent(delta.step_time_ratio)}){extra}, per device{estimate}."
        )
    word = _word(ratio, delta.significant, "Faster", "Slower")
    if work.unit == "token":
        rate = percent(1 / ratio) if ratio else "n/a"
        return f"{word}: {rate} tokens per second and device; {unit} {before} → {after}{extra}{estimate}."
    if unit == "run":
        busy = busy_ps(baseline), busy_ps(optimized)
        word = _word(busy[1] / busy[0] if busy[0] else 1.0, delta.significant, "Faster", "Slower")
        texts = duration(*busy)
        return (
            f"{word}: device time {texts[0]} → {texts[1]} ({percent(busy[1] / busy[0] if busy[0] else 1.0)}) over the "
            f"whole recording, per device{estimate}."
        )
    if device_time:
        return f"{word}: device time {before} → {after} ({percent(ratio)}) per execution and device{extra}{estimate}."
    return f"{word}: step {before} → {after} ({percent(delta.step_time_ratio)}){extra}, per device{estimate}."


def _because(delta: Delta, causes: tuple[Cause, ...], *, idle: bool) -> str:
    """The causes that make most of the change, and the largest against it; ``idle``: whether idle time is in it."""
    causes = tuple(cause for cause in causes if idle or not cause.label.endswith(IDLE))
    change = delta.optimized_time_ps - delta.baseline_time_ps
    if not idle:  # the change is that of device time, which the causes make up
        change = sum(cause.finding.time_ps or 0.0 for cause in causes)
    if delta.significant is False or not change:
        return ""
    along = [cause for cause in causes if (cause.finding.time_ps or 0.0) * change > 0]
    main = [cause for cause in along if abs(cause.finding.time_ps or 0.0) >= MAIN_CAUSE * abs(change)][:2]
    against = [cause for cause in causes if (cause.finding.time_ps or 0.0) * change < 0][:1]
    against = [cause for cause in against if abs(cause.finding.time_ps or 0.0) >= MAIN_CAUSE * abs(change)]
    if not main:
        return ""
    most = abs(_time(main)) >= abs(_time(along)) / 2
    text = f"{'Mostly' if most else 'The largest of many causes:'} {' and '.join(_amount(cause) for cause in main)}"
    text = f"{text}; against it {_amount(against[0])}." if against else f"{text}."
    return f"{text} {_price(causes)}".rstrip()


def _time(causes: Sequence[Cause]) -> float:
    return sum(cause.finding.time_ps or 0.0 for cause in causes)


def _price(causes: Sequence[Cause]) -> str:
    return next((f"{cause.finding.title}." for cause in causes if cause.label == PRICE), "")


def _amount(cause: Cause) -> str:
    return f"{cause.label} ({amount(cause.finding.mfu_points, cause.finding.time_ps or 0.0)})"


def busy_ps(measured: Measured) -> float:
    """Device time of a step: the step less what is idle, ps."""
    return measured.times.step_ps - measured.times.idle_ps


def _word(ratio: float, significant: bool | None, less: str, more: str) -> str:
    """The first word for a ratio of times; none of them where the change is within noise."""
    if abs(ratio - 1) < 0.0005:
        return "No change"
    if significant is False:
        return "No clear change, within noise"
    return less if ratio < 1 else more
