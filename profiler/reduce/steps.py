"""Which spans of a device's time are its steady steps, and how that was found.

In this order: the ``Steps`` line, ``step_num`` annotations of the host, repeats of the dominant program. A step lasts
from its start to the next one's. Of a program's repeats the last counts too, to its own end: nobody marked a step, so
the time of all whole executions is what there is. Where nothing repeats, the whole recording, first to last op, is one
unit: "run".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiler.hlo import HloModule
from profiler.reduce.columns import sums_by
from profiler.reduce.gpu import is_copy
from profiler.results import Note
from profiler.trace import Marks, Timeline, Windows

# A first or last step with under this share of the usual number of ops was cut by the start or end of the recording.
WHOLE_SHARE = 0.9
MIN_MARKS = 2
STEPS_LINE, ANNOTATIONS, REPEATS = "Steps line", "step_num annotations", "repeats of the dominant program"


def drawn(steps: Marks | None) -> Windows | None:
    """The steps of a compiled profile: each is whole and lasts to its own end, so that one is enough; None for none."""
    if steps is None or not (steps.end_ps > steps.start_ps).any():
        return None
    keep = steps.end_ps > steps.start_ps
    spans = np.stack([steps.start_ps[keep], steps.end_ps[keep]], axis=1)
    return Windows(spans, STEPS_LINE, "step", _names(steps, spans))


def windows(
    timeline: Timeline,
    ops: pl.DataFrame,
    steps: Marks | None,
    annotations: Marks | None,
    modules: Marks | None,
    programs: Mapping[str, HloModule],
) -> tuple[Windows, list[Note]]:
    """The steady steps of one device.

    Args:
        timeline: its spans; must not be empty.
        ops: Trace.ops of the file.
        steps: its ``Steps`` line, if any.
        annotations: host annotations with a step number, if any.
        modules: its ``XLA Modules`` line, if any.
        programs: HLO modules by program id, for devices without a module line.
    """
    notes: list[Note] = []
    # Copies by the runtime come and go with what the host does; they do not tell a whole step from a cut one.
    computes = (ops["hlo"] | ~ops["op"].map_elements(is_copy, return_dtype=pl.Boolean)).to_numpy()
    work = np.sort(timeline.start_ps[timeline.counted & computes[timeline.op]])
    for marks, source in (
        (steps, STEPS_LINE),
        (annotations, ANNOTATIONS),
        (_dominant_module(modules), REPEATS),
        (None if modules else _executions(timeline, ops, programs), REPEATS),
    ):
        if marks is None:
            continue
        spans, dropped = _steady(marks, work, keep_last=source == REPEATS)
        if len(spans):
            if dropped:
                notes.append(Note("steps_dropped", dropped))
            return Windows(spans, source, "step", () if source == REPEATS else _names(marks, spans)), notes
    return whole_recording(timeline), notes


def _names(marks: Marks, spans: NDArray[np.int64]) -> tuple[str, ...]:
    """The names of the marks that begin the spans."""
    at = dict(zip(reversed(marks.start_ps.tolist()), reversed(marks.names), strict=True))
    return tuple(at[start] for start in spans[:, 0].tolist())


def whole_recording(timeline: Timeline) -> Windows:
    """One unit from the first to the last op of a device, never the host's window."""
    first = int(timeline.start_ps.min())
    last = int((timeline.start_ps + timeline.duration_ps).max())
    return Windows(np.array([[first, max(last, first)]], np.int64), "whole recording, first to last op", "run")


