"""Reading events without building messages: what is where in a file, sums per op, event columns, exclusive time.

The public face of two implementations with identical results: ``_scan.c`` where it could be compiled, and
``pyscan.py``, about a hundred times slower, where not. The environment variable ``PROFILER_SCANNER`` (``compiled`` or
``python``) forces one.

All functions are tolerant: what a damaged file still holds is returned, and what was given up on is counted. They take
any object with the buffer protocol (bytes, mmap), of any size. The compiled ones release the GIL, so that a caller can
work on several lines in threads. Result arrays are read-only.

Beside the results, scratch memory is 48 bytes per event of a line that has to be sorted, at most 24 bytes per level of
nesting, and the columns of 16,384 events.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.errors import UsageError
from profiler.xplane import pyscan

_FORCED = os.environ.get("PROFILER_SCANNER", "")
if _FORCED not in ("", "compiled", "python"):
    raise UsageError(f"PROFILER_SCANNER is {_FORCED!r}", remedy="set it to compiled or python, or unset it")


def _implementation() -> Any:
    if _FORCED == "python":
        return pyscan
    try:
        return importlib.import_module("profiler.xplane._scan")
    except ImportError as error:
        if _FORCED == "compiled":
            raise UsageError(
                f"PROFILER_SCANNER asks for the compiled scanner, but it cannot be loaded: {error}",
                remedy="reinstall where a C compiler is at hand, or unset PROFILER_SCANNER",
            ) from error
        return pyscan


_scanner = _implementation()
COMPILED: bool = _scanner is not pyscan


def notice() -> str | None:
    """One sentence to show where reading is slow because no compiler was at hand, else None."""
    if COMPILED or _FORCED:
        return None
    return (
        "The compiled scanner is not installed, so large profiles are read slowly; "
        "reinstall profiler where a C compiler is at hand."
    )


# ---------------------------------------------------------------------------------------------------- index


@dataclass(frozen=True, slots=True)
class Line:
    """One XLine.

    Attributes:
        start, end: byte range of its payload in the buffer.
        events: complete event records. Their contents are not looked at.
        truncated: cut at the end of the file, or ends inside a field.
    """

    start: int
    end: int
    id: int
    name: str
    display_name: str
    timestamp_ns: int
    duration_ps: int
    events: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Plane:
    """One XPlane.

    Attributes:
        start, end: byte range of its payload in the buffer.
        metadata: byte ranges, tags included, of its event_metadata, stat_metadata and stats: joined, they are an
            XPlane message that holds nothing else. Adjacent ranges are merged.
        truncated: cut at the end of the file, or ends inside a field.
    """

    start: int
    end: int
    id: int
    name: str
    lines: tuple[Line, ...]
    metadata: tuple[tuple[int, int], ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Space:
    """What a file holds.

    Attributes:
        truncated: the file ends inside a message.
        damaged: messages given up on before their end (a malformed tag, length or wire type, or more than 2^18 planes
            or lines), not counting a cut at the end of the file and the contents of events.
    """

    planes: tuple[Plane, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hostnames: tuple[str, ...]
    truncated: bool
    damaged: int


def index(buffer: Any) -> Space:
    """Planes, line headers and the places of metadata; the contents of events are skipped.

    The last value of a scalar wins and fields may come in any order, as in protobuf. A name that is cut counts as
    missing.
    """
    planes, lines, ranges, texts, truncated, damaged = _scanner.index(buffer)
    with memoryview(buffer).cast("B") as view:

        def text(start: int, end: int) -> str:
            return bytes(view[start:end]).decode("utf-8", errors="replace")

        all_lines = tuple(
            Line(start, end, id, text(*name), text(*display), timestamp, duration, events, bool(cut))
            for start, end, id, *spans, timestamp, duration, events, cut in _rows(lines, pyscan.LINE_WIDTH)
            for name, display in [(spans[:2], spans[2:])]
        )
        all_ranges = tuple((start, end) for start, end in _rows(ranges, pyscan.RANGE_WIDTH))
        all_planes = tuple(
            Plane(
                start,
                end,
                id,
                text(name, name_end),
                all_lines[first_line : first_line + line_count],
                all_ranges[first_range : first_range + range_count],
                bool(cut),
            )
            for start, end, id, name, name_end, first_line, line_count, first_range, range_count, cut in _rows(
                planes, pyscan.PLANE_WIDTH
            )
        )
        said: dict[int, list[str]] = {2: [], 3: [], 4: []}
        for field, start, end in _rows(texts, pyscan.TEXT_WIDTH):
            said[field].append(text(start, end))
    errors, warnings, hostnames = (tuple(said[field]) for field in (2, 3, 4))
    return Space(all_planes, errors, warnings, hostnames, bool(truncated), damaged)


def _rows(buffer: Any, width: int) -> list[list[int]]:
    return np.frombuffer(buffer, np.int64).reshape(-1, width).tolist()


# ---------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class SpanStats:
    """Ids of the stats that say when and what an event is, in the plane's stat_metadata; -1 where absent."""

    device_offset_ps: int = -1
    device_duration_ps: int = -1
    program_id: int = -1
    symbol_id: int = -1

    def _ids(self) -> tuple[int, int, int, int]:
        return self.device_offset_ps, self.device_duration_ps, self.program_id, self.symbol_id


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OpSums:
    """Sums per (metadata_id, program_id, symbol_id, window), sorted by that key; absent ids before zero.

    Attributes:
        program_id, symbol_id: from stats on the event, as int64 two's complement; 0 where has_program, has_symbol
            are False. Ids that stand on the event's metadata are not looked up here.
        window: index of the window in which the op's span starts, -1 for none.
        occurrences: sum of num_occurrences, where below 1 counts as 1.
        total_ps, self_ps: time of the spans, and that less the time of their direct children.
        first_start_ps, last_end_ps: on the clock of the spans.
        events: events that were counted.
        damaged: events dropped because they are malformed, have a negative duration or a span outside ±2^62 ps, plus
            one where the line itself is cut or malformed.
        resorted: the line was not in order and had to be sorted.
    """

    metadata_id: Int64s
    program_id: Int64s
    symbol_id: Int64s
    has_program: npt.NDArray[np.bool_]
    has_symbol: npt.NDArray[np.bool_]
    window: npt.NDArray[np.int32]
    occurrences: Int64s
    total_ps: Int64s
    self_ps: Int64s
    first_start_ps: Int64s
    last_end_ps: Int64s
    events: int
    damaged: int
    resorted: bool


