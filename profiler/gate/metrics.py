"""What can be gated: every metric's two figures, and the interval of their difference where noise is known.

Times of categories (idle, exposed communication, …) are those of the diff's split: per device, for the work of one
baseline step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from profiler.results import Contribution, Diff, Memory, Summary

# Unit → its size in the metric's own: a percentage is relative to the baseline, a point is of 100 % of the figure.
UNITS = {
    "%": math.nan,
    "pt": 0.01,
    "ps": 1.0,
    "ns": 1e3,
    "us": 1e6,
    "ms": 1e9,
    "s": 1e12,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "nats": 1.0,
    "": 1.0,
}
_TIMES = ("ms", "%", "ps", "ns", "us", "s")
_BYTES = ("GiB", "%", "B", "KiB", "MiB", "TiB")

INTERVAL, NONE, ESTIMATE, UNKNOWN = "interval", "none", "estimate", "unknown"
ROUNDING = 1e-9
RERUN = "re-run"


@dataclass(frozen=True, slots=True)
class Figures:
    """A metric of both sides; ``noise`` is as in ``CheckRow``, and ``reach`` bounds optimized − baseline.

    ``missing`` says why it cannot be checked.
    """

    baseline: float | None = None
    optimized: float | None = None
    noise: str = UNKNOWN
    reach: tuple[float, float] | None = None
    remark: str = ""
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One name of the grammar; the first unit is that of a bare 0. ``calls`` counts where the unit is none."""

    what: str
    units: tuple[str, ...]
    figure_unit: str
    of: Callable[[Diff], Figures]
    calls: Callable[[Diff], Figures] | None = None


def compiled(diff: Diff) -> bool:
    """Whether both sides are compiled: times are estimates then, and have no noise."""
    return diff.baseline.kind == diff.optimized.kind == "compiled"


def _ratio_figures(diff: Diff, base: float | None, opt: float | None, missing: str, *, inverse: bool) -> Figures:
    """Figures that go with the time for equal work, or with its inverse, and so have the interval of its ratio."""
    if not _known(base) or not _known(opt):
        return Figures(base, opt, missing=missing)
    assert base is not None
    assert opt is not None
    if compiled(diff):
        return Figures(base, opt, ESTIMATE, remark=_band(diff), missing=_methods(diff))
    bounds = diff.delta.interval
    first, last = diff.delta.baseline_time_ps, diff.delta.optimized_time_ps
    if bounds is None or not first or not last:
        return Figures(base, opt, UNKNOWN)
    center = last / first
    factors = [center / end if inverse else end / center for end in bounds]
    low, high = sorted(opt * factor - base for factor in factors)
    return Figures(base, opt, INTERVAL, (low, high))


def _methods(diff: Diff) -> str | None:
    """Why estimates tell nothing of a change: those of the two sides were made differently."""
    differ = any(note.code == "estimates_differ" for note in diff.warnings)
    return "the two estimates are made differently, so a difference in time may be the method's" if differ else None


def _band(diff: Diff) -> str:
    if diff.delta.band is None:
        return ""
    low, high = (f"{(end - 1) * 100:+.1f} %".replace("-", "−") for end in diff.delta.band)
    return f"over the ranges of the estimates' constants the time for equal work changes by {low} to {high}"


def _step_time(diff: Diff) -> Figures:
    means = diff.baseline.steps.mean_ps, diff.optimized.steps.mean_ps
    return _ratio_figures(diff, *means, "no step time", inverse=False)


def _throughput(diff: Diff) -> Figures:
    missing = "the work of a step is unknown and may differ (--tokens-per-step or --model-tflops)"
    ratio = diff.delta.throughput_ratio
    return _ratio_figures(diff, 1.0 if ratio is not None else None, ratio, missing, inverse=True)


def _mfu(diff: Diff) -> Figures:
    missing = "unknown on a side: it needs model FLOPs and the device's peak (--model-tflops, --peak-tflops)"
    return _ratio_figures(diff, diff.baseline.mfu, diff.optimized.mfu, missing, inverse=True)


def _hfu(diff: Diff) -> Figures:
    missing = "unknown on a side: not every op's FLOPs are counted, or model FLOPs or the device's peak are unknown"
    return _ratio_figures(diff, diff.baseline.hfu, diff.optimized.hfu, missing, inverse=True)


def _category(name: str) -> Callable[[Diff], Figures]:
    def figures(diff: Diff) -> Figures:
        if name == "idle" and any(note.code == "mostly_idle" for note in diff.warnings):
            return Figures(missing="device time is compared, without idle time, since nobody marked steps")
        return _summed(diff, lambda item: item.category == name)

    return figures


def _rerun_time(diff: Diff) -> Figures:
    return _summed(diff, lambda item: item.phase == RERUN) if _phases(diff) else _NO_PHASE


