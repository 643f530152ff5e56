"""How long every call of some ops took, in the steady steps: durations, their summary, and a histogram of two sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiler.analysis.summary import Measured
from profiler.results_ops import CallSummary, Histogram

BINS = 40
LOG_SPREAD = 100  # where the longest call takes more than this many times the shortest, bins grow in width
_LEAST_WIDTH_PS = 1.0  # a picosecond is the finest that a recording tells


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls from start to end, file order per device.

    ``duration_ps`` int64; ``device`` int32, the index of Trace.devices; ``step`` int32, counted from the first steady
    step of the device; ``op`` int32, rows of Trace.ops; ``weight`` float64, one over the device's steady steps times
    the devices, so that a weighted sum is a mean per device and step, as StepTimes has them.
    """

    duration_ps: NDArray[np.int64]
    device: NDArray[np.int32]
    step: NDArray[np.int32]
    op: NDArray[np.int32]
    weight: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.duration_ps)


def calls(measured: Measured, op_ids: Iterable[int]) -> Calls:
    """Every call of the ops that began in a steady step.

    Spans that are no calls are left out: of an asynchronous pair the half that waits, and what is in flight.
    """
    trace, spans = measured.trace, measured.times.spans
    wanted = np.zeros(trace.ops.height, np.bool_)
    wanted[np.fromiter(op_ids, np.int64)] = True
    parts: list[tuple[NDArray[np.int64], ...]] = []
    weights: list[NDArray[np.float64]] = []
    for device, windows in spans.items():
        timeline = trace.timelines[device]
        chosen = np.flatnonzero(wanted[timeline.op] & timeline.counted)
        start, duration = timeline.start_ps[chosen], timeline.duration_ps[chosen]
        step = np.searchsorted(windows[:, 0], start, side="right") - 1
        inside = (step >= 0) & (start < windows[np.maximum(step, 0), 1])
        # As the sweep has it: a span of no length at the very end still is a call.
        inside |= (start == windows[-1, 1]) & (duration == 0)
        kept = np.flatnonzero(inside)
        parts.append((duration[kept], np.full(len(kept), device), step[kept], timeline.op[chosen[kept]]))
        weights.append(np.full(len(kept), 1 / (len(windows) * len(spans))))
    duration, where, step, op = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Calls(
        duration.astype(np.int64),
        where.astype(np.int32),
        step.astype(np.int32),
        op.astype(np.int32),
        np.concatenate(weights),
    )


def summarize(found: Calls, scale: float = 1.0) -> CallSummary | None:
    """The calls in a few figures, times multiplied by ``scale``; None without any."""
    if not len(found):
        return None
    times = found.duration_ps * scale
    low, median, high = np.percentile(times, (10, 50, 90)).tolist()
    return CallSummary(
        count=len(found),
        min_ps=float(times.min()),
        p10_ps=low,
        median_ps=median,
        mean_ps=float(np.average(times, weights=found.weight)),
        p90_ps=high,
        max_ps=float(times.max()),
    )


def histograms(sides: Sequence[Calls], scales: Sequence[float]) -> tuple[Histogram | None, ...]:
    """One histogram per side over the same bins, times multiplied by its scale; None for a side without calls.

    Bins are equally wide, or grow by a constant factor where the longest of all calls takes more than LOG_SPREAD times
    the shortest that takes any time.
    """
    times = [side.duration_ps * scale for side, scale in zip(sides, scales, strict=True)]
    known = [each for each in times if len(each)]
    if not known:
        return tuple(None for _ in sides)
    edges, logarithmic = _edges(np.concatenate(known))
    found = []
    for each in times:
        counts = np.histogram(each, edges)[0]
        shares = tuple((counts / len(each)).tolist()) if len(each) else ()
        histogram = Histogram(tuple(edges.tolist()), tuple(counts.tolist()), shares, logarithmic)
        found.append(histogram if len(each) else None)
    return tuple(found)


def _edges(times: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    low, high = float(times.min()), float(times.max())
    positive = times[times > 0]
    shortest = float(positive.min()) if len(positive) else 0.0
    if shortest and high > LOG_SPREAD * shortest:
        edges = np.geomspace(shortest, high, BINS + 1)
        edges[0], edges[-1] = low, high  # calls of no time are in the first bin
        return edges, True
    # Calls of one length still need a bin that has a width.
    room = max(_LEAST_WIDTH_PS, high * 1e-3) if high - low < _LEAST_WIDTH_PS else 0.0
    bins = BINS if high - low >= BINS * _LEAST_WIDTH_PS else 1
    return np.linspace(max(low - room, 0.0), high + room, bins + 1), False