def op_sums(
    buffer: Any, line: Line, stats: SpanStats, origin_ns: int = 0, windows: npt.ArrayLike | None = None
) -> OpSums:
    """Decode, self time and sums per op in one pass, with XProf's rules (docs: parity, rules 2 to 5).

    A span is the event's device stats where both are there, on the device's own clock; else
    (timestamp_ns - origin_ns) * 1000 + offset_ps. Self time nests spans, ends inclusive, in the order of raw offset
    ascending, raw duration descending; a line in another order is sorted first.

    Args:
        windows: (n, 2) [start, end) ps, sorted, without overlap, on the clock of the spans.
    """
    edges = np.empty((0, 2), np.int64) if windows is None else _windows(windows)
    _check(buffer, line)
    table, events, damaged, resorted = _scanner.op_sums(
        buffer, line.start, line.end, _base_ps(line, origin_ns), stats._ids(), edges
    )
    rows = np.frombuffer(table, np.int64).reshape(-1, 10)
    metadata_id, program, symbol, flags, window = rows[:, :5].T
    order = np.lexsort((window, flags & 2, symbol, flags & 1, program, metadata_id))
    columns = [_frozen(column) for column in rows[order].T]
    flags = columns[3]
    return OpSums(
        metadata_id=columns[0],
        program_id=columns[1],
        symbol_id=columns[2],
        has_program=_frozen(flags & 1 != 0),
        has_symbol=_frozen(flags & 2 != 0),
        window=_frozen(columns[4].astype(np.int32)),
        occurrences=columns[5],
        total_ps=columns[6],
        self_ps=columns[7],
        first_start_ps=columns[8],
        last_end_ps=columns[9],
        events=events,
        damaged=damaged,
        resorted=bool(resorted),
    )


@dataclass(frozen=True)
class StatColumn:
    """One stat of each event; the first one that has a value, where an event repeats it.

    Attributes:
        kind: 0 absent, 1 double, 2 uint64, 3 int64, 4 str, 5 bytes, 6 ref into stat_metadata, 7 gzip-compressed str.
        value: the bits of the double, the integer or the ref id; for str, bytes and gzip the byte offset in the buffer.
        length: bytes, for str, bytes and gzip; else 0.
    """

    kind: npt.NDArray[np.uint8]
    value: Int64s
    length: Int64s


@dataclass(frozen=True)
class Events:
    """Events in file order: columns of equal length, and the wanted stats in the order they were asked for.

    ``start_ps`` and ``duration_ps`` are spans as in ``op_sums``; ``occurrences`` is num_occurrences, at least 1;
    ``damaged`` counts as in ``OpSums``.
    """

    metadata_id: Int64s
    start_ps: Int64s
    duration_ps: Int64s
    occurrences: Int64s
    stats: tuple[StatColumn, ...]
    damaged: int


