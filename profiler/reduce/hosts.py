"""A run of several hosts: all of them without their spans, then the one device that is shown, with them.

The first pass reads every host's file, beside each other, and keeps its steps and where their time went (the fleet).
The second reads the file of the median device again, with its spans. So memory does not grow with the hosts, and the
parts of a step still sum to it: they are one device's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from profiler.errors import UnreadableError, UsageError
from profiler.fleet import FAILED, Fleet, Group, Host, sorted_groups
from profiler.reduce.files import FilePart
from profiler.reduce.host_notes import host_notes
from profiler.reduce.host_part import DeviceTimes, Failure, HostPart, Outcome, Skipped
from profiler.reduce.merge import Chosen, assemble, describe, host_of, largest, listed, refuse_none
from profiler.reduce.names import device_names, is_called
from profiler.reduce.oddities import odd_files, refuse_mixed
from profiler.results import Note
from profiler.trace import AllocatorPeaks, Device, Trace
from profiler.xplane.locate import Side


class Hosts:
    """Outcomes of the first pass, gathered as they come: what is equal on all hosts is kept once."""

    def __init__(self, side: Side, recordings: Sequence[int]):
        self.side, self.recordings = side, recordings
        self._found: dict[int, Outcome] = {}
        self._equal: dict[Any, Any] = {}

    def add(self, index: int, outcome: Outcome) -> None:
        """Takes one host's outcome; ``index`` is its place among the hosts."""
        if isinstance(outcome, HostPart):
            info = outcome.run_info
            outcome = replace(
                outcome,
                ops=self._equal.setdefault(outcome.ops.digest, outcome.ops),
                run_info=info and self._equal.setdefault(json.dumps(info, sort_keys=True), info),
                groups=self._equal.setdefault(outcome.groups, outcome.groups),
            )
        self._found[index] = outcome

    def fleet(self, notes: Sequence[Note], host: str | None) -> Described:
        """All of them put together.

        Raises:
            UnreadableError: no host could be read.
            UsageError: there is no host of this name.
        """
        found = [(index, self._found[index]) for index in sorted(self._found)]
        if host is not None:
            others = [name for _, each in found if isinstance(each, Skipped) for name in each.hosts]
            others += [each.host for _, each in found if isinstance(each, Failure)]
            # Of a file that cannot be read its name is all that says which host it is of.
            found = [
                (index, each)
                for index, each in found
                if isinstance(each, HostPart) or (isinstance(each, Failure) and each.host == host)
            ]
            if not found:
                raise UsageError(
                    f"no host {host!r}", file=self.side.label, remedy=f"there are: {listed(sorted(set(others)))}"
                )
        failures = [each for _, each in found if isinstance(each, Failure)]
        if failures and len(failures) == len(found):
            raise failures[0].error()
        return _described(self.side, self.recordings, found, notes)


@dataclass(frozen=True)
class Described:
    """The fleet with what its Trace needs besides: the part of every device's host, and all warnings.

    ``sources`` has for each host that was read its place among all hosts of the side; ``parts`` are those hosts.
    """

    side: Side
    fleet: Fleet
    parts: tuple[HostPart, ...]
    sources: tuple[int, ...]
    part_of: tuple[int, ...]  # for each device its part
    own_names: tuple[str, ...]  # for each device its name in its file
    notes: tuple[Note, ...]


def _described(
    side: Side, recordings: Sequence[int], found: Sequence[tuple[int, Outcome]], notes: Sequence[Note]
) -> Described:
    hosts: list[Host] = []
    parts: list[tuple[int, int, HostPart]] = []  # its host, its source, itself
    for index, each in found:
        if isinstance(each, HostPart):
            parts.append((len(hosts), index, each))
            hosts.append(replace(host_of(each, recordings[index]), digest=each.digest))
        elif isinstance(each, Failure):
            hosts.append(Host(each.host, each.file, recordings[index], FAILED, each.what))
    of_recordings = [(side.recordings[recordings[index]], part) for _, index, part in parts]
    names = device_names(of_recordings, len(side.recordings) > 1)
    devices: list[Device] = []
    idle: list[Device] = []
    part_of: list[int] = []
    for number, ((at, _, part), own) in enumerate(zip(parts, names, strict=True)):
        for name, device in zip(own, part.devices, strict=True):
            devices.append(describe(len(devices), name, part, device, at))
            part_of.append(number)
        idle += [describe(-1, plane.name, part, plane, at) for plane in part.idle]
    timed = [each for _, _, part in parts for each in part.devices]
    groups = sorted_groups(chain.from_iterable(part.groups for _, _, part in parts))
    rows = [_spread_out(parts[number][2].groups, groups, each) for number, each in zip(part_of, timed, strict=True)]
    fleet = Fleet(
        hosts=tuple(hosts),
        devices=tuple(devices),
        windows=tuple(each.windows for each in timed),
        groups=groups,
        group_steps=np.concatenate([*rows, np.zeros((0, len(groups) + 1))]),
        shown=(),
        idle_devices=tuple(idle),
    )
    return Described(
        side=side,
        fleet=fleet,
        parts=tuple(part for _, _, part in parts),
        sources=tuple(index for _, index, _ in parts),
        part_of=tuple(part_of),
        own_names=tuple(each.name for each in timed),
        notes=(*notes, *host_notes(fleet, [part for _, _, part in parts]), *odd_files(of_recordings)),
    )


