"""The scanner in pure Python: what ``_scan.c`` does, result for result, where no compiler was at hand.

Positions are byte offsets in the buffer, integers are 64-bit two's complement, times are picoseconds. An event is
decoded by protobuf, which is several times faster than a walk in Python. What protobuf refuses is walked here by the
rules of the C reader, which accept all that protobuf accepts and read it to the same values:

- Every read ends at the end of its message. A length that goes past it is cut there (``Cut``).
- A tag with field number 0 (outside groups), wire type 6 or 7, over 5 bytes or 32 bits, a varint over 10 bytes, an end
  of a group that is not open and groups deeper than ``MAX_GROUPS`` are malformed (``Malformed``).
- A known field with another wire type is an unknown field. The last value of a scalar or a oneof wins. The first stat
  with the wanted id and a value wins, as in XProf.
- An event with either fault is dropped and counted. The stats of an event are not opened where nobody asked for one.

``scan.py`` wraps what these functions return; see there for the meaning.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from profiler.xplane import schema

Bytes = Any  # bytes, mmap or a memoryview of bytes: what gives an int by index and a buffer by slice

MAX_GROUPS = 100
MAX_ROWS = 1 << 18  # planes, lines, ranges or texts; hostile files could have one per two bytes, each far larger
SPAN_LIMIT = 1 << 62  # a span outside ±SPAN_LIMIT ps (53 days) is damage, and sums below it cannot overflow
BIG_EVENT = 1 << 20  # bytes; above it an event is walked, since protobuf would copy it

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
# Tags: field number * 8 + wire type.
LINE_EVENTS = 0x22
EVENT_ID, EVENT_OFFSET, EVENT_DURATION, EVENT_STATS, EVENT_OCCURRENCES = 0x08, 0x10, 0x18, 0x22, 0x28
STAT_ID = 0x08
STAT_KINDS = {0x11: 1, 0x18: 2, 0x20: 3, 0x2A: 4, 0x32: 5, 0x38: 6, 0x42: 7}  # value fields; kinds as in KIND_OF
KIND_OF = {
    "double_value": 1,
    "uint64_value": 2,
    "int64_value": 3,
    "str_value": 4,
    "bytes_value": 5,
    "ref_value": 6,
    "gzip_value": 7,
}


class Cut(Exception):
    """The message ends inside a field."""


class Malformed(Exception):
    """Bytes that are not protobuf; reading of the message ends here."""


class Field(NamedTuple):
    """One field. ``value`` holds a varint or fixed number; ``at``, ``end`` the payload of a length-delimited one."""

    tag: int
    value: int
    at: int
    end: int
    start: int  # of the tag
    cut: bool  # the payload was cut at the end of the message


class Event(NamedTuple):
    """One event as it is stored; ``stats`` holds (metadata id, kind, value, length) of those asked for."""

    metadata_id: int
    offset_ps: int
    duration_ps: int
    occurrences: int
    stats: tuple[tuple[int, int, int, int], ...]


def signed(value: int) -> int:
    """The low 64 bits as two's complement."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


# ---------------------------------------------------------------------------------------------------- wire format


