"""The few figures of a run that a history shows: of a summary, or of a reduced run without reading any span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiler.analysis.hbm import peaks
from profiler.fleet import Fleet
from profiler.reduce import hosts
from profiler.reduce.sources import outcomes, several_hosts, sources
from profiler.results import Memory, Summary
from profiler.runinfo import fact, tokens_per_device
from profiler.trace import Trace
from profiler.xplane.locate import Side


@dataclass(frozen=True, slots=True)
class Figures:
    """As the summary of the run has them. ``devices`` and ``hosts`` are those that recorded ops."""

    kind: str
    chip: str | None
    devices: int
    hosts: int
    unit: str
    steps: int
    step_ps: float
    busy_fraction: float
    mfu: float | None
    tokens_per_s: float | None
    hbm_peak_bytes: int | None
    hbm_window_bytes: int | None
    run_info: Mapping[str, Any]


def of_summary(summary: Summary) -> Figures:
    """The figures of a run that was measured."""
    fleet = summary.fleet
    names = {device.host for device in summary.devices}
    return Figures(
        kind=summary.kind,
        chip=_one({device.type for device in summary.devices}),
        devices=fleet.devices if fleet else len(summary.devices),
        hosts=fleet.hosts_read if fleet else len(names),
        unit=summary.steps.unit,
        steps=summary.steps.count,
        step_ps=summary.steps.mean_ps,
        busy_fraction=summary.busy_fraction,
        mfu=summary.mfu,
        tokens_per_s=summary.tokens_per_s,
        hbm_peak_bytes=summary.memory.static_peak_bytes,
        hbm_window_bytes=summary.memory.window_peak_bytes,
        run_info=summary.run_info or {},
    )


def of_reduced(side: Side, *, memory: bool = True) -> Figures:
    """The figures of a reduced run: equal to those of ``of_summary``, from the tables of its steps.

    Args:
        side: the reduced run.
        memory: whether those of memory are wanted, for which its programs are read; else they are None.

    Raises:
        UnreadableError: it is damaged, or holds no device op.
    """
    found = sources(side)
    every = hosts.together(outcomes([each for _, each in found], None), side, [number for number, _ in found])
    described = every.fleet((), None)
    chosen = hosts.shown(described, None)
    if not several_hosts(found):
        chosen = tuple(range(len(described.fleet.devices)))
    trace = hosts.view(
        described, chosen, lambda place, name: found[place][1].spans(name, timelines=False), timelines=False
    )
    return _of_fleet(trace, described.fleet, chosen, peaks(trace) if memory else Memory())


def _of_fleet(trace: Trace, fleet: Fleet, chosen: tuple[int, ...], memory: Memory) -> Figures:
    unit = "step" if any(fleet.windows[place].unit == "step" for place in chosen) else "run"
    timed = [place for place in chosen if fleet.windows[place].unit == unit and len(fleet.windows[place].spans)]
    step = float(np.mean([fleet.lengths_ps(place).mean() for place in timed])) if timed else 0.0
    idle = float(np.mean([fleet.group_ps(place)[:, -1].mean() for place in timed])) if timed else 0.0
    known = {fleet.devices[place].peak_tflops for place in chosen}
    peak = known.pop() if len(known) == 1 else None
    tflops, tokens = fact(trace, "model_tflops_per_device_per_step"), tokens_per_device(trace)
    return Figures(
        kind=trace.kind,
        chip=_one({fleet.devices[place].type for place in chosen}),
        devices=len(fleet.devices),
        hosts=len({device.host_index for device in fleet.devices}),
        unit=unit,
        steps=round(sum(len(fleet.windows[place].spans) for place in timed) / max(len(timed), 1)),
        step_ps=step,
        busy_fraction=1 - idle / step if step else 0.0,
        mfu=tflops * 1e12 / (step * 1e-12 * peak * 1e12) if tflops and peak and step else None,
        tokens_per_s=tokens / (step * 1e-12) if tokens and step else None,
        hbm_peak_bytes=memory.static_peak_bytes,
        hbm_window_bytes=memory.window_peak_bytes,
        run_info=trace.run_info or {},
    )


def _one(kinds: set[str | None]) -> str | None:
    return " / ".join(sorted(kind or "unknown" for kind in kinds)) if kinds != {None} else None
