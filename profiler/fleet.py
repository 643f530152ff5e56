"""The fleet: every device of every host of a side, with its steady steps and where their time went.

What the spread over devices, stragglers and history are computed from. It is small (no spans, no ops), so that it holds
a run of thousands of hosts.

    fleet = trace.fleet
    slowest = int(np.nanargmax(fleet.mean_ps))
    fleet.devices[slowest].name, fleet.host_of(slowest).name, fleet.group_ps(slowest).mean(axis=0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from profiler.trace import AllocatorPeaks, Device, Trace, Windows

Group = tuple[str, str | None, str | None]  # (category, family, phase)
StepRange = tuple[int | None, int | None]

READ, DAMAGED, FAILED = "read", "damaged", "failed"


@dataclass(frozen=True, slots=True)
class Host:
    """One file of a side: what one host recorded, and how far it could be read.

    Attributes:
        name: the host, as the file says it, else as it is called.
        file: the file.
        recording: which recording of the side it belongs to, from 0; hosts of one run have the same.
        status: "read", "damaged" (cut, or parts of it are malformed: what is whole was read) or "failed" (nothing was).
        why: what is wrong, None where nothing is.
        bytes: size, unpacked; None where it failed.
        digest: SHA-256 of the content, unpacked; None where nobody asked for it.
        origin_ns: time 0 of the host's spans in the clock of its recording, ns. The clocks of two hosts have nothing to
            do with each other: their steps are told by their names.
        allocator: what its allocators say; None where it failed.
    """

    name: str
    file: str
    recording: int
    status: str
    why: str | None = None
    bytes: int | None = None
    digest: str | None = None
    origin_ns: int = 0
    allocator: AllocatorPeaks | None = None


@dataclass(frozen=True)
class Fleet:
    """All devices that recorded ops, of all hosts that could be read.

    Two hosts both call their first device ``/device:TPU:0``: a device is told by its file, host and plane, and its
    ``name`` is its own ("host-3/TPU:0").

    Attributes:
        hosts: all files of the side, those that failed too.
        devices: by file, then as the file has them; ``devices[i].index`` is i.
        windows: for each device its steady steps (times since the host's origin), all of them, whatever steps a
            command was asked for; with unit "run" the whole recording, where none of its steps repeats.
        groups: what the exclusive time of steps goes to, on any device; see profiler.analysis.times.
        group_steps: exclusive times in ps, (all steps of all devices, one device after another; groups, and idle last).
            A row sums to the length of its step.
        shown: indices of the devices whose spans and ops the trace holds: all of them, or the one that was chosen.
        idle_devices: planes of all hosts without a compute op.
    """

    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    windows: tuple[Windows, ...]
    groups: tuple[Group, ...]
    group_steps: NDArray[np.float64]
    shown: tuple[int, ...]
    idle_devices: tuple[Device, ...] = ()

    def host_of(self, device: int) -> Host:
        """The host of a device."""
        return self.hosts[self.devices[device].host_index]

    @property
    def unit(self) -> str:
        """ "step", or "run" where no step repeats on any device."""
        return "step" if any(each.unit == "step" for each in self.windows) else "run"

    @property
    def read(self) -> tuple[Host, ...]:
        """The hosts that could be read."""
        return tuple(host for host in self.hosts if host.status != FAILED)

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum([len(each.spans) for each in self.windows])]).astype(np.int64)

    def group_ps(self, device: int) -> NDArray[np.float64]:
        """Exclusive times of a device, ps: (its steps, groups and idle), as in ``group_steps``."""
        return self.group_steps[self._first[device] : self._first[device + 1]]

    def lengths_ps(self, device: int) -> NDArray[np.float64]:
        """The lengths of a device's steady steps, ps."""
        spans: NDArray[np.int64] = self.windows[device].spans
        return (spans[:, 1] - spans[:, 0]).astype(np.float64)

    def means_ps(self, steps: StepRange | None = None, skip_first: int = 0) -> NDArray[np.float64]:
        """The mean step of each device, ps, over the steps that are chosen as commands do.

        NaN where none is left, and where no step repeats on a device while steps do on others.
        """
        means, unit = np.full(len(self.devices), np.nan), self.unit
        for index, windows in enumerate(self.windows):
            lengths = self.lengths_ps(index)[windows.rows(steps, skip_first)]
            if windows.unit == unit and len(lengths):
                means[index] = lengths.mean()
        return means

    @cached_property
    def mean_ps(self) -> NDArray[np.float64]:
        """The mean steady step of each device, ps; see ``means_ps``."""
        return self.means_ps()

    def median(self, among: Sequence[int] | None = None) -> int | None:
        """The device whose mean step is the lower median, of some or all; of equal ones the first by name.

        None where there is no device; one without steps is taken only where all are.
        """
        found = list(range(len(self.devices)) if among is None else among)
        timed = [index for index in found if not np.isnan(self.mean_ps[index])] or found
        timed.sort(key=lambda index: (float(np.nan_to_num(self.mean_ps[index])), self.devices[index].name))
        return timed[(len(timed) - 1) // 2] if timed else None


def sorted_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Distinct groups in an order that does not depend on which host came first."""
    return tuple(sorted(set(groups), key=lambda group: tuple(part or "" for part in group)))


def of_trace(trace: Trace) -> Fleet:
    """The fleet of a side whose spans are all in memory: the devices of the trace itself."""
    from profiler.reduce.sweep import group_times, groups_of
    from profiler.trace import Windows

    every, group_of = groups_of(trace.ops)
    rank = trace.ops["rank"].to_numpy()
    none = Windows(np.zeros((0, 2), np.int64), "not read", "run")  # for the op table alone
    times = [
        group_times(timeline, each.spans, rank, group_of)
        for timeline, each in zip(trace.timelines, trace.windows, strict=True)
    ]
    rows = np.concatenate([*times, np.zeros((0, len(every) + 1))])
    groups = sorted_groups(group for group, column in zip(every, rows.T, strict=False) if (column > 0).any())
    return Fleet(
        hosts=trace.hosts,
        devices=trace.devices,
        windows=trace.windows or (none,) * len(trace.devices),
        groups=groups,
        group_steps=rows[:, [*(every.index(group) for group in groups), -1]],
        shown=tuple(range(len(trace.devices))),
        idle_devices=trace.idle_devices,
    )
