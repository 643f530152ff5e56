"""Opens a profile and decodes what the scanner leaves alone: plane stats, event metadata, HLO protos."""

from __future__ import annotations

import gzip
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiler.errors import UnreadableError
from profiler.results import Note
from profiler.xplane import scan
from profiler.xplane.schema import xspace

MAX_TEXT_BYTES = 64 << 20  # a compressed stat may not unpack to more than this
MAX_UNPACKED_RATIO = 200  # profiles pack about ten to one; far beyond that it is a bomb
UNPACK_CHUNK = 1 << 18
_STAT_TAGS = (0x2A, 0x32)  # of an XPlane: stat_metadata, stats
_GZIP_MAGIC = b"\x1f\x8b"
_REPLACEMENT = b"\xef\xbf\xbd"


@dataclass(frozen=True, slots=True)
class EventName:
    """One event_metadata entry: what every event with its id shares. ``stats`` values are decoded."""

    name: str
    display_name: str
    stats: Mapping[str, Any]

    @property
    def short(self) -> str:
        """The display name, or the name where there is none: what XProf calls the op."""
        return self.display_name or self.name


@dataclass
class SharedNames:
    """Event names decoded so far in a file, by stat table and bytes: the cores of one program have equal entries."""

    tables: dict[frozenset[tuple[int, str]], int] = field(default_factory=dict)
    events: dict[tuple[int, bytes], EventName] = field(default_factory=dict)


@dataclass
class PlaneNames:
    """The tables of one plane: stat names, plane stats, and event names decoded on demand."""

    stat_names: dict[int, str]
    stats: dict[str, Any]
    damaged: bool
    _entries: dict[int, Any]
    _shared: SharedNames
    _table: int
    _cache: dict[int, EventName] = field(default_factory=dict)

    def stat_id(self, name: str) -> int:
        """The id of a stat in this plane, -1 where the plane never uses it."""
        if not hasattr(self, "_ids"):
            self._ids = {text: key for key, text in self.stat_names.items()}
        return self._ids.get(name, -1)

    def event(self, metadata_id: int) -> EventName | None:
        """The metadata of an event id, None where the file lacks it."""
        found = self._cache.get(metadata_id)
        if found is None:
            entry = self._entries.get(metadata_id)
            if entry is None:
                return None
            key = self._table, entry.SerializeToString()
            found = self._shared.events.get(key)
            if found is None:
                names = self.stat_names
                found = self._shared.events[key] = EventName(
                    text(entry.name),
                    text(entry.display_name),
                    {names.get(stat.metadata_id, ""): stat_value(stat, names) for stat in entry.stats},
                )
            self._cache[metadata_id] = found
        return found

    def ids_by_name(self, names: set[bytes]) -> dict[int, bytes]:
        """The event ids whose name is one of ``names``; decodes nothing else."""
        return {key: entry.name for key, entry in self._entries.items() if entry.name in names}

    def events(self) -> Iterator[tuple[int, EventName]]:
        """Every event id of the plane with its name."""
        for key in self._entries:
            event = self.event(key)
            if event is not None:
                yield key, event


def text(data: bytes) -> str:
    """Text of a trace: untrusted, perhaps not UTF-8."""
    return data.decode("utf-8", errors="replace")


def stat_value(stat: Any, stat_names: Mapping[int, str]) -> Any:
    """The value of an XStat message: references resolved, text decoded, bytes as they are; None where unset."""
    kind = stat.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(stat, kind)
    if kind == "str_value":
        return text(value)
    if kind == "ref_value":
        return stat_names.get(value, "")
    if kind == "gzip_value":
        return text(_inflate(value))
    return value


def _inflate(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=47).decompress(data, MAX_TEXT_BYTES)
    except zlib.error:
        return b""


def plane_names(buffer: Any, plane: scan.Plane, shared: SharedNames | None = None) -> PlaneNames:
    """Decodes the tables of a plane. Entries that protobuf refuses are left out and ``damaged`` is set.

    ``shared`` keeps decoded event names for the other planes of a file.
    """
    view = memoryview(buffer)
    data = b"".join(bytes(view[start:end]) for start, end in plane.metadata)
    damaged = False
    try:
        message = xspace().XPlane.FromString(data)
    except Exception:  # protobuf's DecodeError differs between versions
        damaged = True
        message = _salvage(data)
    stat_names = {entry.key: text(entry.value.name) for entry in message.stat_metadata}
    stats = {stat_names.get(stat.metadata_id, ""): stat_value(stat, stat_names) for stat in message.stats}
    entries = {entry.key: entry.value for entry in message.event_metadata}
    shared = shared or SharedNames()
    table = shared.tables.setdefault(frozenset(stat_names.items()), len(shared.tables))
    return PlaneNames(stat_names, stats, damaged, entries, shared, table)


