"""From the bytes of one side's recordings to a Trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiler.errors import ProfilerError, UsageError
from profiler.reduce.files import FilePart, reduce_file
from profiler.reduce.merge import merge
from profiler.results import Note
from profiler.trace import Trace
from profiler.xplane import scan
from profiler.xplane.locate import Side

__all__ = ["load", "reduce_file"]


def load(side: Side, *, host: str | None = None, device: str | None = None, timelines: bool = True) -> Trace:
    """Reads and reduces one side.

    Args:
        side: its recordings.
        host: keep only the files and devices of this host.
        device: keep only this device, "TPU:0".
        timelines: false skips spans and steps, for the op table alone: no column per event is then made.

    Raises:
        UnreadableError: a file cannot be read, or none holds a device op.
        UsageError: ``host`` or ``device`` names nothing here.
    """
    notice = scan.notice()
    notes = [Note("python_scanner", notice)] if notice else []
    parts = [
        (recording, _reduced(file, name, timelines=timelines))
        for recording in side.recordings
        for file, name in zip(recording.files, recording.names, strict=True)
    ]
    if host is not None:
        known = sorted({name for _, part in parts for name in part.hosts})
        parts = [(recording, part) for recording, part in parts if host in part.hosts]
        if not parts:
            raise UsageError(f"no host {host!r}", file=side.label, remedy=f"there are: {', '.join(known)}")
    return merge(side, parts, device, notes, timelines=timelines)


def _reduced(file: Path, name: str, *, timelines: bool) -> FilePart:
    """A reduced file under the name that people know it by."""
    try:
        return replace(reduce_file(file, timelines=timelines), file=name)
    except ProfilerError as error:
        if error.file != file or name == str(file):
            raise
        raise type(error)(error.what, file=name, remedy=error.remedy) from error