def _spread_out(own: Sequence[Group], groups: Sequence[Group], device: DeviceTimes) -> np.ndarray:
    """The rows of one device with the columns of all hosts' groups."""
    rows = np.zeros((len(device.group_steps), len(groups) + 1))
    place = {group: column for column, group in enumerate(groups)}
    rows[:, [place[group] for group in own]] = device.group_steps[:, :-1]
    rows[:, -1] = device.group_steps[:, -1]
    return rows


def shown(described: Described, device: str | None) -> tuple[int, ...]:
    """The devices to show: the median one of each recording, of those that --device names where it is given.

    Raises:
        UsageError: there is no such device.
        UnreadableError: there is no device at all.
    """
    fleet = described.fleet
    chosen = [
        each.index
        for each, own in zip(fleet.devices, described.own_names, strict=True)
        if device is None or is_called(device, each.name, own)
    ]
    if not chosen:
        names = [each.name for each in fleet.devices]
        refuse_none(described.side, described.parts, names, device, ())
    refuse_mixed([fleet.devices[index] for index in chosen], fleet.devices[chosen[0]].file)
    recordings = sorted({fleet.host_of(index).recording for index in chosen})
    medians = (fleet.median([index for index in chosen if fleet.host_of(index).recording == one]) for one in recordings)
    return tuple(index for index in medians if index is not None)


def view(
    described: Described,
    chosen: Sequence[int],
    spans: Callable[[int, str], FilePart],
    *,
    timelines: bool,
) -> Trace:
    """The Trace of the chosen devices, with the whole fleet beside them.

    Args:
        described: the first pass.
        chosen: devices of the fleet.
        spans: reads one device of one source again: (place among all hosts, its name in the file).
        timelines: whether spans are wanted.
    """
    fleet = replace(described.fleet, shown=tuple(chosen))
    picked = []
    for index in chosen:
        number = described.part_of[index]
        part = spans(described.sources[number], described.own_names[index])
        if not part.devices:
            raise UnreadableError("changed while it was read", file=part.file, remedy="try again")
        again = replace(part.devices[0], windows=fleet.windows[index])
        device = fleet.devices[index]
        # What its file warns of is among the notes of all hosts already.
        picked.append(Chosen(replace(part, notes=()), ((device.name, again),), device.host_index))
    trace = assemble(described.side, picked, described.notes, timelines=timelines)
    return replace(trace, hosts=fleet.hosts, run_fleet=fleet, allocator=_allocators(fleet, chosen))


def _allocators(fleet: Fleet, chosen: Sequence[int]) -> AllocatorPeaks:
    """The largest figures of all hosts; one by one the allocators of the shown host and of the one with the peak."""
    known = [(host.name, host.allocator) for host in fleet.hosts if host.allocator is not None]
    peaks = largest(known)
    shown_hosts = {fleet.devices[index].host_index for index in chosen}
    kept = [
        (host.name, host.allocator)
        for index, host in enumerate(fleet.hosts)
        if host.allocator is not None
        and (index in shown_hosts or (host.allocator.window_peak_bytes or -1) == peaks.window_peak_bytes)
    ]
    return replace(peaks, allocators=largest(kept).allocators)


def together(outcomes: Iterable[tuple[int, Outcome]], side: Side, recordings: Sequence[int]) -> Hosts:
    """The outcomes of all hosts of a side."""
    hosts = Hosts(side, recordings)
    for index, outcome in outcomes:
        hosts.add(index, outcome)
    return hosts
