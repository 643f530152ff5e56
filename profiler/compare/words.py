"""The verdict and the findings in words."""

from __future__ import annotations

import polars as pl

from profiler.analysis.summary import Measured
from profiler.compare.align import Alignment
from profiler.compare.attribute import Work
from profiler.reduce.steps import REPEATS
from profiler.results import Contribution, Delta, Finding

SMALL = 0.005  # a change below this share of the step is no finding
MAX_FINDINGS = 12
NEGLIGIBLE = 1e-3  # of a change: a part below this is rounding, not a part
_UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns"), (1.0, "ps"))


def duration(*values: float) -> tuple[str, ...]:
    """Times in one common unit, "67.21 ms"."""
    largest = max((abs(value) for value in values), default=0.0)
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if largest >= scale), _UNITS[-1])
    return tuple(f"{value / scale:.2f} {unit}" for value in values)


def signed(value: float) -> str:
    """A time with its sign, "−25.11 ms"."""
    return ("+" if value > 0 else "−" if value < 0 else "") + duration(abs(value))[0]


def percent(ratio: float) -> str:
    """A ratio as a change, "−5.1 %"; what rounds to nothing has no sign."""
    change = round(100 * (ratio - 1), 1)
    return f"{'+' if change > 0 else '−' if change < 0 else ''}{abs(change):.1f} %"


def verdict(baseline: Measured, optimized: Measured, delta: Delta, work: Work) -> str:
    """One sentence: faster or slower, by how much, on which basis."""
    estimate = " (compiler estimate)" if baseline.trace.kind == "compiled" else ""
    step_b, step_o = duration(baseline.times.step_ps, optimized.times.step_ps)
    unit = baseline.times.unit
    if delta.mfu_points is not None:
        mfu_b, mfu_o = baseline.summary.mfu or 0.0, optimized.summary.mfu or 0.0
        word = _word(mfu_o / mfu_b if mfu_b else 1.0, "More efficient", "Less efficient", "No change in efficiency")
        growth = work.optimized / work.baseline
        same = f" for {growth:.2f}× the work" if abs(growth - 1) > 0.001 else ""
        return (
            f"{word}: MFU {mfu_b:.2%} → {mfu_o:.2%} ({_points(delta.mfu_points)}), {unit} {step_b} → {step_o} "
            f"({percent(delta.step_time_ratio)}){same}, per device{estimate}."
        )
    ratio = delta.optimized_time_ps / delta.baseline_time_ps if delta.baseline_time_ps else 1.0
    if work.unit == "token":
        word = _word(1 / ratio if ratio else 1.0, "Faster", "Slower", "No change in speed")
        return (
            f"{word}: {percent(1 / ratio)} tokens per second; {unit} {step_b} → {step_o} for "
            f"{work.optimized / work.baseline:.2f}× the tokens, per device{estimate}."
        )
    if unit == "run":
        busy_b, busy_o = busy(baseline), busy(optimized)
        word = _word(busy_b / busy_o if busy_o else 1.0, "Faster", "Slower", "No change in device time")
        text_b, text_o = duration(busy_b, busy_o)
        return (
            f"{word}: device time {text_b} → {text_o} ({percent(busy_o / busy_b if busy_b else 1.0)}) over the whole "
            f"recording, per device{estimate}; no step repeats."
        )
    busy_b, busy_o = busy(baseline), busy(optimized)
    text_b, text_o = duration(busy_b, busy_o)
    if unmarked_and_idle(baseline) or unmarked_and_idle(optimized):
        word = _word(busy_b / busy_o if busy_o else 1.0, "Faster", "Slower", "No change in device time")
        idle = f"{1 - baseline.summary.busy_fraction:.0%} and {1 - optimized.summary.busy_fraction:.0%}"
        return (
            f"{word}: device time {text_b} → {text_o} ({percent(busy_o / busy_b if busy_b else 1.0)}) per execution "
            f"and device{estimate}; nobody marked steps, and between executions the devices were idle {idle} of "
            f"the time ({step_b} → {step_o} start to start)."
        )
    word = _word(1 / ratio if ratio else 1.0, "Faster", "Slower", "No change in step time")
    return (
        f"{word}: step {step_b} → {step_o} ({percent(ratio)}), of which device time {text_b} → {text_o} "
        f"({percent(busy_o / busy_b if busy_b else 1.0)}), per device{estimate}."
    )


