"""The verdict and the findings in words."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from profiler.analysis.summary import Measured
from profiler.compare.align import Alignment
from profiler.compare.attribute import Work
from profiler.compare.phrases import amount, calls, duration, percent, points, signed
from profiler.results import Contribution, Delta, Finding

SMALL = 0.005  # a change below this share of the step is no finding
MAX_FINDINGS = 12
NEGLIGIBLE = 1e-3  # of a change: a part below this is rounding, not a part
MAIN_CAUSE = 0.1  # of the change: what the verdict names


@dataclass(frozen=True)
class Cause:
    """One cause of the change: its name in the verdict, and the finding that explains it."""

    label: str
    finding: Finding


def verdict(
    baseline: Measured, optimized: Measured, delta: Delta, work: Work, causes: tuple[Cause, ...], *, device_time: bool
) -> str:
    """Faster or slower, by how much, on which basis, and what for the most part. ``device_time``: without idle time."""
    headline = _headline(baseline, optimized, delta, work, device_time=device_time)
    impossible = any((side.summary.mfu or 0) > 1 for side in (baseline, optimized))
    if impossible:
        headline += " An MFU above 100 % is impossible: check the model FLOPs and the peak."
    because = _because(delta, causes)
    return f"{headline} {because}" if because else headline


def _headline(baseline: Measured, optimized: Measured, delta: Delta, work: Work, *, device_time: bool) -> str:
    estimate = " (compiler estimates)" if baseline.trace.kind == "compiled" else ""
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


def _because(delta: Delta, causes: tuple[Cause, ...]) -> str:
    """The causes that make most of the change, and the largest against it."""
    change = delta.optimized_time_ps - delta.baseline_time_ps
    if delta.significant is False or not change:
        return ""
    main = [cause for cause in causes if (cause.finding.time_ps or 0.0) * change > 0]
    main = [cause for cause in main if abs(cause.finding.time_ps or 0.0) >= MAIN_CAUSE * abs(change)][:2]
    against = [cause for cause in causes if (cause.finding.time_ps or 0.0) * change < 0][:1]
    against = [cause for cause in against if abs(cause.finding.time_ps or 0.0) >= MAIN_CAUSE * abs(change)]
    if not main:
        return ""
    text = f"Mostly {' and '.join(_amount(cause) for cause in main)}"
    return f"{text}; against it {_amount(against[0])}." if against else f"{text}."


def _amount(cause: Cause) -> str:
    return f"{cause.label} ({amount(cause.finding.mfu_points, cause.finding.time_ps or 0.0)})"


def busy_ps(measured: Measured) -> float:
    """Device time of a step: the step less what is idle, ps."""
    return measured.times.step_ps - measured.times.idle_ps


def causes(
    contributions: tuple[Contribution, ...],
    alignment: Alignment,
    baseline: Measured,
    optimized: Measured,
    delta: Delta,
    points_per_ps: float | None,
) -> tuple[Cause, ...]:
    """Causes by size: families whose time changed, each with the ops that carry the change."""
    reference = max(busy_ps(baseline), busy_ps(optimized), 1.0)
    unit = baseline.times.unit
    noise = None if delta.interval is None else (delta.interval[1] - delta.interval[0]) / 2 * delta.baseline_time_ps
    found = list(_replacements(alignment, reference, points_per_ps, noise, unit))
    replaced = alignment.ops.filter(pl.col("match") == "replaced")
    for each in contributions:
        # What a replacement explains is told once, as one cause.
        told = _replaced_time(replaced, each, "optimized") - _replaced_time(replaced, each, "baseline")
        left = abs(each.time_ps - told)
        if each.category != "peak" and left < SMALL * reference:
            continue
        found.append(_cause(each, alignment, noise, unit))
    found.sort(
        key=lambda each: (-abs(each.finding.mfu_points or 0.0), -abs(each.finding.time_ps or 0.0), each.finding.title)
    )
    return tuple(found[:MAX_FINDINGS])


def counted_flops(baseline: Measured, optimized: Measured) -> tuple[Finding, ...]:
    """XLA counts no FLOPs for custom calls: a collapse there is no loss of work."""
    before, after = baseline.summary.compiler_tflops_per_step, optimized.summary.compiler_tflops_per_step
    if not before or not after or 0.8 < after / before < 1.25:
        return ()
    return (
        Finding(
            f"FLOPs counted by the compiler {before:.2f} → {after:.2f} TFLOP: not a change in MFU",
            None,
            None,
            (),
            ("XLA counts 0 FLOPs for custom calls such as Pallas kernels; MFU uses the model's FLOPs",),
            "high",
        ),
    )


def _cause(each: Contribution, alignment: Alignment, noise: float | None, unit: str) -> Cause:
    what = f"{each.family} ({each.phase})" if each.phase else each.family
    if each.category == "peak":
        return Cause("another peak", Finding("peak: the chips differ", each.mfu_points, None))
    before, after = duration(each.baseline_time_ps, each.optimized_time_ps)
    evidence = []
    if each.baseline_calls is not None and each.optimized_calls is not None:
        counts = dict.fromkeys((calls(each.baseline_calls), calls(each.optimized_calls)))
        evidence.append(f"calls {' → '.join(counts)} per {unit}")
        if min(abs(each.calls_time_ps), abs(each.per_call_time_ps)) > NEGLIGIBLE * abs(each.time_ps):
            parts = signed(each.calls_time_ps), signed(each.per_call_time_ps)
            evidence.append(f"{parts[0]} from the number of calls, {parts[1]} from the time per call")
    evidence += _ops(each, alignment)
    title = f"{what}: {before} → {after}"
    confidence = _confidence(each.time_ps, noise)
    return Cause(what, Finding(title, each.mfu_points, each.time_ps, (), tuple(evidence), confidence))


def _confidence(time: float, noise: float | None, match: float = 1.0) -> str:
    """How sure a finding is; docs/matching.md.

    "high" needs a change of more than the uncertainty of the whole step's change, and sure matches; "low" is one within
    that uncertainty; "medium" is the rest, and all where the noise is unknown.
    """
    if noise is None:
        return "medium" if match >= 0.6 else "low"
    if abs(time) <= noise:
        return "low"
    return "high" if match >= 0.7 else "medium"


def _ops(each: Contribution, alignment: Alignment, count: int = 3) -> list[str]:
    """The aligned ops that carry a contribution's change."""
    phase = pl.col("phase").is_null() if each.phase is None else pl.col("phase") == each.phase
    family = (pl.col("family") == each.family) | (pl.col("baseline_family") == each.family)
    rows = alignment.ops.filter(family & phase)
    texts = []
    for row in rows.head(count).iter_rows(named=True):
        names = " → ".join(dict.fromkeys(name for name in (row["baseline_op"], row["optimized_op"]) if name))
        texts.append(f"{row['match']}: {names} ({signed(row['delta_time_ps'])})")
    return texts


