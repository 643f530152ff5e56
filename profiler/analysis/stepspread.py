"""The steady steps device by device: whether one of them is slower than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """The steady steps of one device, ps; ``busy_ps`` is the mean without idle time."""

    name: str
    host: str
    count: int
    mean_ps: float
    median_ps: float
    p10_ps: float
    p90_ps: float
    least_ps: float
    most_ps: float
    busy_ps: float


def device_steps(measured: Measured) -> tuple[DeviceSteps, ...]:
    """One row per device that has steps, in the order of the trace; the mean of their means is the mean step."""
    times, devices = measured.times, measured.trace.devices
    ends = np.cumsum(times.device_steps)[:-1]
    lengths, busy = np.split(times.lengths_ps, ends), np.split(times.busy_ps, ends)
    return tuple(
        DeviceSteps(
            name=devices[index].name,
            host=devices[index].host,
            count=len(each),
            mean_ps=float(each.mean()),
            median_ps=float(np.median(each)),
            p10_ps=float(np.percentile(each, 10)),
            p90_ps=float(np.percentile(each, 90)),
            least_ps=float(each.min()),
            most_ps=float(each.max()),
            busy_ps=float(work.mean()),
        )
        for index, each, work in zip(times.spans, lengths, busy, strict=True)
    )