def unmarked_and_idle(measured: Measured) -> bool:
    """Whether steps are repeats of a program with mostly idle time between: what the host did, not a training step."""
    return measured.times.source == REPEATS and measured.summary.busy_fraction < 0.5


def busy(measured: Measured) -> float:
    """Device time of a step: the step less what is idle, ps."""
    return measured.times.step_ps - measured.times.idle_ps


def findings(
    contributions: tuple[Contribution, ...],
    alignment: Alignment,
    baseline: Measured,
    optimized: Measured,
    points_per_ps: float | None,
) -> tuple[Finding, ...]:
    """Causes by size: families whose time changed, each with the ops that carry the change."""
    reference = max(busy(baseline), busy(optimized), 1.0)
    found = list(_replacements(alignment, reference, points_per_ps))
    replaced = alignment.ops.filter(pl.col("match") == "replaced")
    for each in contributions:
        # What a replacement explains is told once, as one cause.
        told = _replaced_time(replaced, each, "optimized") - _replaced_time(replaced, each, "baseline")
        left = abs(each.time_ps - told)
        if each.category != "peak" and left < SMALL * reference:
            continue
        found.append(_finding(each, alignment))
    found.sort(key=lambda each: (-abs(each.mfu_points or 0.0), -abs(each.time_ps or 0.0), each.title))
    counted = _counted_flops(baseline, optimized)
    return (*found[:MAX_FINDINGS], *([counted] if counted else []))


def _finding(each: Contribution, alignment: Alignment) -> Finding:
    what = f"{each.family} ({each.phase})" if each.phase else each.family
    before, after = duration(each.baseline_time_ps, each.optimized_time_ps)
    if each.category == "peak":
        return Finding("peak: the chips differ", each.mfu_points, None)
    evidence = []
    if each.baseline_calls is not None and each.optimized_calls is not None:
        evidence.append(f"calls {_calls(each.baseline_calls)} → {_calls(each.optimized_calls)} per unit")
        if each.baseline_calls and each.optimized_calls:
            mean = duration(each.baseline_time_ps / each.baseline_calls, each.optimized_time_ps / each.optimized_calls)
            evidence.append(f"mean {mean[0]} → {mean[1]} per call")
        if min(abs(each.calls_time_ps), abs(each.per_call_time_ps)) > NEGLIGIBLE * abs(each.time_ps):
            parts = signed(each.calls_time_ps), signed(each.per_call_time_ps)
            evidence.append(f"{parts[0]} from the number of calls, {parts[1]} from the time per call")
    evidence += _ops(each, alignment)
    return Finding(f"{what}: {before} → {after}", each.mfu_points, each.time_ps, (), tuple(evidence))


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


def _replacements(alignment: Alignment, reference: float, points_per_ps: float | None) -> list[Finding]:
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
        found.append(
            Finding(
                f"{row['baseline_family']} replaced by {row['family']}: {before} → {after}",
                None if points_per_ps is None else -points_per_ps * change,
                change,
                (),
                (
                    f"{row['baseline_op']} → {row['optimized_op']}",
                    f"calls {_calls(row['baseline_calls'])} → {_calls(row['optimized_calls'])} per unit",
                ),
                "high" if row["confidence"] >= 0.8 else "medium" if row["confidence"] >= 0.6 else "low",
            )
        )
    return found


def _counted_flops(baseline: Measured, optimized: Measured) -> Finding | None:
    """XLA counts no FLOPs for custom calls: a collapse there is no loss of work."""
    before, after = baseline.summary.compiler_tflops_per_step, optimized.summary.compiler_tflops_per_step
    if not before or not after or 0.8 < after / before < 1.25:
        return None
    return Finding(
        f"FLOPs counted by the compiler {before:.2f} → {after:.2f} TFLOP: not a change in MFU",
        None,
        None,
        (),
        ("XLA counts 0 FLOPs for custom calls such as Pallas kernels; MFU uses the model's FLOPs",),
        "high",
    )


def _points(points: float) -> str:
    return f"{'+' if points >= 0 else '−'}{abs(points):.2f} points"


def _calls(calls: float) -> str:
    return f"{calls:,.0f}" if abs(calls - round(calls)) < 0.005 else f"{calls:,.2f}"


def _word(ratio: float, up: str, down: str, same: str) -> str:
    return same if abs(ratio - 1) < 0.0005 else up if ratio > 1 else down