def events(
    buffer: Any,
    line: Line,
    stats: SpanStats,
    wanted: Sequence[int] = (),
    origin_ns: int = 0,
    only: npt.ArrayLike | None = None,
    require: int | None = None,
) -> Events:
    """The events of a line as columns.

    Args:
        wanted: stat metadata ids to read; -1 gives an empty column.
        only: metadata ids to keep, sorted.
        require: position in ``wanted`` of a stat without which an event is left out.
    """
    if require is not None and not 0 <= require < len(wanted):
        raise ValueError(f"require is {require}, but {len(wanted)} stats are wanted")
    kept = None if only is None else np.unique(np.asarray(only, np.int64))
    _check(buffer, line)
    unique = list(dict.fromkeys(wanted))
    columns, found, damaged = _scanner.events(
        buffer,
        line.start,
        line.end,
        _base_ps(line, origin_ns),
        stats._ids(),
        np.array(unique, np.int64),
        kept,
        -1 if require is None else unique.index(wanted[require]),
    )
    metadata_id, start, duration, occurrences = (_frozen(np.frombuffer(column, np.int64)) for column in columns)
    by_id = {
        id: StatColumn(
            _frozen(np.frombuffer(kind, np.uint8)),
            _frozen(np.frombuffer(value, np.int64)),
            _frozen(np.frombuffer(length, np.int64)),
        )
        for id, (kind, value, length) in zip(unique, found, strict=True)
    }
    return Events(metadata_id, start, duration, occurrences, tuple(by_id[id] for id in wanted), damaged)


def _base_ps(line: Line, origin_ns: int) -> int:
    """Start of the line in ps, wrapped to 64 bits as in C."""
    return pyscan.signed((line.timestamp_ns - origin_ns) * 1000)


def _check(buffer: Any, line: Line) -> None:
    with memoryview(buffer) as view:
        if not 0 <= line.start <= line.end <= view.nbytes:
            raise ValueError(f"line at bytes {line.start} to {line.end} of a buffer of {view.nbytes}")


def _windows(windows: npt.ArrayLike) -> Int64s:
    edges = np.ascontiguousarray(windows, np.int64)
    if edges.size == 0:
        return edges.reshape(0, 2)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise ValueError(f"windows have shape {edges.shape}, not (n, 2)")
    flat = edges.ravel()
    if (flat[1:] < flat[:-1]).any():
        raise ValueError("windows are not sorted or overlap")
    return edges


def _frozen(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


# ---------------------------------------------------------------------------------------------------- sweep

RANKS = 5  # 0 compute, 1 communication, 2 transfer, 3 wait, 4 container


def sweep(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    key: npt.ArrayLike,
    rank: npt.ArrayLike,
    lane: npt.ArrayLike,
    windows: npt.ArrayLike,
    window_row: npt.ArrayLike,
    n_rows: int,
    n_keys: int,
) -> npt.NDArray[np.float64]:
    """Exclusive time of one device: every instant inside a window goes to what ran in it, once.

    Candidates at an instant are the innermost open event of each lane >= 0 (the largest start, then the smaller end,
    then the later in the input) and every open event of lane -1, for lines whose events overlap without nesting. Among
    them the smallest rank wins, and the piece of time up to the next start or end is divided equally among the
    candidates of that rank. A piece without a candidate is idle.

    Args:
        start, end: int64 [N], ps. Events that do not end after their start are ignored.
        key: int32 [N] in [0, n_keys).
        rank: uint8 [N] in [0, RANKS).
        lane: int32 [N], -1 or higher.
        windows: int64 (W, 2) [start, end) ps, sorted, without overlap.
        window_row: int32 [W] in [0, n_rows), the output row to which a window adds.

    Returns:
        float64 (n_rows, n_keys + 1) ps. The last column is idle; a row sums to the length of its windows.
    """
    starts, ends = np.ascontiguousarray(start, np.int64), np.ascontiguousarray(end, np.int64)
    keys, lanes = np.ascontiguousarray(key, np.int32), np.ascontiguousarray(lane, np.int32)
    ranks = np.ascontiguousarray(rank, np.uint8)
    edges, rows = _windows(windows), np.ascontiguousarray(window_row, np.int32)
    if {column.shape for column in (starts, ends, keys, ranks, lanes)} != {(starts.size,)}:
        raise ValueError("start, end, key, rank and lane differ in length")
    if rows.shape != (len(edges),):
        raise ValueError(f"{rows.size} window rows for {len(edges)} windows")
    _in_range("key", keys, n_keys)
    _in_range("rank", ranks, RANKS)
    _in_range("window row", rows, n_rows)
    if lanes.size and lanes.min() < -1:
        raise ValueError(f"lane {lanes.min()} is below -1")

    kept = np.flatnonzero(ends > starts)
    order = kept[np.lexsort((-ends[kept], starts[kept]))]
    starts, ends = starts[order], ends[order]
    # Lanes become small numbers. A -1 is put in front so that -1 is always number 0, and -1 again after the shift.
    _, numbers = np.unique(np.append(np.int32(-1), lanes[order]), return_inverse=True)
    table = _scanner.sweep(
        starts,
        ends,
        np.argsort(ends, kind="stable").astype(np.int32),
        keys[order],
        ranks[order],
        (numbers[1:] - 1).astype(np.int32),
        edges,
        rows,
        n_rows,
        n_keys,
    )
    return np.frombuffer(table, np.float64).reshape(n_rows, n_keys + 1).copy()


def _in_range(what: str, values: Any, limit: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= limit):
        raise ValueError(f"a {what} is outside 0 to {limit - 1}")
