"""The exact split of a change into exclusive categories.

With F the work of a step (model FLOPs, else tokens, else 1), t_c the exclusive time of category c and T = Σ t_c, let
x_c = t_c / F. Then MFU = 1 / (P · Σ x_c), and between baseline b and optimized o with one peak P

    MFU_o − MFU_b = Σ_c P · MFU_b · MFU_o · (x_c^b − x_c^o)

exactly. Within a category x = n · e (calls per step, mean time per call over F), so that

    x^b − x^o = (n^b − n^o)·(e^b + e^o)/2 + (e^b − e^o)·(n^b + n^o)/2

exactly again: fewer calls, and cheaper calls. F belongs to e: a bigger batch is not fewer calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from profiler.analysis.summary import Measured
from profiler.results import Contribution, FamilyRow


@dataclass(frozen=True)
class Work:
    """What a step does: ``unit`` is "flop", "token", "step" or "run"; amounts per step (1 where unknown)."""

    unit: str
    baseline: float
    optimized: float

    @property
    def scale(self) -> float:
        """Optimized times × scale are for the work of one baseline step."""
        return self.baseline / self.optimized


def contributions(baseline: Measured, optimized: Measured, work: Work) -> tuple[Contribution, ...]:
    """The change by category, family and phase, largest first.

    Times are per device, for the work of one baseline step. Where model FLOPs and peaks are known, ``mfu_points`` sum
    to the MFU delta in percentage points; ``time_ps`` sums to the time delta always. Where the peaks differ, one
    contribution ``peak`` = F_o/T_o · (1/P_o − 1/P_b) is added and all others use the baseline's peak.
    """
    before = {_key(row): row for row in baseline.summary.families}
    after = {_key(row): row for row in optimized.summary.families}
    rate = points_per_ps(baseline, optimized, work)
    found = [
        _contribution(key, before.get(key), after.get(key), work.scale, rate)
        for key in dict.fromkeys([*before, *after])
    ]
    peak = _peak_contribution(baseline, optimized)
    if peak is not None and rate is not None:
        found.append(peak)
    return tuple(
        sorted(found, key=lambda each: (-abs(each.mfu_points or 0), -abs(each.time_ps), each.family, each.phase or ""))
    )


def split(
    baseline_time: float, optimized_time: float, baseline_calls: float, optimized_calls: float
) -> tuple[float, float]:
    """optimized − baseline time as (what the number of calls did, what the time per call did); exact.

    A side without calls takes the other's time per call, so that all of it is calls; time without calls on either side
    (idle, transfers in flight) has only the second part.
    """
    delta = optimized_time - baseline_time
    if (baseline_time and not baseline_calls) or (optimized_time and not optimized_calls):
        return 0.0, delta
    if not baseline_calls or not optimized_calls:
        return delta, 0.0
    mean_delta = optimized_time / optimized_calls - baseline_time / baseline_calls
    per_call = mean_delta * (baseline_calls + optimized_calls) / 2
    return delta - per_call, per_call


def _key(row: FamilyRow) -> tuple[str, str, str | None]:
    return row.category, row.family, row.phase


def points_per_ps(baseline: Measured, optimized: Measured, work: Work) -> float | None:
    """MFU percentage points per ps saved, for times of one baseline step's work; None where MFU cannot be split.

    P · MFU_b · MFU_o / F_b with both MFU at the baseline's peak. Needs times per model FLOP: where another unit was
    asked for and the work grew otherwise in it, the parts would not sum to the MFU delta.
    """
    flops_b, flops_o, peak = baseline.model_flops, optimized.model_flops, baseline.peak_tflops
    step_b, step_o = baseline.times.step_ps, optimized.times.step_ps
    if not (flops_b and flops_o and peak and optimized.peak_tflops and step_b and step_o):
        return None
    if abs(flops_b / flops_o / work.scale - 1) > 1e-12:
        return None
    mfu_b, mfu_o = flops_b / (step_b * peak), flops_o / (step_o * peak)  # peak in TFLOP/s is FLOP/ps
    return 100 * peak * mfu_b * mfu_o / flops_b


def _contribution(
    key: tuple[str, str, str | None],
    before: FamilyRow | None,
    after: FamilyRow | None,
    scale: float,
    rate: float | None,
) -> Contribution:
    category, family, phase = key
    time_b = before.time_ps_per_step if before else 0.0
    time_o = after.time_ps_per_step * scale if after else 0.0
    calls_b, calls_o = _calls(before, after), _calls(after, before)
    by_calls, by_time = split(time_b, time_o, calls_b or 0.0, calls_o or 0.0)
    points = None if rate is None else (-rate * by_calls, -rate * by_time)
    return Contribution(
        category=category,
        family=family,
        phase=phase,
        mfu_points=None if points is None else points[0] + points[1],
        baseline_time_ps=time_b,
        optimized_time_ps=time_o,
        baseline_calls=calls_b,
        optimized_calls=calls_o,
        calls_points=None if points is None else points[0],
        per_call_points=None if points is None else points[1],
        time_ps=time_o - time_b,
        calls_time_ps=by_calls,
        per_call_time_ps=by_time,
    )


def _calls(mine: FamilyRow | None, other: FamilyRow | None) -> float | None:
    """Calls per step; 0 where the category exists on the other side only, None where calls mean nothing (idle)."""
    row = mine or other
    if row is None or row.calls_per_step is None:
        return None
    return mine.calls_per_step if mine else 0.0


def _peak_contribution(baseline: Measured, optimized: Measured) -> Contribution | None:
    flops, peak_b, peak_o = optimized.model_flops, baseline.peak_tflops, optimized.peak_tflops
    if not (flops and peak_b and peak_o and baseline.model_flops) or peak_b == peak_o:
        return None
    points = 100 * flops / optimized.times.step_ps * (1 / peak_o - 1 / peak_b)
    return Contribution("peak", "peak", None, points, 0.0, 0.0, None, None, 0.0, points)


def split_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds ``delta_time_ps``, ``calls_time_ps`` and ``per_call_time_ps`` to rows of aligned ops; see split."""
    parts = [
        split(*row)
        for row in frame.select(
            "baseline_time_ps", "optimized_time_ps", "baseline_calls", "optimized_calls"
        ).iter_rows()
    ]
    return frame.with_columns(
        delta_time_ps=pl.col("optimized_time_ps") - pl.col("baseline_time_ps"),
        calls_time_ps=pl.Series([calls for calls, _ in parts], dtype=pl.Float64),
        per_call_time_ps=pl.Series([own for _, own in parts], dtype=pl.Float64),
    )