def _replaced_time(replaced: pl.DataFrame, each: Contribution, side: str) -> float:
    """The part of a contribution's time on one side that replacements account for, ps."""
    phase = pl.col("phase").is_null() if each.phase is None else pl.col("phase") == each.phase
    family = "baseline_family" if side == "baseline" else "family"
    return float(replaced.filter((pl.col(family) == each.family) & phase)[f"{side}_time_ps"].sum())


def _replacements(
    alignment: Alignment, reference: float, points_per_ps: float | None, noise: float | None, unit: str
) -> list[Cause]:
    """Families that took another's place, as one cause each."""
    rows = (
        alignment.ops.filter(pl.col("match") == "replaced")
        .group_by("baseline_family", "family", maintain_order=True)
        .agg(
            *(pl.col(f"{side}_{what}").sum() for side in ("baseline", "optimized") for what in ("time_ps", "calls")),
            pl.col("confidence").min(),
            pl.col("baseline_op").first(),
            pl.col("optimized_op").first(),
        )
    )
    found = []
    for row in rows.iter_rows(named=True):
        change = row["optimized_time_ps"] - row["baseline_time_ps"]
        if max(row["baseline_time_ps"], row["optimized_time_ps"]) < SMALL * reference:
            continue
        before, after = duration(row["baseline_time_ps"], row["optimized_time_ps"])
        finding = Finding(
            f"{row['baseline_family']} replaced by {row['family']}: {before} → {after}",
            None if points_per_ps is None else -points_per_ps * change,
            change,
            (),
            (
                f"{row['baseline_op']} → {row['optimized_op']}",
                f"calls {' → '.join(dict.fromkeys((calls(row['baseline_calls']), calls(row['optimized_calls']))))} "
                f"per {unit}",
            ),
            _confidence(change, noise, row["confidence"]),
        )
        found.append(Cause(f"{row['baseline_family']} → {row['family']}", finding))
    return found


def _word(ratio: float, significant: bool | None, less: str, more: str) -> str:
    """The first word for a ratio of times; none of them where the change is within noise."""
    if abs(ratio - 1) < 0.0005:
        return "No change"
    if significant is False:
        return "No clear change, within noise"
    return less if ratio < 1 else more