def _varint(data: Bytes, at: int, end: int, most: int = 10) -> tuple[int, int]:
    """(value, position behind). Bits above the 64th are dropped, as protobuf does."""
    value = shift = 0
    for place in range(at, min(end, at + most)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise Malformed if shift == 7 * most else Cut


def _tag(data: Bytes, at: int, end: int) -> tuple[int, int]:
    tag, at = _varint(data, at, end, most=5)
    if tag >> 32 or tag & 7 > FIXED32:
        raise Malformed
    return tag, at


def _skip_group(data: Bytes, at: int, end: int, tag: int) -> int:
    """Position behind the group that ``tag`` opened. protobuf lets field number 0 pass in here, so this does too."""
    open_fields = [tag >> 3]
    while open_fields:
        tag, at = _tag(data, at, end)
        wire = tag & 7
        if wire == GROUP:
            if len(open_fields) == MAX_GROUPS:
                raise Malformed
            open_fields.append(tag >> 3)
        elif wire == END_GROUP:
            if open_fields.pop() != tag >> 3:
                raise Malformed
        elif wire == VARINT:
            _, at = _varint(data, at, end)
        else:
            size = 8 if wire == FIXED64 else 4
            if wire == LENGTH:
                size, at = _varint(data, at, end)
            if size > end - at:
                raise Cut
            at += size
    return at


def _fields(data: Bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of one message. Raises Cut or Malformed where it ends early; a cut payload comes first."""
    while at < end:
        start = at
        tag, at = _tag(data, at, end)
        wire = tag & 7
        if tag < 8:
            raise Malformed
        if wire == VARINT:
            value, at = _varint(data, at, end)
            yield Field(tag, value, at, at, start, False)
        elif wire == LENGTH:
            size, at = _varint(data, at, end)
            if size > end - at:
                yield Field(tag, 0, at, end, start, True)
                raise Cut
            at += size
            yield Field(tag, 0, at - size, at, start, False)
        elif wire == GROUP:
            at = _skip_group(data, at, end, tag)
        elif wire == END_GROUP:
            raise Malformed
        else:
            size = 8 if wire == FIXED64 else 4
            if size > end - at:
                raise Cut
            at += size
            yield Field(tag, int.from_bytes(data[at - size : at], "little"), at, at, start, False)


# ---------------------------------------------------------------------------------------------------- index


PLANE_WIDTH, LINE_WIDTH, RANGE_WIDTH, TEXT_WIDTH = 10, 11, 2, 3  # integers per row


def _append(table: array[int], *row: int) -> None:
    if len(table) // len(row) == MAX_ROWS:
        raise Malformed
    table.extend(row)


class _Index:
    """The rows that ``index`` returns, and the counts that go with them."""

    def __init__(self, data: Bytes):
        self.data = data
        self.planes, self.lines, self.ranges, self.texts = (array("q") for _ in range(4))
        self.damaged = 0

    def space(self) -> bool:
        """Walk the whole buffer; True where it ends inside a message."""
        try:
            for field in _fields(self.data, 0, len(self.data)):
                if field.tag == 0x0A:
                    self.plane(field)
                elif field.tag in (0x12, 0x1A, 0x22) and not field.cut:
                    _append(self.texts, field.tag >> 3, field.at, field.end)
        except Cut:
            return True
        except Malformed:
            self.damaged += 1
        return False

    def plane(self, whole: Field) -> None:
        identity = name = name_end = 0
        cut = whole.cut
        first_line, first_range = len(self.lines) // LINE_WIDTH, len(self.ranges) // RANGE_WIDTH
        try:
            for field in _fields(self.data, whole.at, whole.end):
                tag = field.tag
                if tag == 0x1A:
                    self.line(field)
                elif tag == 0x08:
                    identity = signed(field.value)
                elif field.cut:
                    continue  # half a name or half an entry is worse than none
                elif tag == 0x12:
                    name, name_end = field.at, field.end
                elif tag in (0x22, 0x2A, 0x32):
                    if len(self.ranges) > RANGE_WIDTH * first_range and self.ranges[-1] == field.start:
                        self.ranges[-1] = field.end
                    else:
                        _append(self.ranges, field.start, field.end)
        except Cut:
            self.damaged += not whole.cut
            cut = True
        except Malformed:
            self.damaged += 1
        lines, ranges = len(self.lines) // LINE_WIDTH - first_line, len(self.ranges) // RANGE_WIDTH - first_range
        inside = (first_line, lines, first_range, ranges)
        _append(self.planes, whole.at, whole.end, identity, name, name_end, *inside, cut)

    def line(self, whole: Field) -> None:
        identity = name = name_end = display = display_end = timestamp = duration = events = 0
        cut = whole.cut
        try:
            for field in _fields(self.data, whole.at, whole.end):
                tag = field.tag
                if field.cut:
                    continue
                if tag == LINE_EVENTS:
                    events += 1
                elif tag == 0x08:
                    identity = signed(field.value)
                elif tag == 0x12:
                    name, name_end = field.at, field.end
                elif tag == 0x18:
                    timestamp = signed(field.value)
                elif tag == 0x48:
                    duration = signed(field.value)
                elif tag == 0x5A:
                    display, display_end = field.at, field.end
        except Cut:
            self.damaged += not whole.cut
            cut = True
        except Malformed:
            self.damaged += 1
        texts = (name, name_end, display, display_end)
        _append(self.lines, whole.at, whole.end, identity, *texts, timestamp, duration, events, cut)


def index(buffer: Any) -> tuple[array[int], array[int], array[int], array[int], bool, int]:
    """Rows of 64-bit integers: planes, lines, metadata ranges and texts; then truncated and damaged."""
    with memoryview(buffer).cast("B") as data:
        found = _Index(data)
        truncated = found.space()
    return found.planes, found.lines, found.ranges, found.texts, truncated, found.damaged


# ---------------------------------------------------------------------------------------------------- events


def _walk_stat(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    identity = kind = value = length = 0
    for field in _fields(data, at, end):
        if field.tag == STAT_ID:
            identity = signed(field.value)
        elif field.tag in STAT_KINDS and not field.cut:
            kind = STAT_KINDS[field.tag]
            if field.tag & 7 == LENGTH:
                value, length = field.at, field.end - field.at
            else:
                value, length = signed(field.value), 0
    return identity, kind, value, length


def _walk_event(data: Bytes, at: int, end: int, opened: frozenset[int]) -> Event:
    metadata_id = offset = duration = occurrences = 0
    stats = []
    for field in _fields(data, at, end):
        tag = field.tag
        if tag == EVENT_ID:
            metadata_id = signed(field.value)
        elif tag == EVENT_OFFSET:
            offset, occurrences = signed(field.value), 0
        elif tag == EVENT_DURATION:
            duration = signed(field.value)
        elif tag == EVENT_OCCURRENCES:
            offset, occurrences = 0, signed(field.value)
        elif tag == EVENT_STATS and opened and not field.cut:
            stat = _walk_stat(data, field.at, field.end)
            if stat[0] in opened and stat[1]:
                stats.append(stat)
    return Event(metadata_id, offset, duration, max(occurrences, 1), tuple(stats))


def _read_event(data: Bytes, at: int, end: int, opened: frozenset[int], parse: Any, refused: Any) -> Event | None:
    """The event at [at, end), or None where it is damaged. ``opened``: the stat ids somebody asked for."""
    try:
        if end - at > BIG_EVENT:
            return _walk_event(data, at, end, opened)
        try:
            message = parse(data[at:end])
        except refused:
            return _walk_event(data, at, end, opened)
    except (Cut, Malformed):
        return None
    stats: tuple[tuple[int, int, int, int], ...] = ()
    if opened:
        found = []
        for stat in message.stats:
            if stat.metadata_id in opened and (which := stat.WhichOneof("value")) is not None:
                kind = KIND_OF[which]
                if kind in (4, 5, 7):  # their place in the buffer is known to the walk only
                    return _walk_event(data, at, end, opened)
                value = getattr(stat, which)
                if kind == 1:
                    (value,) = struct.unpack("<q", struct.pack("<d", value))
                found.append((stat.metadata_id, kind, signed(value), 0))
        stats = tuple(found)
    occurrences = max(message.num_occurrences, 1)
    return Event(message.metadata_id, message.offset_ps, message.duration_ps, occurrences, stats)


class _Line:
    """The events of one line, decoded one at a time.

    Args:
        roles: stat metadata ids of device offset, device duration, program id, symbol id; -1 where absent.
        base_ps: start of the line, added to raw offsets.
    """

    def __init__(self, data: Bytes, start: int, end: int, base_ps: int, roles: tuple[int, int, int, int]):
        from google.protobuf.message import DecodeError

        self.data, self.start, self.end = data, start, end
        self.base_ps = base_ps
        self.device_offset, self.device_duration, self.program, self.symbol = roles
        self.roles = frozenset(roles) - {-1}
        self.parse = schema.xspace().XEvent.FromString
        self.refused = DecodeError
        self.damaged = 0

    def records(self) -> Iterator[tuple[int, int]]:
        """Byte ranges of the events. Counts one fault where the line ends early."""
        try:
            for field in _fields(self.data, self.start, self.end):
                if field.tag == LINE_EVENTS and not field.cut:
                    yield field.at, field.end
        except (Cut, Malformed):
            self.damaged += 1

    def read(self, at: int, end: int, opened: frozenset[int]) -> Event | None:
        return _read_event(self.data, at, end, opened, self.parse, self.refused)

    def span(self, event: Event) -> tuple[int, int] | None:
        """(start, end) by rule 2: the device's own clock where both device stats are there. None: out of range."""
        start, duration = signed(self.base_ps + event.offset_ps), event.duration_ps
        device_start = first_integer(event.stats, self.device_offset)
        device_duration = first_integer(event.stats, self.device_duration)
        if device_start is not None and device_duration is not None:
            start, duration = device_start, device_duration
        if duration < 0 or start < -SPAN_LIMIT or start + duration > SPAN_LIMIT:
            return None
        return start, start + duration


def first_integer(stats: Iterable[tuple[int, int, int, int]], wanted: int) -> int | None:
    """Value of the first uint64 or int64 stat with this id."""
    if wanted != -1:
        for identity, kind, value, _ in stats:
            if identity == wanted and kind in (2, 3):
                return value
    return None


class _Sums:
    """Self time by a stack of open spans, and one row of sums per op. Needs events in the order of rule 3."""

    def __init__(self, line: _Line, windows: list[tuple[int, int]]):
        self.line = line
        self.window_starts = [start for start, _ in windows]
        self.window_ends = [end for _, end in windows]
        self.rows: dict[tuple[int, int, bool, int, bool, int], list[int]] = {}
        self.stack: list[tuple[int, int, list[int]]] = []
        self.events = 0

    def add(self, event: Event, start: int, end: int) -> None:
        program = first_integer(event.stats, self.line.program)
        symbol = first_integer(event.stats, self.line.symbol)
        window = bisect.bisect_right(self.window_starts, start) - 1
        if window >= 0 and start >= self.window_ends[window]:
            window = -1
        key = (event.metadata_id, program or 0, program is not None, symbol or 0, symbol is not None, window)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = [0, 0, 0, start, end]
        stack = self.stack
        while stack and not (stack[-1][0] <= start and end <= stack[-1][1]):
            stack.pop()
        duration = end - start
        if stack:
            stack[-1][2][2] -= duration
            if stack[-1][0] == start and stack[-1][1] == end:
                stack.pop()  # nothing can be a direct child of the outer of two equal spans
        stack.append((start, end, row))
        row[0] += event.occurrences
        row[1] += duration
        row[2] += duration
        row[3] = min(row[3], start)
        row[4] = max(row[4], end)
        self.events += 1

    def table(self) -> array[int]:
        rows = array("q")
        for (metadata_id, program, has_program, symbol, has_symbol, window), sums in self.rows.items():
            rows.extend((metadata_id, program, symbol, has_program | has_symbol << 1, window))
            rows.extend(signed(value) for value in sums)
        return rows


def op_sums(
    buffer: Any, start: int, end: int, base_ps: int, roles: tuple[int, int, int, int], windows: Any
) -> tuple[array[int], int, int, bool]:
    """Rows of (metadata id, program, symbol, flags, window, 5 sums), then events, damaged, resorted."""
    pairs = array("q", bytes(windows))
    edges = list(zip(pairs[::2], pairs[1::2], strict=True))
    with memoryview(buffer).cast("B") as data:
        line = _Line(data, start, end, base_ps, roles)
        sums = _Sums(line, edges)
        last: tuple[int, int] | None = None
        for at, stop in line.records():
            event = line.read(at, stop, line.roles)
            span = event and line.span(event)
            if event is None or span is None:
                line.damaged += 1
                continue
            rank = (event.offset_ps, -event.duration_ps)
            if last is not None and rank < last:
                return (*_sorted_op_sums(data, start, end, base_ps, roles, edges), True)
            last = rank
            sums.add(event, *span)
        return sums.table(), sums.events, line.damaged, False


def _sorted_op_sums(
    data: Bytes, start: int, end: int, base_ps: int, roles: tuple[int, int, int, int], edges: list[tuple[int, int]]
) -> tuple[array[int], int, int]:
    """As op_sums, for a line that is not in the order of rule 3: sort the places of its events, then decode again."""
    line = _Line(data, start, end, base_ps, roles)
    places: list[tuple[int, int, int, int]] = []
    for at, stop in line.records():
        event = line.read(at, stop, line.roles)
        if event is None or line.span(event) is None:
            line.damaged += 1
        else:
            places.append((event.offset_ps, -event.duration_ps, at, stop))
    places.sort()
    sums = _Sums(line, edges)
    for _, _, at, stop in places:
        event = line.read(at, stop, line.roles)
        span = event and line.span(event)
        if event is not None and span is not None:
            sums.add(event, *span)
    return sums.table(), sums.events, line.damaged


def events(
    buffer: Any,
    start: int,
    end: int,
    base_ps: int,
    roles: tuple[int, int, int, int],
    wanted: Any,
    only: Any | None,
    require: int,
) -> tuple[tuple[array[int], ...], list[tuple[array[int], array[int], array[int]]], int]:
    """(metadata id, start, duration, occurrences) columns, (kind, value, length) per wanted stat, damaged."""
    ids = array("q", bytes(wanted))
    kept = None if only is None else frozenset(array("q", bytes(only)))
    columns = tuple(array("q") for _ in range(4))
    stats = [(array("B"), array("q"), array("q")) for _ in ids]
    with memoryview(buffer).cast("B") as data:
        line = _Line(data, start, end, base_ps, roles)
        opened = line.roles | frozenset(ids) - {-1}
        for at, stop in line.records():
            if kept is not None:
                event = line.read(at, stop, frozenset())
                if event is not None and event.metadata_id not in kept:
                    continue
            event = line.read(at, stop, opened)
            span = event and line.span(event)
            if event is None or span is None:
                line.damaged += 1
                continue
            found: dict[int, tuple[int, int, int, int]] = {}
            for stat in event.stats:
                found.setdefault(stat[0], stat)
            if require >= 0 and (ids[require] == -1 or ids[require] not in found):
                continue
            values = (event.metadata_id, span[0], span[1] - span[0], event.occurrences)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            for identity, (kinds, numbers, lengths) in zip(ids, stats, strict=True):
                _, kind, number, length = found.get(identity, (0, 0, 0, 0)) if identity != -1 else (0, 0, 0, 0)
                kinds.append(kind)
                numbers.append(number)
                lengths.append(length)
    return columns, stats, line.damaged


# ---------------------------------------------------------------------------------------------------- sweep


class _Lanes:
    """The candidates of one instant: the innermost open event of each lane, and every open event without a lane."""

    def __init__(self, key: list[int], rank: list[int], lane: list[int]):
        self.key, self.rank, self.lane = key, rank, lane
        self.stacks: dict[int, list[int]] = {}
        self.closed: set[int] = set()
        self.counts: list[dict[int, int]] = [{} for _ in range(5)]  # per rank: key -> candidates
        self.totals = [0] * 5

    def _enter(self, event: int) -> None:
        counts = self.counts[self.rank[event]]
        counts[self.key[event]] = counts.get(self.key[event], 0) + 1
        self.totals[self.rank[event]] += 1

    def _leave(self, event: int) -> None:
        counts, key = self.counts[self.rank[event]], self.key[event]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
        self.totals[self.rank[event]] -= 1

    def open(self, event: int) -> None:
        """Events come by start, then by end descending, so the newest is the innermost of its lane."""
        if self.lane[event] >= 0:
            stack = self.stacks.setdefault(self.lane[event], [])
            if stack:
                self._leave(stack[-1])
            stack.append(event)
        self._enter(event)

    def close(self, event: int) -> None:
        if self.lane[event] < 0:
            self._leave(event)
            return
        stack = self.stacks[self.lane[event]]
        if stack[-1] != event:
            self.closed.add(event)
            return
        self._leave(stack.pop())
        while stack and stack[-1] in self.closed:
            self.closed.remove(stack.pop())
        if stack:
            self._enter(stack[-1])

    def share(self, duration: float, row: list[float]) -> None:
        """Add a piece of time to the candidates of the smallest rank, or to the last column."""
        for total, counts in zip(self.totals, self.counts, strict=True):
            if total:
                for key, count in counts.items():
                    row[key] += duration * count / total
                return
        row[-1] += duration


def sweep(
    start: Any,
    end: Any,
    by_end: Any,
    key: Any,
    rank: Any,
    lane: Any,
    windows: Any,
    window_row: Any,
    n_rows: int,
    n_keys: int,
) -> array[float]:
    """Events sorted by start ascending, then end descending; ``by_end`` gives their order by end."""
    starts, ends, edges = (array("q", bytes(column)).tolist() for column in (start, end, windows))
    order, keys, lane_ids, rows = (array("i", bytes(column)).tolist() for column in (by_end, key, lane, window_row))
    lanes = _Lanes(keys, list(bytes(rank)), lane_ids)
    out = [[0.0] * (n_keys + 1) for _ in range(n_rows)]
    opened = closed = 0
    never = 1 << 63
    for row, at, stop in zip(rows, edges[::2], edges[1::2], strict=True):
        while True:
            while True:  # every open and close up to this instant
                next_start = starts[opened] if opened < len(starts) else never
                next_end = ends[order[closed]] if closed < len(ends) else never
                if next_end <= next_start and next_end <= at:
                    lanes.close(order[closed])
                    closed += 1
                elif next_start <= at:
                    lanes.open(opened)
                    opened += 1
                else:
                    break
            if at >= stop:
                break
            until = min(next_start, next_end, stop)
            lanes.share(float(until - at), out[row])
            at = until
    return array("d", (value for row_values in out for value in row_values))
