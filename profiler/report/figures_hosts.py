"""All devices of a run by host, and what the slowest hosts do with their step: what the page of hosts draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.report import units
from profiler.results_skew import HostsReport, SkewDevice, SkewHost

OWN, STEP = "own", "step"  # what a dot is: own time (work and host), or the whole step
MOST_BARS = 20


@dataclass(frozen=True, slots=True)
class DeviceDot:
    """One device: ``place`` counts hosts from 0, with the devices of a host beside each other around it."""

    name: str
    host: str
    place: float
    value: float
    above_ps: float
    slow: bool


@dataclass(frozen=True, slots=True)
class DeviceStrip:
    """All devices of one side. Values are in the unit of ``scale``; ``named`` are the dots that stand for a straggler.

    ``ranges`` has of every host the least and the most of its devices, for runs with too many devices to draw.
    """

    title: str
    kind: str
    scale: units.Scale
    hosts: tuple[str, ...]
    dots: tuple[DeviceDot, ...]
    ranges: tuple[tuple[float, float], ...]
    median: float
    named: tuple[tuple[str, DeviceDot], ...]


@dataclass(frozen=True, slots=True)
class HostBar:
    """The step of a host in three parts that sum to it, in the unit of the figure."""

    name: str
    parts: tuple[float, float, float]  # work, host, waiting
    excess_ps: float
    slow: bool


@dataclass(frozen=True, slots=True)
class HostBars:
    """The slowest hosts of a side, the slowest first; ``hidden`` more are not drawn."""

    title: str
    kind: str
    scale: units.Scale
    bars: tuple[HostBar, ...]
    hidden: int


def device_strip(title: str, report: HostsReport, what: str = OWN) -> DeviceStrip | None:
    """Every device of a side by host, in the order of the run; None where fewer than two could be timed.

    Args:
        title: of the side.
        report: of it.
        what: ``OWN``, which tells who is waited for, or ``STEP``, which is as long on all that wait for each other.
    """
    if len(report.devices) < 2:
        return None
    values = [_value(device, report, what) for device in report.devices]
    scale = units.time_scale(values)
    of_host: dict[str, list[int]] = {}
    for index, device in enumerate(report.devices):
        of_host.setdefault(device.host, []).append(index)
    slow = {device for each in report.stragglers for device in each.devices}
    median = sorted(values)[(len(values) - 1) // 2]
    dots: dict[int, DeviceDot] = {}
    for place, mine in enumerate(of_host.values()):
        for number, index in enumerate(mine):
            device = report.devices[index]
            aside = 0.7 * ((number + 0.5) / len(mine) - 0.5)
            dots[index] = DeviceDot(
                device.name,
                device.host,
                place + aside,
                values[index] / scale.divisor,
                values[index] - median,
                device.name in slow,
            )
    shown = tuple(dots[index] for index in range(len(report.devices)))
    by_name = {dot.name: dot for dot in shown}
    return DeviceStrip(
        title,
        report.kind,
        scale,
        tuple(of_host),
        shown,
        tuple((min(own), max(own)) for own in ([shown[index].value for index in mine] for mine in of_host.values())),
        median / scale.divisor,
        tuple(
            (each.name, max((by_name[name] for name in each.devices), key=lambda dot: dot.value))
            for each in report.stragglers
        ),
    )


def host_bars(title: str, report: HostsReport, most: int = MOST_BARS) -> HostBars | None:
    """What the slowest hosts of a side do with their step, chips where there is one host; None of a single device."""
    if len(report.devices) < 2:
        return None
    timed = [host for host in report.hosts if host.step_ps is not None]
    rows: Sequence[SkewHost | SkewDevice] = timed if len(timed) > 1 else report.devices
    slow = {each.name for each in report.stragglers} | {name for each in report.stragglers for name in each.devices}
    ordered = sorted(rows, key=lambda row: -(row.excess_ps or 0.0))
    scale = units.time_scale(row.step_ps for row in ordered)
    bars = tuple(
        HostBar(
            name := row.host if isinstance(row, SkewHost) else row.name,
            (
                (row.work_ps or 0.0) / scale.divisor,
                (row.host_ps or 0.0) / scale.divisor,
                (row.wait_ps or 0.0) / scale.divisor,
            ),
            row.excess_ps or 0.0,
            name in slow,
        )
        for row in ordered[:most]
    )
    return HostBars(title, report.kind, scale, bars, len(ordered) - len(bars))


def _value(device: SkewDevice, report: HostsReport, what: str) -> float:
    if what == STEP:
        return device.step_ps
    return device.work_ps + device.host_ps if report.waits_seen else device.work_ps