def plane_stats(buffer: Any, plane: scan.Plane) -> dict[str, Any]:
    """The stats of a plane itself, as ``PlaneNames.stats``; its event metadata, which may be large, is stepped over."""
    view = memoryview(buffer)
    kept = [
        bytes(view[start + at : start + end])
        for start, stop in plane.metadata
        for at, end in _entries(view[start:stop])
        if view[start + at] in _STAT_TAGS
    ]
    message = _salvage(b"".join(kept))
    stat_names = {entry.key: text(entry.value.name) for entry in message.stat_metadata}
    return {stat_names.get(stat.metadata_id, ""): stat_value(stat, stat_names) for stat in message.stats}


def _salvage(data: bytes) -> Any:
    """The tables of a plane, entry by entry, without those that do not parse."""
    message = xspace().XPlane()
    for start, end in _entries(data):
        try:
            message.MergeFrom(xspace().XPlane.FromString(data[start:end]))
        except Exception:  # as above: leave this entry out
            continue
    return message


def _entries(data: Any) -> Iterator[tuple[int, int]]:
    """The byte ranges, tags included, of consecutive length-delimited fields, up to the first that is none."""
    position = 0
    while position < len(data):
        tag, after_tag = _varint(data, position)
        if tag & 7 != 2:
            return
        length, start = _varint(data, after_tag)
        if start + length > len(data):
            return
        yield position, start + length
        position = start + length


def _varint(data: Any, position: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if position + count >= len(data):
            break
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    return 0, len(data)


@contextmanager
def opened(file: Path, *, most_unpacked: int | None = None) -> Iterator[tuple[Any, tuple[Note, ...]]]:
    """The bytes of a profile, mapped from the disk, and what was wrong with their packing.

    A gzipped profile, known by its first bytes whatever its name, is unpacked to a temporary file: memory stays flat,
    and what a cut or damaged one still gives is read. ``most_unpacked`` bounds its bytes further than their ratio does.

    Raises:
        UnreadableError: missing, empty, not readable, rewritten as text, or larger than it may be.
    """
    try:
        with file.open("rb") as stream:
            notes: tuple[Note, ...] = ()
            packed = stream.read(2) == _GZIP_MAGIC
            stream.seek(0)
            if not packed:
                data = _mapped(stream, file)
            else:
                with tempfile.TemporaryFile() as unpacked:
                    notes = _unpack(stream, unpacked, file, most_unpacked)
                    data = _mapped(unpacked, file)
        _refuse_text(data, file)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}", file=file) from error
    try:
        yield data, notes
    finally:
        # While an error is on its way, its traceback may still hold views; the map then goes with the last of them.
        with suppress(BufferError):
            data.close()


def _mapped(stream: Any, file: Path) -> mmap.mmap:
    stream.seek(0, os.SEEK_END)
    if stream.tell() == 0:
        raise UnreadableError("is empty", file=file, remedy="the profiler was stopped before it wrote anything")
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _unpack(packed: Any, unpacked: Any, file: Path, most: int | None) -> tuple[Note, ...]:
    """Unpacks all gzip members; stops with a note at damage or at what follows the last member."""
    limit = MAX_UNPACKED_RATIO * file.stat().st_size + MAX_TEXT_BYTES
    reader = gzip.GzipFile(fileobj=packed)
    try:
        while chunk := reader.read(UNPACK_CHUNK):
            if unpacked.tell() > limit:
                raise UnreadableError(
                    f"unpacks to more than {MAX_UNPACKED_RATIO} times its size: no profile does", file=file
                )
            if most is not None and unpacked.tell() + len(chunk) > most:
                raise UnreadableError(f"unpacks to more than {most >> 20:,} MiB", file=file)
            unpacked.write(chunk)
        unpacked.flush()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        unpacked.flush()
        if unpacked.tell() == 0:
            raise UnreadableError(f"is not a whole gzip file ({error})", file=file, remedy="copy it again") from error
        return (Note("gzip_damaged", f"the gzip file is cut or damaged ({error}): what could be unpacked is read"),)
    return ()


def _refuse_text(data: Any, file: Path) -> None:
    """A binary file that went through a text tool has U+FFFD where bytes were lost: nothing can be read back."""
    head = bytes(data[: 1 << 20])
    replaced = head.count(_REPLACEMENT)
    if replaced < 16 or replaced * 3 * 50 < len(head):
        return
    try:
        head[: len(head) - 3].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 8:
            return
    whole = bytes(data)
    raise UnreadableError(
        f"was rewritten as UTF-8 text: {whole.count(_REPLACEMENT):,} times the bytes EF BF BD stand where binary data "
        "was lost, and it cannot be restored",
        file=file,
        remedy="copy the original again in binary mode, for example as .gz",
    )


def double_bits(bits: int) -> float:
    """The double whose IEEE-754 bits an int64 column holds."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
