"""Write: build XSpace files by hand, for tests, for benchmarks and for traces that no profiler recorded.

    space = SpaceBuilder()
    ops = space.plane("/device:TPU:0").line("XLA Ops")
    ops.event("%add.1 = f32[8] add(…)", 0, 1_000_000, display_name="add.1", metadata_stats={"flops": 8})
    space.hlo_proto("jit_step", program_id=42, data=module.SerializeToString())
    space.write("run.xplane.pb")

A Python value decides its stat's wire type: int is int64 (uint64 from 2**63), float double, str text, bytes bytes, and
``Ref("text")`` a reference into the plane's stat metadata, which is how real files share long strings.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from profiler.xplane.schema import xspace

METADATA_PLANE = "/host:metadata"
HLO_PROTO_STAT = "Hlo Proto"


@dataclass(frozen=True, slots=True)
class Ref:
    """A text stat that is stored once per plane and referred to by number."""

    text: str


Stat = int | float | str | bytes | Ref
Stats = Mapping[str, Stat]


class SpaceBuilder:
    """A whole file: planes in the order in which they were asked for."""

    def __init__(self, hostnames: tuple[str, ...] = ()):
        self._planes: list[PlaneBuilder] = []
        self._metadata: PlaneBuilder | None = None
        self._header = xspace().XSpace(hostnames=[_encode(name) for name in hostnames])

    def plane(self, name: str, *, stats: Stats | None = None, plane_id: int = 0) -> PlaneBuilder:
        """A new plane at the end of the file; the same name again makes a second plane."""
        plane = PlaneBuilder(name, stats=stats, plane_id=plane_id)
        self._planes.append(plane)
        return plane

    def hlo_proto(self, module_name: str, program_id: int, data: bytes) -> None:
        """Stores one serialized HLO module where recordings have it: as event metadata of ``/host:metadata``.

        Args:
            module_name: name without the number, such as ``jit_step``.
            program_id: the unsigned fingerprint that ops carry as ``program_id``.
            data: serialized ``xla.HloProto``.
        """
        if self._metadata is None:
            self._metadata = self.plane(METADATA_PLANE)
        # The key is a signed field that holds an unsigned fingerprint: large ones come out negative, as in recordings.
        key = program_id - 2**64 if program_id >= 2**63 else program_id
        self._metadata.add_metadata(key, f"{module_name}({program_id})", stats={HLO_PROTO_STAT: data})

    def error(self, text: str) -> None:
        """Adds one of the errors that the profiler reports about its own recording."""
        self._header.errors.append(_encode(text))

    def warning(self, text: str) -> None:
        """Adds one of the warnings that the profiler reports about its own recording."""
        self._header.warnings.append(_encode(text))

    def to_bytes(self) -> bytes:
        """The serialized XSpace."""
        return b"".join([*(plane.to_bytes() for plane in self._planes), self._header.SerializeToString()])

    def write(self, path: str | Path) -> Path:
        """Writes the file, gzipped if its name ends in ``.gz``; it appears whole or not at all."""
        path = Path(path)
        data = self.to_bytes()
        if path.suffix == ".gz":
            data = gzip.compress(data, mtime=0)  # no time stamp: equal content gives equal bytes
        _write_whole(path, data)
        return path


class PlaneBuilder:
    """One plane. Event and stat metadata get their numbers in the order of first use, from 1."""

    def __init__(self, name: str, *, stats: Stats | None = None, plane_id: int = 0):
        self._plane = xspace().XPlane(id=plane_id, name=_encode(name))
        self._stat_ids: dict[str, int] = {}
        self._metadata_ids: dict[tuple[Any, ...], int] = {}
        self._fill(self._plane.stats, stats)

    def line(self, name: str, timestamp_ns: int = 0, *, line_id: int | None = None) -> LineBuilder:
        """A new line; event offsets count from ``timestamp_ns``. ``line_id`` is the line's index unless given."""
        line_id = len(self._plane.lines) if line_id is None else line_id
        return LineBuilder(self, self._plane.lines.add(id=line_id, name=_encode(name), timestamp_ns=timestamp_ns))

    def metadata(self, name: str, *, display_name: str = "", stats: Stats | None = None) -> int:
        """The id of this event metadata; equal name, display name and stats give the same id."""
        # The type is part of the key: 1, 1.0 and True are equal in Python but not on the wire.
        key = (name, display_name, *((k, type(v), v) for k, v in (stats or {}).items()))
        if key not in self._metadata_ids:
            self._metadata_ids[key] = len(self._metadata_ids) + 1
            self.add_metadata(self._metadata_ids[key], name, display_name=display_name, stats=stats)
        return self._metadata_ids[key]

    def add_metadata(self, key: int, name: str, *, display_name: str = "", stats: Stats | None = None) -> None:
        """Event metadata under a number of the caller's choice (signed 64 bits)."""
        entry = self._plane.event_metadata.add(key=key)
        entry.value.id, entry.value.name, entry.value.display_name = key, _encode(name), _encode(display_name)
        self._fill(entry.value.stats, stats)

    def stat_id(self, name: str) -> int:
        """The id of a stat's name, or of a text that a ``Ref`` points to."""
        if name not in self._stat_ids:
            number = self._stat_ids[name] = len(self._stat_ids) + 1
            entry = self._plane.stat_metadata.add(key=number)
            entry.value.id, entry.value.name = number, _encode(name)
        return self._stat_ids[name]

    def payload(self) -> bytes:
        """The serialized XPlane alone. More serialized fields, such as lines, may be appended to it (proto merge)."""
        data: bytes = self._plane.SerializeToString()
        return data

    def to_bytes(self) -> bytes:
        """A serialized XSpace that holds this plane only, so that files can be made by joining such pieces."""
        data: bytes = xspace().XSpace(planes=[self._plane]).SerializeToString()
        return data

    def _fill(self, target: Any, stats: Stats | None) -> None:
        """Appends stats to a repeated XStat field."""
        for name, value in (stats or {}).items():
            stat = target.add(metadata_id=self.stat_id(name))
            match value:
                case Ref(text):
                    stat.ref_value = self.stat_id(text)
                case str():
                    stat.str_value = _encode(value)
                case bytes():
                    stat.bytes_value = value
                case Integral():
                    number = int(value)
                    field = "uint64_value" if number >= 2**63 else "int64_value"
                    setattr(stat, field, number)
                case Real():
                    stat.double_value = float(value)
                case _:
                    raise TypeError(f"stat {name!r}: {type(value).__name__} has no wire type")


