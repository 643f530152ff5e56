"""From the bytes of one side's recordings to a Trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.errors import UnreadableError, UsageError
from profiler.fleet import FAILED, Host
from profiler.reduce.files import FilePart, reduce_file
from profiler.reduce.merge import host_of, listed, merge
from profiler.results import Note
from profiler.trace import Trace
from profiler.xplane import scan
from profiler.xplane.locate import Recording, Side

if TYPE_CHECKING:
    from profiler.reduce.sources import ProfileSource, ReducedSource

    Sources = list[tuple[int, ProfileSource | ReducedSource]]

__all__ = ["load", "reduce_file"]


def load(
    side: Side,
    *,
    host: str | None = None,
    device: str | None = None,
    timelines: bool = True,
    all_devices: bool = False,
    workers: int | None = None,
) -> Trace:
    """Reads and reduces one side.

    A recording of several hosts is shown by its median device (profiler.reduce.hosts), any other by all of its devices.

    Args:
        side: its recordings.
        host: keep only the files and devices of this host.
        device: keep only this device, "TPU:0".
        timelines: false skips spans and steps, for the op table alone: no column per event is then made.
        all_devices: keep the devices of all hosts, with all their spans in memory.
        workers: processes that read hosts beside each other; None for as many as there are cores and memory for.

    Raises:
        UnreadableError: a file cannot be read, or none holds a device op. Of several hosts those that cannot be read
            are left out, with a warning.
        UsageError: ``host`` or ``device`` names nothing here.
    """
    from profiler.reduce.sources import several_hosts, sources

    notice = scan.notice()
    notes = [Note("python_scanner", notice)] if notice else []
    found = sources(side)
    if several_hosts(found) and not all_devices:
        return _median(side, found, host, device, notes, timelines=timelines, workers=workers)
    return _whole(side, found, host, device, notes, timelines=timelines)


def _median(
    side: Side,
    found: Sources,
    host: str | None,
    device: str | None,
    notes: list[Note],
    *,
    timelines: bool,
    workers: int | None,
) -> Trace:
    from profiler.reduce import hosts
    from profiler.reduce.sources import outcomes

    first = hosts.together(
        outcomes([source for _, source in found], host, workers), side, [recording for recording, _ in found]
    )
    fleet = first.fleet(notes, host)
    return hosts.view(
        fleet,
        hosts.shown(fleet, device),
        lambda index, name: found[index][1].spans(name, timelines=timelines),
        timelines=timelines,
    )


def _whole(
    side: Side, found: Sources, host: str | None, device: str | None, notes: list[Note], *, timelines: bool
) -> Trace:
    from profiler.reduce.host_notes import unreadable
    from profiler.reduce.sources import several_hosts

    parts: list[tuple[Recording, FilePart]] = []
    hosts: list[Host] = []
    failed: list[Host] = []
    errors: list[UnreadableError] = []
    for recording, source in found:
        try:
            part = source.spans(None, timelines=timelines)
        except UnreadableError as error:
            if not several_hosts(found):
                raise
            errors.append(error)
            failed.append(Host(source.host, source.name, recording, FAILED, error.what))
            continue
        parts.append((side.recordings[recording], part))
        hosts.append(host_of(part, recording))
    if errors and not parts:
        raise errors[0]
    if host is not None:
        known = sorted({name for _, part in parts for name in part.hosts})
        kept = [index for index, (_, part) in enumerate(parts) if host in part.hosts]
        failed = [each for each in failed if each.name == host]
        parts, hosts = [parts[index] for index in kept], [hosts[index] for index in kept]
        if not parts:
            raise UsageError(f"no host {host!r}", file=side.label, remedy=f"there are: {listed(known)}")
    hosts += failed
    return merge(side, parts, device, [*notes, *unreadable(hosts)], tuple(hosts), timelines=timelines)
