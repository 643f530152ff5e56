"""The timeline as Chrome trace event JSON, which ui.perfetto.dev and chrome://tracing open.

A process per device, a thread per lane, a complete event per span. Written piece by piece, so that only the spans
themselves are held in memory. Perfetto keeps whole nanoseconds: begins and ends are rounded down, which keeps spans
that touch touching and those that nest nested.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from profiler.report.json_ import plain
from profiler.report.units import shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from profiler.results_timeline import ExportedDevice, ExportedSide, TimelineExport, TimelineRows

PS_PER_NS = 1000
SPANS_PER_PIECE = 8192
STEPS_THREAD = 1
MOST_LETTERS = 400  # of a name that every one of its spans repeats


def packed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of a file, gzipped; no time stamp, so that equal content gives equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def trace_events(export: TimelineExport) -> Iterator[bytes]:
    """The pieces of the JSON document, ASCII."""
    yield b'{"displayTimeUnit":"ns","otherData":{"producer":"profiler"},"traceEvents":[\n'
    lead = ""
    process = count(1)
    for side in export.sides:
        names = _ops(side)
        for device in side.devices:
            for lines in _device(side, device, names, next(process)):
                if lines:
                    yield (lead + ",\n".join(lines)).encode("ascii")
                    lead = ",\n"
    yield b"\n]}\n"


def process_name(side: ExportedSide, device: ExportedDevice) -> str:
    """What the process of a device is called; times of a compiled profile say that they are estimates."""
    what = f"{side.role}: {side.label}" if side.role and side.role != side.label else side.label
    where = f"{device.host}/{device.name}" if device.host and device.host not in device.name else device.name
    return f"{what} {where}" + (" (estimated)" if side.kind == "compiled" else "")


def _device(side: ExportedSide, device: ExportedDevice, names: list[str], process: int) -> Iterator[list[str]]:
    """The events of one device in pieces."""
    yield [
        _named("process_name", process, 0, name=_short(process_name(side, device))),
        _named("process_sort_index", process, 0, sort_index=process),
        _named("thread_name", process, STEPS_THREAD, name="steps" if device.unit == "step" else "recording"),
        _named("thread_sort_index", process, STEPS_THREAD, sort_index=STEPS_THREAD),
        *(
            _event(process, STEPS_THREAD, begin - device.origin_ps, end - device.origin_ps, _titled(side, device, each))
            for each, (begin, end) in sorted(device.steps.items())
        ),
    ]
    for thread, (name, rows) in enumerate(_threads(device.rows), STEPS_THREAD + 1):
        yield [
            _named("thread_name", process, thread, name=_short(name)),
            _named("thread_sort_index", process, thread, sort_index=thread),
        ]
        yield from _spans(device, rows, names, process, thread)


def _titled(side: ExportedSide, device: ExportedDevice, step: int) -> str:
    """The beginning of a step's event."""
    name = f"step {step}" if device.unit == "step" else "whole recording"
    return _json({"name": name + (" (estimated)" if side.kind == "compiled" else ""), "cat": device.unit})[1:-1]


def _spans(device: ExportedDevice, rows: list[int], names: list[str], process: int, thread: int) -> Iterator[list[str]]:
    """The complete events of one thread, by start: every span that begins in one of the steps."""
    drawn, edges = device.rows, device.rows.edges
    found: list[NDArray[np.int64]] = []
    for row in rows:
        starts = drawn.start_ps[edges[row] : edges[row + 1]]
        for begin, end in sorted(device.steps.values()):
            first, last = np.searchsorted(starts, (begin, end), side="left")
            found.append(np.arange(edges[row] + first, edges[row] + last))
    place = np.concatenate(found)
    place = place[np.lexsort((-drawn.duration_ps[place], drawn.start_ps[place]))]
    for at in range(0, len(place), SPANS_PER_PIECE):
        some = place[at : at + SPANS_PER_PIECE]
        starts = drawn.start_ps[some] - device.origin_ps
        ends = starts + drawn.duration_ps[some]
        yield [
            _event(process, thread, start, end, names[op])
            for start, end, op in zip(starts.tolist(), ends.tolist(), drawn.op[some].tolist(), strict=True)
        ]


def _threads(drawn: TimelineRows) -> Iterator[tuple[str, list[int]]]:
    """(name, rows) of each thread: a lane, or a row of one whose spans overlap in part, which no thread can show."""
    lanes: dict[int, list[int]] = {}
    for index, row in enumerate(drawn.rows):
        lanes.setdefault(row.lane, []).append(index)
    for lane, indices in lanes.items():
        name = drawn.rows[indices[0]].name
        if lane >= 0 and _nests(drawn, indices):
            yield name, indices
        else:
            yield from ((f"{name} ({row + 1})" if row else name, [index]) for row, index in enumerate(indices))


def _nests(drawn: TimelineRows, rows: list[int]) -> bool:
    """Whether each span below the first row lies within one of the row above."""
    if any(drawn.rows[row].crowded for row in rows):
        return False
    for row in rows[1:]:
        above = slice(drawn.edges[row - 1], drawn.edges[row])
        mine = slice(drawn.edges[row], drawn.edges[row + 1])
        around = np.searchsorted(drawn.start_ps[above], drawn.start_ps[mine], side="right") - 1
        ends = (drawn.start_ps[above] + drawn.duration_ps[above])[around]
        if (around < 0).any() or (ends < drawn.start_ps[mine] + drawn.duration_ps[mine]).any():
            return False
    return True


def _ops(side: ExportedSide) -> list[str]:
    """What every span of an op says, written once: name, category and args without what is unknown."""
    written = []
    for row in side.ops.iter_rows(named=True):
        args = {"family": row["family"], "phase": row["phase"], "kernel": row["kernel"], "scopes": row["name_stack"]}
        args |= {"source": row["source"], "program": row["program"]}
        known = {key: _short(value) for key, value in args.items() if value is not None}
        written.append(_json({"name": _short(row["op"]), "cat": row["family"], "args": known})[1:-1])
    return written


def _event(process: int, thread: int, start_ps: int, end_ps: int, rest: str) -> str:
    """One complete event; times in microseconds, to the nanosecond."""
    start, end = start_ps // PS_PER_NS, end_ps // PS_PER_NS
    length = end - start
    return (
        f'{{"ph":"X","pid":{process},"tid":{thread},"ts":{start // 1000}.{start % 1000:03d},'
        f'"dur":{length // 1000}.{length % 1000:03d},{rest}}}'
    )


def _named(what: str, process: int, thread: int, **args: Any) -> str:
    return _json({"ph": "M", "pid": process, "tid": thread, "name": what, "args": args})


def _short(text: str) -> str:
    return shorten(text, MOST_LETTERS)


def _json(value: Any) -> str:
    return json.dumps(plain(value), separators=(",", ":"))
