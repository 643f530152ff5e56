"""A fleet as numbers: of every device and step the work, what the host kept it from, and the waiting for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiler.analysis.skewtest import lower_median
from profiler.fleet import Fleet, StepRange

Floats = NDArray[np.float64]

INPUT = "input"  # the phase
SEEN = 0.001  # of the step: communication that is less is taken for none
BY_NAME, BY_ORDER = "names", "order"


@dataclass(frozen=True)
class Table:
    """The devices that could be timed, each with its steps.

    Attributes:
        index: their places in ``Fleet.devices``.
        work, host, wait: of each device its steps, ps; together they are the length of each step.
        groups: of each device its steps by group, as in the fleet.
        names: of the steps that all share; empty where steps cannot be put beside each other.
        matched: "names", "order" or None; where it is not None, all devices have equally many steps here.
        left_out: of each device its steps that not all others have.
    """

    index: tuple[int, ...]
    work: tuple[Floats, ...]
    host: tuple[Floats, ...]
    wait: tuple[Floats, ...]
    groups: tuple[Floats, ...]
    rows: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]
    matched: str | None
    left_out: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def waits_seen(self) -> bool:
        """Whether there is communication to speak of: without, idle time may be waiting too."""
        waited, whole = (sum(float(each.sum()) for each in kind) for kind in (self.wait, self.steps))
        return waited > SEEN * whole

    @cached_property
    def own(self) -> tuple[Floats, ...]:
        """What every device takes until the others can go on; see profiler.results_skew."""
        if not self.waits_seen:
            return self.work
        return tuple(work + host for work, host in zip(self.work, self.host, strict=True))

    @cached_property
    def steps(self) -> tuple[Floats, ...]:
        """The lengths of each device's steps."""
        return tuple(work + host + wait for work, host, wait in zip(self.work, self.host, self.wait, strict=True))

    @cached_property
    def typical_ps(self) -> float:
        """The mean step of the median device; 1 where it is nothing."""
        return lower_median(means(self.steps)) or 1.0

    @cached_property
    def middle(self) -> int | None:
        """The place of the device whose mean step is the lower median."""
        ordered = np.argsort(means(self.steps), kind="stable")
        return int(ordered[(len(self) - 1) // 2]) if len(self) else None

    def matrix(self, values: Sequence[Floats]) -> Floats:
        """(devices, steps); where steps cannot be put beside each other the means alone."""
        return np.array(values if self.matched else [[each.mean()] for each in values], np.float64)

    def beside(self, values: Sequence[Floats]) -> list[Floats]:
        """What each device has above the median of all, step by step where that can be."""
        if self.matched is None:
            common = lower_median(means(values))
            return [each - common for each in values]
        return list(np.array(values) - np.median(np.array(values), axis=0))


def means(values: Sequence[Floats]) -> Floats:
    """The mean of each device."""
    return np.array([each.mean() for each in values], np.float64)


def table(fleet: Fleet, steps: StepRange | None = None, skip_first: int = 0) -> Table:
    """The steps of all devices beside each other.

    Steps are matched by their names where every device has different ones, else by their order where all have equally
    many; steps that a device lacks are left out on all. Times of two hosts' clocks are never compared.
    """
    unit = fleet.unit
    timed = [
        (index, np.arange(len(windows.spans))[windows.rows(steps, skip_first)])
        for index, windows in enumerate(fleet.windows)
        if windows.unit == unit
    ]
    timed = [(index, rows) for index, rows in timed if len(rows)]
    names, chosen = _matched(fleet, timed)
    # The names of common steps are in the order of the first device.
    times = [fleet.group_ps(index)[rows] for (index, _), rows in zip(timed, chosen, strict=True)]
    kinds = np.array([_kind(category, phase) for category, _, phase in fleet.groups] + [_HOST], np.int64)
    work, host, wait = (tuple(each[:, kinds == kind].sum(axis=1) for each in times) for kind in (_WORK, _HOST, _WAIT))
    counts = {len(rows) for rows in chosen}
    matched = BY_NAME if names else BY_ORDER if len(counts) == 1 and timed else None
    shown = names or tuple(map(str, range(min(counts, default=0))) if matched else ())
    return Table(
        index=tuple(index for index, _ in timed),
        work=work,
        host=host,
        wait=wait,
        groups=tuple(times),
        rows=tuple(chosen),
        names=shown,
        matched=matched,
        left_out=tuple(len(rows) - len(kept) for (_, rows), kept in zip(timed, chosen, strict=True)),
    )


_WORK, _HOST, _WAIT = range(3)


def _kind(category: str, phase: str | None) -> int:
    if phase == INPUT and category in ("transfer", "wait"):
        return _HOST
    return _WAIT if category in ("communication", "wait") else _WORK


def _matched(
    fleet: Fleet, timed: list[tuple[int, NDArray[np.int64]]]
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """The names that all devices have, and for each device the rows of these steps; all rows where there are none."""
    every = [rows for _, rows in timed]
    named: list[dict[str, int]] = []
    for index, rows in timed:
        names = fleet.windows[index].names
        of = {names[row]: int(row) for row in rows} if len(names) >= len(fleet.windows[index].spans) else {}
        if len(of) != len(rows):  # no names, or two steps of one name
            return (), every
        named.append(of)
    if not named:
        return (), every
    common = tuple(name for name in named[0] if all(name in of for of in named[1:]))
    if not common:
        return (), every
    return common, [np.array([of[name] for name in common], np.int64) for of in named]
