"""Spans in flight of asynchronous ops whose device has no async line: from the start's begin to the done's end.

Collectives and host transfers only. The done of a prefetch within the device is mostly placed long after the copy has
ended, and what is idle between would be called exposed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from profiler.analysis import families
from profiler.reduce.catalog import Entry
from profiler.trace import Timeline

_START = re.compile(r"([-_])start(?=[.\-_]|$)")
_DONE = re.compile(r"[-_]done(?=[.\-_]|$)")
_OPERAND = re.compile(r"-done\(.*?%([\w.\-]+)")


def with_pairs(timeline: Timeline, entries: Sequence[Entry]) -> Timeline:
    """The timeline with a span in flight for each start that has a done and no span of its own on an async line."""
    present = np.unique(timeline.op).tolist()
    flying = set(np.unique(timeline.op[timeline.lane < 0]).tolist())
    by_name = {(entries[op].program_id, entries[op].op): op for op in present}
    starts, lengths, ops = [], [], []
    for done in present:
        start = _start_of(entries[done], by_name, entries)
        if start is None or start in flying or families.family(entries[start].facts) == "async copy":
            continue
        begin, end = _matched(timeline, start, done)
        starts.append(begin)
        lengths.append(end - begin)
        ops.append(np.full(len(begin), start, np.int32))
    if not ops:
        return timeline
    count = sum(map(len, ops))
    return replace(
        timeline,
        start_ps=np.concatenate([timeline.start_ps, *starts]),
        duration_ps=np.concatenate([timeline.duration_ps, *lengths]),
        op=np.concatenate([timeline.op, *ops]),
        lane=np.concatenate([timeline.lane, np.full(count, -1, np.int32)]),
        counted=np.concatenate([timeline.counted, np.zeros(count, np.bool_)]),
        run=np.concatenate([timeline.run, np.full(count, -1, np.int64)]),
    )


def _start_of(done: Entry, by_name: dict[tuple[str | None, str], int], entries: Sequence[Entry]) -> int | None:
    """The start that a done waits for: its operand, else the op of the same name."""
    if not _DONE.search(done.op):
        return None
    operand = _OPERAND.search(done.facts.hlo_text or "")
    named = by_name.get((done.program_id, operand[1])) if operand else None
    if named is not None and _START.search(entries[named].op):
        return named
    return by_name.get((done.program_id, _DONE.sub(lambda match: match[0].replace("done", "start"), done.op)))


def _matched(timeline: Timeline, start: int, done: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(begins, ends): each done with the earliest start before it that no other done has; the rest is left out."""
    own = timeline.lane >= 0
    begins = np.sort(timeline.start_ps[own & (timeline.op == start)])
    mine = own & (timeline.op == done)
    ends = np.sort(timeline.start_ps[mine] + timeline.duration_ps[mine])
    if len(begins) == len(ends) and (begins <= ends).all():
        return begins, ends
    # The k-th done has its start among the first ones only if more have begun than were taken.
    taken, pairs = 0, []
    for end in ends.tolist():
        if taken < len(begins) and begins[taken] <= end:
            pairs.append((taken, end))
            taken += 1
    return begins[: len(pairs)], np.array([end for _, end in pairs], np.int64)
