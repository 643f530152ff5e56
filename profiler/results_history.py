"""What ``profiler history`` says: a figure of every run in the order of time, and where it changed for good.

See profiler.results for units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiler.results import Note


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key whose value is not that of the run before; None where a run lacks it.

    ``source`` is "commit", "config", "mesh", "versions" or "flags".
    """

    key: str
    before: Any
    after: Any
    source: str


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """One run that could be read.

    Attributes:
        name: where it lies below the folder.
        file: its PATH.
        started: when it began (ISO 8601); ``started_by`` says who says so: "recording", "folder" (its name is a time
            stamp) or "file" (when the file was written).
        kind: "recorded" or "compiled": the times of the latter are estimates.
        reduced: whether it was read from a reduced run.
        devices, hosts: how many recorded ops.
        value: the figure, None where it is not known.
        steps: steady steps of the shown device.
        level: which level of the series it belongs to, from 0; None without a value.
        stands_out: further from both neighbours than noise, which did not last.
        changed: against the run before of the same series; empty for the first.
    """

    name: str
    file: str
    started: str
    started_by: str
    kind: str
    model: str | None
    chip: str | None
    reduced: bool
    devices: int
    hosts: int
    commit: str | None
    value: float | None
    steps: int
    level: int | None
    stands_out: bool
    changed: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """A run from which on the figure has another level.

    ``before`` and ``after`` are medians of the levels, ``ratio`` is after / before, ``noise`` the relative spread from
    run to run. ``changed`` is what that run has other than the run before it: the cause, if one of them is.
    """

    run: str
    started: str
    before: float
    after: float
    ratio: float | None
    better: bool
    noise: float | None
    runs_before: int
    runs_after: int
    commit_before: str | None
    commit_after: str | None
    changed: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class HistorySeries:
    """Runs that may be compared: of one kind, model and chip, by their start.

    ``levels`` are medians. ``noise`` is the relative spread from run to run: None of fewer than four known figures, 0
    of what has none (compiled profiles, static memory). ``ratio`` is the last level against the first. ``drift`` is the
    relative change per run within the last level, where it has six runs or more and changes by more than noise (Theil
    and Sen's slope, 99 %).
    """

    kind: str
    model: str | None
    chip: str | None
    verdict: str
    runs: tuple[HistoryRun, ...]
    levels: tuple[float, ...]
    changes: tuple[HistoryChange, ...]
    noise: float | None
    ratio: float | None
    drift: float | None


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """A run that could not be read, and why."""

    name: str
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """All runs of a folder. ``unit`` is of every value: "fraction", "ps", "tokens/s" or "bytes"."""

    file: str
    metric: str
    title: str
    unit: str
    higher_is_better: bool
    series: tuple[HistorySeries, ...]
    skipped: tuple[SkippedRun, ...]
    warnings: tuple[Note, ...] = ()
