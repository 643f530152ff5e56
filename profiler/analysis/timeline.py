"""The timeline of one device, sampled to what a screen can show.

``rows`` sorts a device's spans once: into lanes, and within a lane into depths of nesting, so that spans of a row stand
side by side. ``view`` then cuts a window out of it by bisection and merges what is narrower than a pixel, so that
neither the time nor the size of an answer grows much with the number of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from profiler.errors import UsageError
from profiler.results_timeline import (
    TimelineDevice,
    TimelineOp,
    TimelineRow,
    TimelineRows,
    TimelineSpan,
    TimelineView,
)
from profiler.trace import Trace

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

MOST_DEPTHS = 32  # spans that overlap deeper than this share one last row
Ints = NDArray[np.int64]


def devices(measured: Measured) -> tuple[TimelineDevice, ...]:
    """The devices that have a timeline, with their steps."""
    trace, found = measured.trace, []
    for device, timeline, windows in zip(trace.devices, trace.timelines, trace.windows, strict=True):
        if not len(timeline):
            continue
        steps = measured.times.spans.get(device.index, windows.spans)
        # A device on which no step repeats is left out of the times, but its recording can be looked at.
        unit = measured.times.unit if device.index in measured.times.spans else windows.unit
        first, last = int(timeline.start_ps.min()), int((timeline.start_ps + timeline.duration_ps).max())
        if len(steps):
            first, last = min(first, int(steps[:, 0].min())), max(last, int(steps[:, 1].max()))
        found.append(
            TimelineDevice(device.index, device.name, len(timeline), steps, typical(steps), unit, (first, last))
        )
    return tuple(found)


def typical(steps: Ints) -> int:
    """The step whose length is nearest the median, the earliest of equals; 0 where there is none."""
    if not len(steps):
        return 0
    lengths = (steps[:, 1] - steps[:, 0]).astype(np.float64)
    return int(np.abs(lengths - np.median(lengths)).argmin())


def rows(trace: Trace, device: int) -> TimelineRows:
    """All spans of a device in drawing order; in flight come last.

    Raises:
        UsageError: there is no such device.
    """
    if not 0 <= device < len(trace.timelines):
        raise UsageError(f"no device {device}", file=trace.label, remedy=f"there are {len(trace.timelines)}, from 0")
    timeline = trace.timelines[device]
    names, family = _families(trace)
    lanes = np.unique(timeline.lane)
    found: list[TimelineRow] = []
    order, sizes, longest = [], [], []
    for lane in [*lanes[lanes >= 0].tolist(), *lanes[lanes < 0].tolist()]:
        mine = np.flatnonzero(timeline.lane == lane)
        start, duration = timeline.start_ps[mine], timeline.duration_ps[mine]
        mine = mine[np.lexsort((-duration, start))]
        depth = depths(timeline.start_ps[mine], timeline.duration_ps[mine])
        by_depth = mine[np.argsort(depth, kind="stable")]
        counts = np.bincount(depth)
        order.append(by_depth)
        sizes += counts.tolist()
        longest += np.maximum.reduceat(timeline.duration_ps[by_depth], np.cumsum(counts) - counts).tolist()
        name = timeline.lane_name(lane)
        found += [TimelineRow(lane, name, each, crowded=each == MOST_DEPTHS) for each in range(len(counts))]
    place = np.concatenate(order) if order else np.zeros(0, np.int64)
    return TimelineRows(
        rows=tuple(found),
        edges=np.cumsum([0, *sizes]),
        start_ps=timeline.start_ps[place],
        duration_ps=timeline.duration_ps[place],
        op=timeline.op[place],
        longest_ps=np.array(longest, np.int64),
        family=family,
        families=names,
    )


def depths(start: Ints, duration: Ints) -> Ints:
    """The row of each span of a lane, such that those of a row do not overlap; ``MOST_DEPTHS`` holds what finds no row.

    Spans come by start, of equal starts the longest first. Where they nest, the row is the depth of nesting, the number
    of spans open at the begin. Where some overlap in part, as those in flight do, that number may put two of them into
    one row: then each takes the first row that is free.
    """
    end = start + duration
    open_at = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    # Spans of no length that begin here and were sorted before count as ended, not as open.
    depth = np.maximum(open_at, 0) if (duration > 0).all() else _open(start, end)
    if depth.max(initial=0) < MOST_DEPTHS and _apart(depth, start, end):
        return depth
    return _first_free(start, end)


def _open(start: Ints, end: Ints) -> Ints:
    """How many spans of some length are open when each begins; those before it in order count, equal starts too."""
    long = end > start
    begun: Ints = np.cumsum(long) - long
    return begun - np.searchsorted(np.sort(end[long]), start, side="right")


def _apart(depth: Ints, start: Ints, end: Ints) -> bool:
    """Whether no two spans of one depth overlap."""
    order = np.argsort(depth, kind="stable")
    same = depth[order][1:] == depth[order][:-1]
    return bool((end[order][:-1][same] <= start[order][1:][same]).all())


def _first_free(start: Ints, end: Ints) -> Ints:
    depth = np.full(len(start), MOST_DEPTHS, np.int64)
    left = np.arange(len(start))
    for row in range(MOST_DEPTHS):
        if not len(left):
            break
        # A row takes the first span that is left, then the first that begins once that has ended, and so on.
        following = np.maximum(np.searchsorted(start[left], end[left], side="left"), np.arange(len(left)) + 1).tolist()
        taken, at = [], 0
        while at < len(left):
            taken.append(at)
            at = following[at]
        depth[left[taken]] = row
        left = np.delete(left, taken)
    return depth


def view(rows: TimelineRows, start_ps: int, end_ps: int, pixels: int) -> TimelineView:
    """What is seen between two moments on a drawing of so many pixels, at most 2 · pixels + 3 entries a row.

    A span that touches the window belongs to it; one of no length does where it lies in [start, end).

    Raises:
        UsageError: the window is empty, or has no pixel.
    """
    if end_ps <= start_ps or pixels < 1:
        raise UsageError("nothing can be seen", remedy="a window must end after its start and have a pixel")
    pixel = -(-(end_ps - start_ps) // pixels)  # rounded up, so that there are never more of them
    parts: list[tuple[NDArray[np.int64], ...]] = []
    for number, row in enumerate(rows.rows):
        first, last = int(rows.edges[number]), int(rows.edges[number + 1])
        starts = rows.start_ps[first:last]
        # What begins before the window may reach into it, but not from further than the longest of the row.
        furthest = max(start_ps - int(rows.longest_ps[number]), -(2**63))
        low = first + int(np.searchsorted(starts, furthest, side="left"))
        high = first + int(np.searchsorted(starts, end_ps, side="left"))
        if not row.crowded:  # side by side: at most one that begins before reaches into the window
            low = max(low, first + int(np.searchsorted(starts, start_ps, side="left")) - 1)
        if low < high:
            parts += _seen(rows, number, slice(low, high), start_ps, pixel)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0, np.int64)] * 7
    row_of, first_ps, last_ps, busy, count, op, family = columns
    return TimelineView(
        start_ps, end_ps, pixels, rows.rows, rows.families, row_of, first_ps, last_ps, busy, count, op, family
    )


def _seen(rows: TimelineRows, number: int, place: slice, begin: int, pixel: int) -> list[tuple[Ints, ...]]:
    """The entries of one row, at most one tuple of columns."""
    start, duration, op = rows.start_ps[place], rows.duration_ps[place], rows.op[place]
    end = start + duration
    if start[0] < begin:
        reaches = (end > begin) | (start >= begin)
        start, duration, op, end = start[reaches], duration[reaches], op[reaches], end[reaches]
    if not len(start):
        return []
    at = np.maximum((start - begin) // pixel, -1)
    narrow = np.ones(len(start), np.bool_) if rows.rows[number].crowded else duration < pixel
    # A new entry begins at a wide span, after one, and in a new pixel.
    new = np.ones(len(start), np.bool_)
    new[1:] = ~(narrow[1:] & narrow[:-1] & (at[1:] == at[:-1]))
    heads = np.flatnonzero(new)
    count = np.diff(np.append(heads, len(start)))
    busy = np.add.reduceat(duration, heads)
    single = count == 1
    family = rows.family[op[heads]].astype(np.int64)
    several = np.flatnonzero(~single)
    if len(several):
        block = np.repeat(np.arange(len(heads)), count)
        inside = ~single[block]
        compact = np.cumsum(~single) - 1
        kinds = len(rows.families)
        key = compact[block[inside]] * kinds + rows.family[op[inside]]
        time = np.bincount(key, weights=duration[inside], minlength=len(several) * kinds)
        family[several] = time.reshape(len(several), kinds).argmax(axis=1)
    return [
        (
            np.full(len(heads), number, np.int64),
            start[heads],
            np.maximum.reduceat(end, heads),
            busy,
            count.astype(np.int64),
            np.where(single, op[heads], -1).astype(np.int64),
            family,
        )
    ]


def op_facts(trace: Trace, op_ids: Iterable[int]) -> tuple[TimelineOp, ...]:
    """What is known of some ops, by op id; −1, a block of several, is passed over."""
    wanted = sorted({int(each) for each in op_ids} - {-1})
    names = ("op", "family", "phase", "kernel", "name_stack", "source", "program", "shape")
    return tuple(
        TimelineOp(op_id, *row) for op_id, row in zip(wanted, trace.ops[wanted].select(names).iter_rows(), strict=True)
    )


def longest(view: TimelineView, most: int) -> tuple[TimelineSpan, ...]:
    """The entries of a view with the most time, of equals the earliest."""
    order = np.lexsort((view.start_ps, -view.busy_ps))[:most].tolist()
    return tuple(
        TimelineSpan(
            view.rows[view.row[at]].name,
            view.rows[view.row[at]].depth,
            int(view.start_ps[at]),
            int(view.busy_ps[at]),
            int(view.count[at]),
            int(view.op[at]),
            view.families[view.family[at]],
        )
        for at in order
    )


def _families(trace: Trace) -> tuple[tuple[str, ...], NDArray[np.int16]]:
    """The families of a trace, and which of them each op is."""
    numbers: dict[str, int] = {}
    of = [numbers.setdefault(name, len(numbers)) for name in trace.ops["family"]]
    return tuple(numbers), np.array(of, np.int16)