class LineBuilder:
    """One line of a plane."""

    def __init__(self, plane: PlaneBuilder, line: Any):
        self._plane, self._line = plane, line

    def event(
        self,
        name: str | int,
        offset_ps: int,
        duration_ps: int,
        *,
        stats: Stats | None = None,
        display_name: str = "",
        metadata_stats: Stats | None = None,
    ) -> None:
        """Appends an event.

        Args:
            name: the event's name, or the number of event metadata that is there already (``PlaneBuilder.metadata``).
            offset_ps: start after the line's timestamp.
            duration_ps: length.
            stats: facts of this event.
            display_name: short name; kept with the metadata, as are ``metadata_stats``.
            metadata_stats: facts of every event of this metadata, such as an op's flops.
        """
        if isinstance(name, str):
            name = self._plane.metadata(name, display_name=display_name, stats=metadata_stats)
        event = self._line.events.add(metadata_id=name, offset_ps=offset_ps, duration_ps=duration_ps)
        self._plane._fill(event.stats, stats)

    def aggregate(self, name: str, duration_ps: int, occurrences: int, *, stats: Stats | None = None) -> None:
        """Appends an event that stands for ``occurrences`` executions and has no start of its own."""
        event = self._line.events.add(
            metadata_id=self._plane.metadata(name), num_occurrences=occurrences, duration_ps=duration_ps
        )
        self._plane._fill(event.stats, stats)


def append_plane(path: str | Path, plane: PlaneBuilder) -> None:
    """Adds a plane to a finished file without reading it.

    Joined XSpace bytes are one XSpace with the planes of both (protobuf's merge rule), and joined gzip members are one
    gzip file. If the disk fills up, the file is cut back to what it was.
    """
    path = Path(path)
    data = plane.to_bytes()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        try:
            file.write(data)
            file.flush()
        except OSError:
            file.truncate(end)
            raise


def _encode(text: str) -> bytes:
    """UTF-8; lone surrogates stand for bytes that are not, as ``os.fsdecode`` makes them."""
    return text.encode("utf-8", "surrogateescape")


def _write_whole(path: Path, data: bytes) -> None:
    """Writes beside the target and renames, so that no reader ever sees half a file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        # mkstemp makes private files; a profile gets the rights that any other new file would get.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
