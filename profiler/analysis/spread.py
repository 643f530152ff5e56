"""The spread of the step over all devices of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from profiler.fleet import Fleet, StepRange
from profiler.results_fleet import FleetHost, FleetSummary
from profiler.trace import Trace


def spread(trace: Trace, steps: StepRange | None = None, skip_first: int = 0) -> FleetSummary | None:
    """The fleet in a few figures, over the steps that are chosen; None where no recording has several hosts."""
    if trace.run_fleet is None and len({host.recording for host in trace.hosts}) == len(trace.hosts):
        return None
    fleet = trace.fleet
    means = fleet.means_ps(steps, skip_first)
    timed = np.flatnonzero(~np.isnan(means))
    ordered = timed[np.argsort(means[timed], kind="stable")].tolist()

    def at(share: float) -> float | None:
        return float(means[ordered[int((len(ordered) - 1) * share)]]) if ordered else None

    names = [device.name for device in fleet.devices]
    return FleetSummary(
        hosts=_hosts(fleet, means),
        hosts_read=len(fleet.read),
        devices=len(fleet.devices),
        shown=tuple(names[index] for index in fleet.shown),
        choice=_choice(fleet),
        unit=fleet.unit,
        min_ps=at(0),
        p10_ps=at(0.1),
        median_ps=at(0.5),
        p90_ps=at(0.9),
        max_ps=at(1),
        fastest=names[ordered[0]] if ordered else None,
        slowest=names[ordered[-1]] if ordered else None,
    )


def _hosts(fleet: Fleet, means: NDArray[np.float64]) -> tuple[FleetHost, ...]:
    devices: list[list[int]] = [[] for _ in fleet.hosts]
    for device in fleet.devices:
        devices[device.host_index].append(device.index)
    found = []
    for host, mine in zip(fleet.hosts, devices, strict=True):
        timed = means[mine][~np.isnan(means[mine])] if mine else means[:0]
        mean = float(timed.mean()) if len(timed) else None
        found.append(FleetHost(host.name, host.status, host.why, len(mine), mean))
    return tuple(found)


def _choice(fleet: Fleet) -> str:
    if len(fleet.shown) == len(fleet.devices):
        return "all"
    medians = set()
    for recording in {fleet.host_of(index).recording for index in fleet.shown}:
        every = [each.index for each in fleet.devices if fleet.host_of(each.index).recording == recording]
        medians.add(fleet.median(every))
    return "median" if set(fleet.shown) == medians else "chosen"