def _rerun_calls(diff: Diff) -> Figures:
    """Calls per step, as the program has them."""
    if not _phases(diff):
        return _NO_PHASE
    before, after = (side.remat.rerun_calls_per_step for side in (diff.baseline, diff.optimized))
    equal = abs(after - before) <= 1e-6 * max(before, after)
    return Figures(before, before if equal else after, NONE)


_NO_PHASE = Figures(missing="a recording does not tell the phases of its ops")


def _phases(diff: Diff) -> bool:
    return all(_has_phases(side) for side in (diff.baseline, diff.optimized))


def _has_phases(side: Summary) -> bool:
    return bool(side.phases) or any(row.phase for row in side.families)


def _summed(diff: Diff, chosen: Callable[[Contribution], bool]) -> Figures:
    items = [item for item in diff.contributions if chosen(item)]
    base, opt = (sum(getattr(item, f"{side}_time_ps") for item in items) for side in ("baseline", "optimized"))
    if not items:
        return Figures(0.0, 0.0, NONE, remark="none on either side")
    if compiled(diff):
        return Figures(base, opt, ESTIMATE, missing=_methods(diff))
    bounds = [item.interval_time_ps for item in items]
    if None in bounds:
        return Figures(base, opt, UNKNOWN)
    # Categories of one step may move together: the sum of their reaches holds whatever their correlation is.
    reach = sum((high - low) / 2 for low, high in (each for each in bounds if each is not None))
    reach = max(reach, ROUNDING * (base + opt))
    return Figures(base, opt, INTERVAL, (opt - base - reach, opt - base + reach))


def _memory(name: str, missing: str, noise: str = NONE) -> Callable[[Diff], Figures]:
    def figures(diff: Diff) -> Figures:
        base, opt = (_bytes(side.memory, name) for side in (diff.baseline, diff.optimized))
        absent = [side for side, value in (("baseline", base), ("optimized", opt)) if value is None]
        if absent:
            return Figures(base, opt, missing=f"unknown on {' and '.join(absent)}: {missing}")
        return Figures(base, opt, noise)

    return figures


def _bytes(memory: Memory, name: str) -> float | None:
    value: int | None = getattr(memory, name)
    return None if value is None else float(value)


def _loss(diff: Diff) -> Figures:
    found = diff.loss
    if found is None:
        return Figures(missing="a side's run info has no losses")
    base = found.baseline_loss[1] if found.baseline_loss else None
    opt = found.optimized_loss[1] if found.optimized_loss else None
    if found.kind == "settings" or (found.kind == "tokens" and found.difference is None):
        return Figures(base, opt, missing=found.text)
    if not _known(base) or (found.kind == "steps" and not _known(opt)):
        return Figures(base, opt, missing="the last loss is no number")
    assert base is not None
    change = found.difference if found.kind == "tokens" else None
    opt = base + change if change is not None else opt
    assert opt is not None
    where = "after the last step" if change is None else "at equal tokens seen"
    what, unit = ("rounding", "relative") if change is None else ("scatter", "nats")
    if not found.unchanged or found.tolerance is None:
        return Figures(base, opt, NONE, remark=f"{where}; more than {what}")
    reach = found.tolerance * (abs(base) if change is None else 1.0)
    remark = f"{where}; {what} explains {found.tolerance:.3g} {unit}"
    return Figures(base, opt, INTERVAL, (opt - base - reach, opt - base + reach), remark)


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


_PLAN = "the recording does not hold the compiler's plan of its program"
_EVENTS = "the recording has no allocator events"

METRICS = {
    "mfu": Metric("model FLOPs utilisation", ("pt", "%"), "fraction", _mfu),
    "hfu": Metric("hardware FLOPs utilisation, re-runs counted", ("pt", "%"), "fraction", _hfu),
    "throughput": Metric("work per time", ("%",), "ratio", _throughput),
    "step_time": Metric("mean step, whatever its work", ("%", "ps", "ns", "us", "ms", "s"), "ps", _step_time),
    "compute": Metric("time of compute ops", _TIMES, "ps", _category("compute")),
    "exposed_comm": Metric("communication that no compute hides", _TIMES, "ps", _category("communication")),
    "exposed_transfer": Metric("transfers that no compute hides", _TIMES, "ps", _category("transfer")),
    "wait": Metric("waiting", _TIMES, "ps", _category("wait")),
    "idle": Metric("idle time", _TIMES, "ps", _category("idle")),
    "remat": Metric("re-runs by rematerialisation", ("", *_TIMES), "ps", _rerun_time, _rerun_calls),
    "hbm_peak": Metric("static peak", _BYTES, "bytes", _memory("static_peak_bytes", _PLAN)),
    "hbm_allocated": Metric(
        "static peak with the gaps of packing",
        _BYTES,
        "bytes",
        _memory("static_allocated_bytes", _PLAN),
    ),
    "hbm_window": Metric(
        "highest account of the allocators while recorded",
        _BYTES,
        "bytes",
        _memory("window_peak_bytes", _EVENTS, UNKNOWN),
    ),
    "loss": Metric("training loss", ("%", "nats"), "nats", _loss),
}