def _steady(marks: Marks, begins: NDArray[np.int64], *, keep_last: bool) -> tuple[NDArray[np.int64], str]:
    """Start-to-start spans of whole steps, and what was dropped; ``begins`` are the sorted starts of all ops.

    Without ``keep_last`` the last start only ends the step before it.
    """
    keep = marks.end_ps > marks.start_ps
    zero = int((~keep).sum())
    starts = np.unique(marks.start_ps[keep])
    if len(starts) < MIN_MARKS:
        return np.zeros((0, 2), np.int64), ""
    spans = np.stack([starts[:-1], starts[1:]], axis=1)
    if keep_last:
        last = int(marks.end_ps[keep][marks.start_ps[keep] == starts[-1]].max())
        spans = np.concatenate([spans, [[starts[-1], last]]])
    counts = np.searchsorted(begins, spans[:, 1]) - np.searchsorted(begins, spans[:, 0])
    busy = counts > 0
    if not busy.any():
        return np.zeros((0, 2), np.int64), ""
    usual = float(np.median(counts[busy]))
    whole = counts >= WHOLE_SHARE * usual
    edge = np.ones(len(spans), np.bool_)
    if len(spans) > 1:
        edge[1:-1] = False
    # Inside the recording a step with fewer ops is a different step, not a cut one; without any op it is none.
    kept = np.where(edge, whole, busy)
    cut = int((~kept).sum())
    reasons = [f"{zero} of zero length" if zero else "", f"{cut} cut or empty" if cut else ""]
    text = " and ".join(reason for reason in reasons if reason)
    return spans[kept], f"{text} left out of the steady steps" if text else ""


def _dominant_module(modules: Marks | None) -> Marks | None:
    """Executions of the program that takes the most time."""
    if modules is None or not len(modules.start_ps):
        return None
    codes = {name: code for code, name in enumerate(dict.fromkeys(modules.names))}
    code = np.array([codes[name] for name in modules.names])
    totals = np.zeros(len(codes), np.int64)
    np.add.at(totals, code, modules.end_ps - modules.start_ps)
    chosen = code == totals.argmax()
    return Marks(modules.start_ps[chosen], modules.end_ps[chosen], (list(codes)[totals.argmax()],) * int(chosen.sum()))


def _executions(timeline: Timeline, ops: pl.DataFrame, programs: Mapping[str, HloModule]) -> Marks | None:
    """Executions of the dominant program without a module line: by run id, else by an op that runs once in each."""
    program_of_op = ops["program_id"].to_list()
    codes = {name: code for code, name in enumerate(dict.fromkeys(program_of_op))}
    program = np.array([codes[name] for name in program_of_op], np.int64)[timeline.op]
    here = set(np.unique(program).tolist())
    time = {row[0]: row[1] for row in sums_by(program, timeline.duration_ps)}
    totals = {name: time[code] for name, code in codes.items() if name is not None and code in here}
    if not totals:
        return None
    dominant = max(totals, key=lambda name: totals[name])
    mine = program == codes[dominant]
    start, end = timeline.start_ps[mine], timeline.start_ps[mine] + timeline.duration_ps[mine]
    runs = timeline.run[mine]
    if (runs >= 0).all() and len(np.unique(runs)) >= MIN_MARKS:
        _, code = np.unique(runs, return_inverse=True)
        code = code.reshape(-1)
        first = np.full(code.max() + 1, np.iinfo(np.int64).max)
        last = np.full(code.max() + 1, np.iinfo(np.int64).min)
        np.minimum.at(first, code, start)
        np.maximum.at(last, code, end)
        order = np.argsort(first)
        return Marks(first[order], last[order], (dominant,) * len(first))
    return _anchored(start, end, timeline.op[mine], ops, programs.get(dominant), dominant)


def _anchored(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    op: NDArray[np.int32],
    ops: pl.DataFrame,
    module: HloModule | None,
    program_id: str,
) -> Marks | None:
    """Starts of an op of the entry computation that ran as often as most of them: the earliest such op.

    Without HLO an op may be of a loop's body: then take the ops that ran least often.
    """
    numbers, counts = np.unique(op, return_counts=True)
    names = ops["op"].to_list()
    if module is not None:
        computation = module.computations.get(module.entry)
        entry = {each.name for each in computation.instructions} if computation else set()
        inside = np.array([names[number] in entry for number in numbers])
        if inside.any():
            numbers, counts = numbers[inside], counts[inside]
    values, frequency = np.unique(counts, return_counts=True)
    usual = int(values[0] if module is None else values[np.argmax(frequency)])
    if usual < MIN_MARKS:
        return None
    candidates = numbers[counts == usual]
    anchor = min(candidates.tolist(), key=lambda number: int(start[op == number].min()))
    chosen = np.sort(start[op == anchor])
    ends = np.append(chosen[1:], end.max())
    return Marks(chosen, np.maximum(ends, chosen + 1), (program_id,) * len(chosen))
