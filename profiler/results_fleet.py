"""What a summary says of a run of several hosts; see profiler.fleet for all of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetHost:
    """One host of a run: how far its file could be read, its devices, and the mean of their mean steps.

    ``status`` is "read", "damaged" (what is whole was read) or "failed"; ``why`` says what is wrong.
    """

    host: str
    status: str
    why: str | None
    devices: int
    mean_ps: float | None


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """A run of several hosts, whose figures are those of the ``shown`` devices.

    ``choice`` says which those are: the device of the "median" mean step (one of each recording), one that was
    "chosen" by --device or --host, or "all". ``devices`` counts those that recorded ops. The spread is of the devices'
    mean steps, each of its figures one device's (the lower of two neighbours), None where nothing could be timed.
    """

    hosts: tuple[FleetHost, ...]
    hosts_read: int
    devices: int
    shown: tuple[str, ...]
    choice: str  # "median" | "chosen" | "all"
    unit: str  # "step" | "run"
    min_ps: float | None
    p10_ps: float | None
    median_ps: float | None
    p90_ps: float | None
    max_ps: float | None
    fastest: str | None
    slowest: str | None
