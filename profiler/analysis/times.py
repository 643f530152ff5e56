"""Exclusive times: where every picosecond of a step went.

The step is cut at every event boundary, per device over all its lines. A piece is divided equally among the innermost
compute ops running in it; without compute it goes to the communication in flight, else to a transfer, else to waiting,
else to loop control, else it is idle. So the parts sum to the step by construction, with concurrent streams and
threads too. XProf's self time (the op table) sums what each line did and has no such property; docs/times.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiler.errors import UsageError
from profiler.fleet import Group
from profiler.reduce.steps import whole_recording
from profiler.reduce.sweep import CATEGORIES, flying_category, group_times, groups_of, keys_and_ranks
from profiler.results import Note
from profiler.trace import Timeline, Trace
from profiler.xplane import scan

SLOW_START = 1.05


@dataclass(frozen=True)
class StepTimes:
    """Mean exclusive times, per device and step.

    ``ops`` columns: ``op_id``, ``category`` ("compute", "communication", "transfer", "wait"), ``time_ps`` (float),
    ``calls`` (float), ``span_ps`` (float; mean sum of the spans that began in a step, overlaps and children included);
    Σ time_ps + idle_ps = step_ps. ``lengths_ps`` are all steady steps of all devices, one device after another;
    ``busy_ps`` the same steps without their idle time; ``device_steps`` how many each device has. ``group_steps`` has a
    row for each of these steps with the exclusive time of every group of ops, (category, family, phase) as in
    ``groups``, and idle last. ``spans`` are these steps, [start, end) in ps, by the index of the device.
    """

    unit: str
    source: str
    step_ps: float
    idle_ps: float
    ops: pl.DataFrame
    lengths_ps: NDArray[np.float64]
    busy_ps: NDArray[np.float64]
    device_steps: tuple[int, ...]
    notes: tuple[Note, ...] = ()
    groups: tuple[Group, ...] = ()
    group_steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 1)))
    spans: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steady steps per device (the mean over the devices, rounded)."""
        return round(len(self.lengths_ps) / max(len(self.device_steps), 1))


def step_times(
    trace: Trace,
    *,
    steps: tuple[int | None, int | None] | None = None,
    skip_first: int = 0,
    whole: bool = False,
) -> StepTimes:
    """Sweeps the steady steps of every device.

    Args:
        trace: a side with timelines.
        steps: keep the steady steps [A, B) only; None is open.
        skip_first: leave out this many steady steps first.
        whole: take the whole recording of each device as one unit, whatever steps it has.

    Raises:
        UsageError: no step is left.
    """
    if whole:
        trace = replace(trace, windows=tuple(whole_recording(timeline) for timeline in trace.timelines))
    chosen = [windows.spans[windows.rows(steps, skip_first)] for windows in trace.windows]
    if not any(len(spans) for spans in chosen):
        count = max((len(windows.spans) for windows in trace.windows), default=0)
        raise UsageError("no step is left", file=trace.label, remedy=f"there are {count} steady steps, from 0")
    rank = trace.ops["rank"].to_numpy()
    groups, group_of = groups_of(trace.ops)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        swept = list(pool.map(lambda timeline, spans: _sweep(timeline, spans, rank, group_of), trace.timelines, chosen))
    kept, notes = _of_one_unit(trace, [index for index, spans in enumerate(chosen) if len(spans)])
    lengths = [(chosen[index][:, 1] - chosen[index][:, 0]).astype(np.float64) for index in kept]
    count = len(kept)
    time = sum((swept[index][0] for index in kept), np.zeros(2 * len(rank) + 1)) / count
    calls = sum((swept[index][1] for index in kept), np.zeros(len(rank))) / count
    spans = sum((swept[index][2] for index in kept), np.zeros(len(rank))) / count
    return StepTimes(
        unit=trace.windows[kept[0]].unit,
        source=" / ".join(dict.fromkeys(trace.windows[index].source for index in kept)),
        step_ps=float(np.mean([each.mean() for each in lengths])),
        idle_ps=float(time[-1]),
        ops=_frame(time[:-1], calls, spans, rank),
        lengths_ps=np.concatenate(lengths),
        busy_ps=np.concatenate(lengths) - np.concatenate([swept[index][3][:, -1] for index in kept]),
        device_steps=tuple(len(each) for each in lengths),
        notes=(*notes, *_slow_start(lengths)),
        groups=groups,
        group_steps=np.concatenate([swept[index][3] for index in kept]),
        spans={index: chosen[index] for index in kept},
    )


