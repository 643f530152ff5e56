"""What the devices of a side are called, once files are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Protocol

from profiler.xplane.locate import Recording


class Named(Protocol):
    """A device of a file: FilePart's, or HostPart's."""

    @property
    def name(self) -> str:
        """Its name in the file."""


class HasDevices(Protocol):
    """A reduced file, with spans or without."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that wrote it."""

    @property
    def devices(self) -> Iterable[Named]:
        """The devices that recorded ops."""


def device_names(parts: Sequence[tuple[Recording, HasDevices]], several_runs: bool) -> list[list[str]]:
    """The name of every device of every file: with its host where there are several, its recording where several."""
    several_hosts = len({host for _, part in parts for host in part.hosts}) > 1
    known: set[str] = set()
    found = []
    for recording, part in parts:
        prefix = "/".join([recording.name] * several_runs + [part.hosts[0]] * several_hosts)
        names = []
        for each in part.devices:
            name = f"{prefix}/{each.name}" if prefix else each.name
            if name in known:  # one file twice, or planes of one name: still devices of their own
                name = next(other for number in count(2) if (other := f"{name}#{number}") not in known)
            known.add(name)
            names.append(name)
        found.append(names)
    return found


def is_called(wanted: str, name: str, own: str) -> bool:
    """Whether a device is the one that --device names: by its name in the side, or by its own in its file."""
    return wanted.lower() in (name.lower(), own.lower())
