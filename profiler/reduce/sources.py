"""The hosts of a side, wherever they are: profiles as JAX wrote them, or a reduced run that holds many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from profiler.errors import ProfilerError
from profiler.reduce import pool
from profiler.reduce.files import FilePart, reduce_file
from profiler.reduce.host_part import Outcome, Task
from profiler.xplane.locate import Recording, Side, host_name


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


def several_hosts(side: Side) -> bool:
    """Whether any recording of a side has several hosts."""
    return any(len(recording.files) > 1 for recording in side.recordings)


def sources(side: Side) -> list[tuple[int, Source]]:
    """(which recording, host) of a side, in order."""
    return [(index, each) for index, recording in enumerate(side.recordings) for each in _of(recording)]


def _of(recording: Recording) -> list[Source]:
    return [ProfileSource(file, name) for file, name in zip(recording.files, recording.names, strict=True)]


def outcomes(found: Sequence[Source], host: str | None, workers: int | None = None) -> Iterator[tuple[int, Outcome]]:
    """What every host comes down to without its spans, as they are read; see profiler.reduce.pool.run."""
    tasks = [Task(each.file, each.name, host) for each in found if isinstance(each, ProfileSource)]
    yield from pool.run(tasks, workers)