def _of_one_unit(trace: Trace, kept: list[int]) -> tuple[list[int], list[Note]]:
    """Devices with steps; where some have none, those are left out, since a step and a recording have no mean."""
    stepped = [index for index in kept if trace.windows[index].unit == "step"]
    if not stepped or len(stepped) == len(kept):
        return kept, []
    names = ", ".join(trace.devices[index].name for index in kept if index not in stepped)
    return stepped, [Note("devices_without_steps", f"no step repeats on {names}: left out of all times per step")]


def _slow_start(lengths: list[NDArray[np.float64]]) -> list[Note]:
    """Whether the first step is unlike all others: the tracer's start, or a compile."""
    if any(len(each) < 4 for each in lengths):
        return []
    first = np.mean([each[0] for each in lengths])
    rest = np.concatenate([each[1:] for each in lengths])
    if first <= rest.max() or first <= SLOW_START * np.median(rest):
        return []
    return [
        Note(
            "slow_first_step",
            f"the first step took {first / np.median(rest) - 1:.0%} longer than the median of the others, and counts "
            "in the mean (--skip-first 1 leaves it out)",
        )
    ]


def _sweep(
    timeline: Timeline, spans: NDArray[np.int64], rank: NDArray[np.uint8], group_of: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(time per key, calls per op, span time per op), means over the windows; per window the time of every group.

    Keys are ops, then ops in flight (a span beside others is a transfer at best, whatever its op is), then idle;
    ``group_of`` has the group of each key.
    """
    ops = len(rank)
    if not len(spans):
        return np.zeros(2 * ops + 1), np.zeros(ops), np.zeros(ops), np.zeros((0, int(group_of.max(initial=-1)) + 2))
    key, ranks = keys_and_ranks(timeline, rank)
    time = scan.sweep(
        timeline.start_ps,
        timeline.start_ps + timeline.duration_ps,
        key,
        ranks,
        timeline.lane,
        spans,
        np.zeros(len(spans), np.int32),
        1,
        2 * ops,
    )[0]
    # Once more by group, step by step: ops by steps would be a table of any size.
    grouped = group_times(timeline, spans, rank, group_of)
    position = np.searchsorted(spans[:, 0], timeline.start_ps, side="right") - 1
    inside = (position >= 0) & (timeline.start_ps < spans[np.maximum(position, 0), 1])
    count = len(spans)
    # A span of no length at the very end of a run still is a call of it.
    inside |= (timeline.start_ps == spans[-1, 1]) & (timeline.duration_ps == 0)
    called = timeline.op[inside & timeline.counted]
    calls = np.bincount(called, minlength=ops) / count
    own = inside & (timeline.lane >= 0)
    span = np.bincount(timeline.op[own], weights=timeline.duration_ps[own].astype(np.float64), minlength=ops) / count
    return time / count, calls.astype(np.float64), span, grouped


def _frame(
    time: NDArray[np.float64], calls: NDArray[np.float64], spans: NDArray[np.float64], rank: NDArray[np.uint8]
) -> pl.DataFrame:
    ops = len(rank)
    here, flying = time[:ops], time[ops:]
    own = np.flatnonzero((here > 0) | (calls > 0) | (spans > 0))
    away = np.flatnonzero(flying > 0)
    away_category = [flying_category(value) for value in rank[away].tolist()]
    return pl.DataFrame(
        {
            "op_id": np.concatenate([own, away]).astype(np.int32),
            "category": [CATEGORIES[value] for value in rank[own].tolist()] + away_category,
            "time_ps": np.concatenate([here[own], flying[away]]),
            "calls": np.concatenate([calls[own], np.zeros(len(away))]),
            "span_ps": np.concatenate([spans[own], np.zeros(len(away))]),
        },
        schema={
            "op_id": pl.Int32,
            "category": pl.String,
            "time_ps": pl.Float64,
            "calls": pl.Float64,
            "span_ps": pl.Float64,
        },
    )
