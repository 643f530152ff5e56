"""The hosts of a side, wherever they are: profiles as JAX wrote them, or a reduced run that holds many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from profiler.errors import ProfilerError
from profiler.reduce import pool
from profiler.reduce.files import FilePart, reduce_file
from profiler.reduce.host_part import HostPart, Outcome, Skipped, Task
from profiler.reduced.read import ReducedRun
from profiler.xplane.locate import Recording, Side, host_name, is_reduced


class Source(Protocol):
    """One host of one recording."""

    @property
    def host(self) -> str:
        """The host, as its file is called."""

    @property
    def name(self) -> str:
        """The file, as people know it."""

    def spans(self, only: str | None, *, timelines: bool) -> FilePart:
        """The whole file, or what is kept of it.

        Args:
            only: the device, by its name in the file, whose spans are wanted; None for all.
            timelines: whether spans are wanted at all.

        Raises:
            UnreadableError: it cannot be read.
            UsageError: the spans were not kept.
        """


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """An .xplane.pb file under the name that people know it by."""

    file: Path
    name: str

    @property
    def host(self) -> str:
        """The host, as the file is called."""
        return host_name(Path(self.name))

    def spans(self, only: str | None, *, timelines: bool) -> FilePart:
        """Reads the file; see Source."""
        try:
            part = replace(reduce_file(self.file, timelines=timelines), file=self.name)
        except ProfilerError as error:
            if error.file != self.file or self.name == str(self.file):
                raise
            raise type(error)(error.what, file=self.name, remedy=error.remedy) from error
        return (
            part if only is None else replace(part, devices=tuple(each for each in part.devices if each.name == only))
        )


@dataclass(frozen=True, slots=True)
class ReducedSource:
    """One host of a reduced run."""

    run: ReducedRun
    index: int

    @property
    def host(self) -> str:
        """The host, as its file was called."""
        return host_name(Path(self.name))

    @property
    def name(self) -> str:
        """The file that it was read from, in the folder of the reduced run."""
        return self.run.names[self.index]

    def outcome(self, host: str | None) -> Outcome:
        """The host without its spans."""
        part = self.run.part(self.index)
        other = isinstance(part, HostPart) and host is not None and host not in part.hosts
        return Skipped(hosts=part.hosts) if isinstance(part, HostPart) and other else part

    def spans(self, only: str | None, *, timelines: bool) -> FilePart:
        """What is kept of it; see Source."""
        return self.run.spans(self.index, only, timelines=timelines)


def sources(side: Side) -> list[tuple[int, ProfileSource | ReducedSource]]:
    """(which recording, host) of a side, in order.

    Raises:
        UnreadableError: a reduced run is damaged.
    """
    return [(index, each) for index, recording in enumerate(side.recordings) for each in _of(recording)]


def several_hosts(found: Sequence[tuple[int, Source]]) -> bool:
    """Whether any recording has several of the hosts that ``sources`` found."""
    return len({recording for recording, _ in found}) < len(found)


def _of(recording: Recording) -> Iterator[ProfileSource | ReducedSource]:
    for file, name in zip(recording.files, recording.names, strict=True):
        if is_reduced(file):
            run = ReducedRun(file)
            yield from (ReducedSource(run, index) for index in range(len(run.names)))
        else:
            yield ProfileSource(file, name)


def outcomes(
    found: Sequence[ProfileSource | ReducedSource], host: str | None, workers: int | None = None
) -> Iterator[tuple[int, Outcome]]:
    """What every host comes down to without its spans, as they are read; see profiler.reduce.pool.run."""
    tasks = [
        (index, Task(each.file, each.name, host)) for index, each in enumerate(found) if isinstance(each, ProfileSource)
    ]
    for number, outcome in pool.run([task for _, task in tasks], workers):
        yield tasks[number][0], outcome
    for index, each in enumerate(found):
        if isinstance(each, ReducedSource):
            yield index, each.outcome(host)
