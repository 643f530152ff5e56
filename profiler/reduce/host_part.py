"""What one host's file comes down to without its spans: small, so that thousands of hosts fit into memory.

Made where the file is read, by ``read_host``: in this process, in a worker beside it, or on another machine.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiler.errors import ProfilerError, UnreadableError
from profiler.fleet import Group
from profiler.reduce.files import FilePart, host_names, reduce_opened
from profiler.reduce.merge import device_windows
from profiler.reduce.part import DevicePart
from profiler.reduce.sweep import group_times, groups_of
from profiler.results import Note
from profiler.trace import AllocatorPeaks, Windows
from profiler.xplane.locate import host_name
from profiler.xplane.read import opened


class Ops(Protocol):
    """The ops of one file, made a frame when they are asked for; equal ones have one ``digest``."""

    @property
    def digest(self) -> str:
        """What tells them from others."""

    def frame(self) -> pl.DataFrame:
        """The ops, as Trace.ops has them."""


@dataclass(frozen=True, slots=True)
class OpsTable:
    """The ops of one file as bytes (Arrow IPC, packed), to travel between processes; see Ops."""

    digest: str
    packed: bytes

    @classmethod
    def of(cls, ops: pl.DataFrame) -> OpsTable:
        """Packs Trace.ops of one file."""
        buffer = io.BytesIO()
        ops.write_ipc(buffer, compression="zstd")
        packed = buffer.getvalue()
        return cls(hashlib.sha256(packed).hexdigest(), packed)

    def frame(self) -> pl.DataFrame:
        """The ops."""
        return pl.read_ipc(io.BytesIO(self.packed))


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """One device of one file: its steady steps and the exclusive time of every group in each of them.

    ``group_steps`` is (steps, groups of the host + 1), idle last. ``sums`` are as in DevicePart, where asked for.
    """

    name: str
    plane: str
    platform: str
    stats: Mapping[str, Any]
    windows: Windows
    group_steps: NDArray[np.float64]
    sums: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class HostPart:
    """One reduced file without its spans. Fields are those of FilePart; ``programs`` are digests of the HLO protos."""

    file: str
    hosts: tuple[str, ...]
    devices: tuple[DeviceTimes, ...]
    idle: tuple[DeviceTimes, ...]
    groups: tuple[Group, ...]
    ops: Ops
    allocator: AllocatorPeaks
    programs: Mapping[str, str]
    run_info: dict[str, Any] | None
    versions: Mapping[str, str]
    notes: tuple[Note, ...]
    bytes: int
    origin_ns: int
    digest: str | None
    started_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One file to read.

    Attributes:
        file: the file.
        name: how people know it.
        host: read it only where it holds this host's planes.
        whole: with the digest of its content, the digests of its programs and the op sums, packed for the reduced form.
        known: files, by ``file_key``, that need not be reduced again.
        threads: how many scan it; None for one a core.
    """

    file: Path
    name: str
    host: str | None = None
    whole: bool = False
    known: frozenset[str] = frozenset()
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be read, and why; ``remedy`` may be None."""

    file: str
    what: str
    remedy: str | None = None

    @property
    def host(self) -> str:
        """The host, as the file is called."""
        return host_name(Path(self.file))

    def error(self) -> UnreadableError:
        """As the error that it is where there is no other host."""
        return UnreadableError(self.what, file=self.file, remedy=self.remedy)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that need not be read: it is of other ``hosts``, or known by its ``key``."""

    hosts: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class Packed:
    """A host with all that the reduced form keeps of it, packed by profiler.reduced.partial.pack; see ``file_key``."""

    key: str
    data: bytes


Outcome = HostPart | Packed | Failure | Skipped


def read_host(task: Task) -> Outcome:
    """Reads one file; whatever is wrong with it is the answer, not an exception."""
    try:
        with opened(task.file) as (buffer, packing):
            if task.host is not None and task.host not in (hosts := host_names(buffer, task.file)):
                return Skipped(hosts=hosts)
            digest = hashlib.sha256(buffer).hexdigest() if task.whole else None
            key = file_key(digest, task.name) if digest is not None else ""
            if key in task.known:
                return Skipped(key=key)
            part = reduce_opened(task.file, buffer, packing, threads=task.threads)
        found = host_part(replace(part, file=task.name), digest, whole=task.whole)
        if digest is None:
            return found
        from profiler.reduced.partial import pack

        return Packed(key, pack(found))
    except ProfilerError as error:
        return Failure(task.name, error.what, error.remedy)
    except MemoryError:
        return Failure(task.name, "needs more memory than there is", "read fewer hosts at a time: --workers 1")
    except OSError as error:
        return Failure(task.name, f"cannot be read: {error.strerror or error}")
    except Exception as error:  # one file of thousands: it is named, and the others are read all the same
        return Failure(task.name, f"unexpected {type(error).__name__}: {error} (a bug in profiler)")


def file_key(digest: str, name: str) -> str:
    """What tells a file: its content, and its name, which may be all that says whose it is."""
    return hashlib.sha256(f"{digest} {PurePath(name).name}".encode(errors="surrogatepass")).hexdigest()


def host_part(part: FilePart, digest: str | None = None, *, whole: bool = False) -> HostPart:
    """A reduced file without its spans; see Task for ``whole``."""
    groups, group_of = groups_of(part.ops)
    rank = part.ops["rank"].to_numpy()
    notes = list(part.notes)
    devices = []
    for each in part.devices:
        found, more = device_windows(part, each)
        notes += more
        times = group_times(each.timeline, found.spans, rank, group_of)
        devices.append(_times(each, found, times, each.sums if whole else None))
    spent = np.zeros(len(groups), np.bool_)
    for device in devices:
        spent |= (device.group_steps[:, :-1] > 0).any(axis=0)
    kept = np.append(spent, True)
    none = Windows(np.zeros((0, 2), np.int64), "no ops", "run")
    return HostPart(
        file=part.file,
        hosts=part.hosts,
        devices=tuple(replace(one, group_steps=one.group_steps[:, kept]) for one in devices),
        idle=tuple(_times(each, none, np.zeros((0, int(kept.sum()))), None) for each in part.idle),
        groups=tuple(group for group, used in zip(groups, spent, strict=True) if used),
        ops=OpsTable.of(part.ops),
        allocator=part.allocator,
        programs={
            name: hashlib.sha256(proto).hexdigest() if whole else "" for name, proto in part.programs.protos.items()
        },
        run_info=part.run_info,
        versions=part.versions,
        notes=tuple(dict.fromkeys(notes)),
        bytes=part.bytes,
        origin_ns=part.origin_ns,
        digest=digest,
        started_ns=part.started_ns,
    )


def _times(
    device: DevicePart, windows: Windows, group_steps: NDArray[np.float64], sums: pl.DataFrame | None
) -> DeviceTimes:
    # Only plain stats: what no analysis asks for need not travel.
    stats = {key: value for key, value in device.stats.items() if isinstance(value, str | int | float)}
    return DeviceTimes(device.name, device.plane, device.platform, stats, windows, group_steps, sums)
