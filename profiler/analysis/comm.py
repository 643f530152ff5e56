"""Communication, transfers and waiting: in flight, exposed and hidden, per kind and mesh axis or direction.

Exposed time is that of the sweep (profiler.analysis.times), so that it sums to what a diff calls exposed. Time in
flight is the union of the spans over all lines of a device. Where several are in flight and nothing computes, the sweep
divides the moment between them; what is left of a row's time in flight is called hidden.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from profiler import hardware
from profiler.analysis.commfacts import Moved, mesh_of, moved
from profiler.analysis.times import StepTimes, step_times
from profiler.reduce.steps import REPEATS
from profiler.reduce.sweep import CATEGORIES
from profiler.results import (
    CommDelta,
    CommDeltaRow,
    CommReport,
    CommRow,
    CommTotal,
    Note,
    WaitRow,
    WholeRecording,
    WholeRow,
)
from profiler.trace import Marks, Timeline, Trace

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

Key = tuple[str, str, str | None]  # category, kind, axis or direction
Spans = NDArray[np.int64]  # (n, 2), [start, end) in ps, sorted and disjoint

KINDS = ("communication", "transfer")
TOO_FAST = 1.1
HOST_GAP_PS = 1_000_000_000  # no launch takes a millisecond: a longer gap between programs is the host's
INPUT, OTHER_WAIT, HOST = "waiting for input (infeed)", "waiting for other ops", "waiting for the host"
BETWEEN, WITHIN, UNKNOWN = "launch gaps between programs", "gaps within a program", "idle, cause not known"


def report(measured: Measured) -> CommReport:
    """Everything that one recording says about communication, transfers and waiting."""
    trace, times, summary = measured.trace, measured.times, measured.summary
    facts = moved(trace)
    link, source = link_rate(trace)
    rows, totals = _rows(trace, times, facts, link)
    compute = float(times.ops.filter(times.ops["category"] == "compute")["time_ps"].sum())
    return CommReport(
        file=summary.file,
        label=summary.label,
        kind=summary.kind,
        devices=summary.devices,
        unit=times.unit,
        step_ps=times.step_ps,
        busy_ps=times.step_ps - times.idle_ps,
        compute_ps=compute,
        rows=rows,
        totals=totals,
        waits=_waits(trace, times, facts),
        whole=summary.whole,
        link_bytes_per_s=link,
        link_source=source,
        mesh=mesh_of(trace) or None,
        warnings=(*summary.warnings, *_too_fast(rows, trace)),
    )


def _too_fast(rows: Iterable[CommRow], trace: Trace) -> list[Note]:
    """Rates that no link has. Devices of one chip send each other more than its links see."""
    chip = _chip(trace)
    limit = TOO_FAST * chip.devices_per_chip if chip else None
    found = [row for row in rows if limit and row.link_fraction and row.link_fraction > limit]
    return [
        Note(
            "faster_than_links",
            f"{row.kind} ({row.where or 'axis n/a'}) at {row.link_fraction:.1f} times what the chip's links can send: "
            f"its {'estimated ' if trace.kind == 'compiled' else ''}time in flight is too short for its bytes",
        )
        for row in found
    ]


def whole(trace: Trace, times: StepTimes | None = None) -> WholeRecording | None:
    """What is exposed over the whole recording, gaps between programs included; None for a compiled profile."""
    if trace.kind == "compiled":
        return None
    times = times if times is not None and times.unit == "run" else step_times(trace, whole=True)
    busy = times.step_ps - times.idle_ps
    table = times.ops.join(trace.ops.select("op_id", "family"), on="op_id", how="left", maintain_order="left")
    amounts: dict[tuple[str, str], float] = defaultdict(float)
    for category, family, time in table.select("category", "family", "time_ps").iter_rows():
        if category != "compute":
            amounts[category, family] += time
    rows = (
        WholeRow(category, family, time, time / times.step_ps, time / busy)
        for (category, family), time in amounts.items()
        if time and busy
    )
    return WholeRecording(times.step_ps, busy, tuple(sorted(rows, key=lambda row: (-row.time_ps, row.kind))))


def delta(baseline: Measured, optimized: Measured, scale: float) -> CommDelta:
    """Both sides' rows; the optimized side's times are for the work of one baseline step (``scale``)."""
    sides = []
    for measured, factor in ((baseline, 1.0), (optimized, scale)):
        rows, _ = _rows(measured.trace, measured.times, moved(measured.trace), None)
        sides.append({(row.category, row.kind, row.where): (row, factor) for row in rows})

    def value(side: int, key: Key, name: str) -> float | None:
        row, factor = sides[side].get(key, (None, 1.0))
        return None if row is None else getattr(row, name) * (1.0 if name == "calls_per_step" else factor)

    names = ("calls_per_step", "in_flight_ps", "exposed_ps", "hidden_ps")
    found = [
        CommDeltaRow(*key, *(value(side, key, name) for name in names for side in (0, 1)))
        for key in dict.fromkeys([*sides[0], *sides[1]])
    ]
    found.sort(key=lambda row: -max(row.baseline_in_flight_ps or 0.0, row.optimized_in_flight_ps or 0.0))
    return CommDelta(tuple(found))


def link_rate(trace: Trace) -> tuple[float | None, str | None]:
    """Bytes per second that all links of a chip together can send, and the chip; None where it is not known."""
    chip = _chip(trace)
    if chip is None:
        return None, None
    one_way = chip.chip_interconnect_gb_per_s / (2 if chip.interconnect == "both ways" else 1)
    return one_way * 1e9, chip.name


def _chip(trace: Trace) -> hardware.Chip | None:
    chips = {
        hardware.identify_tpu(each.type) if each.platform == "tpu" else hardware.by_name(each.type)
        for each in trace.devices
    }
    return chips.pop() if len(chips) == 1 else None


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(
    trace: Trace, times: StepTimes, facts: Mapping[int, Moved], link: float | None
) -> tuple[tuple[CommRow, ...], tuple[CommTotal, ...]]:
    families, ranks = trace.ops["family"].to_list(), trace.ops["rank"].to_list()

    def key(op: int, category: str | None = None) -> Key:
        return category or CATEGORIES[ranks[op]], families[op], facts[op].where if op in facts else None

    exposed: dict[Key, float] = defaultdict(float)
    calls: dict[Key, float] = defaultdict(float)
    size: dict[Key, float | None] = defaultdict(float)
    sizes: dict[Key, set[int | None]] = defaultdict(set)
    for op, category, time, count in times.ops.select("op_id", "category", "time_ps", "calls").iter_rows():
        if category not in KINDS:
            continue
        row = key(op, category)
        exposed[row] += time
        fact = facts.get(op)
        if fact is None or fact.half or not count:
            continue
        calls[row] += count
        sizes[row].add(fact.members)
        known = size[row]
        size[row] = None if known is None or fact.bytes is None else known + fact.bytes * count
    flying = _in_flight(trace, times, lambda op: key(op) if op in facts else ("transfer", families[op], None))
    lines = [timeline.op[timeline.lane < 0] for timeline in trace.timelines]
    seen = {key(op) for op in np.unique(np.concatenate(lines)).tolist() if op in facts} if lines else set()
    rows = []
    for row in dict.fromkeys([*exposed, *flying]):
        if not row[1] or not (calls[row] or exposed[row] or flying.get(row)):
            continue  # a total, or what no step has
        span = max(flying.get(row, 0.0), exposed[row])  # equal but for rounding where nothing is hidden
        amount = size[row] if calls[row] else None
        timed = row[1] != "async copy" or row in seen  # else only its start and done are known, not what lies between
        rate = amount / span * 1e12 if amount and span and timed else None
        share = rate / link if rate and link and row[0] == "communication" else None
        members = sizes[row].pop() if len(sizes[row]) == 1 else None
        rows.append(CommRow(*row, members, calls[row], amount, span, exposed[row], span - exposed[row], rate, share))
    totals = []
    for category in (*KINDS, None):
        shown = sum(time for row, time in exposed.items() if category in (None, row[0]))
        span = max(flying.get((category or "", "", None), 0.0), shown)
        if span:
            totals.append(CommTotal(category, span, shown, span - shown))
    return tuple(sorted(rows, key=lambda row: (-row.in_flight_ps, row.kind, row.where or ""))), tuple(totals)


ALL: Key = ("", "", None)


def _in_flight(trace: Trace, times: StepTimes, key: Any) -> dict[Key, float]:
    """Time in flight per row, per category (category, "", None), and of all together: mean per device and step."""
    total: dict[Key, float] = defaultdict(float)
    rank = trace.ops["rank"].to_numpy()
    for index, windows in times.spans.items():
        timeline = trace.timelines[index]
        moves = np.flatnonzero((timeline.lane < 0) | np.isin(rank[timeline.op], (1, 2)))
        keys = {op: key(op) for op in np.unique(timeline.op[moves]).tolist()}
        codes = {row: code for code, row in enumerate(dict.fromkeys(keys.values()))}
        code = np.zeros(len(rank), np.int64)
        code[list(keys)] = [codes[row] for row in keys.values()]
        of = code[timeline.op[moves]]
        category = {row: row[0] for row in codes}
        for row, number in codes.items():
            total[row] += _covered(timeline, moves[of == number], windows) / len(windows)
        for each in dict.fromkeys(category.values()):
            members = [codes[row] for row in codes if row[0] == each]
            total[each, "", None] += _covered(timeline, moves[np.isin(of, members)], windows) / len(windows)
        total[ALL] += _covered(timeline, moves, windows) / len(windows)
    return {row: time / len(times.spans) for row, time in total.items()}


def _covered(timeline: Timeline, chosen: NDArray[np.intp], windows: Spans) -> float:
    """How much of the windows some of the spans cover, ps."""
    start = timeline.start_ps[chosen]
    return _within(union(start, start + timeline.duration_ps[chosen]), windows)


def union(start: NDArray[np.int64], end: NDArray[np.int64]) -> Spans:
    """Spans merged where they touch or overlap."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    last = np.append(first[1:], True)
    return np.stack([start[first], reach[last]], axis=1)


def _within(spans: Spans, windows: Spans) -> float:
    """Length of the spans inside the windows."""
    if not len(spans):
        return 0.0
    before = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])

    def until(time: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.searchsorted(spans[:, 0], time, side="right")
        inside = np.maximum(place - 1, 0)
        over = np.where(place > 0, np.maximum(spans[inside, 1] - time, 0), 0)
        return before[place] - over

    return float((until(windows[:, 1]) - until(windows[:, 0])).sum())


# --- waiting ----------------------------------------------------------------------------------------------------------


def _waits(trace: Trace, times: StepTimes, facts: Mapping[int, Moved]) -> tuple[WaitRow, ...]:
    """Waiting and idle time by cause; idle causes sum to the idle time of the step."""
    amounts: dict[str, float] = defaultdict(float)
    for op, category, time in times.ops.select("op_id", "category", "time_ps").iter_rows():
        if category == "wait":
            amounts[OTHER_WAIT] += time
        elif category == "transfer" and op in facts and facts[op].where == "infeed":
            amounts[INPUT] += time
    if times.idle_ps:
        for index, windows in times.spans.items():
            modules = trace.modules[index] if index < len(trace.modules) else None
            for cause, time in _idle(trace, index, windows, modules):
                amounts[cause] += time / len(windows) / len(times.spans)
    step = times.step_ps or 1.0
    ordered = sorted((cause for cause in amounts if amounts[cause] > 0), key=lambda cause: -amounts[cause])
    return tuple(WaitRow(cause, amounts[cause], amounts[cause] / step) for cause in ordered)


def _idle(trace: Trace, index: int, windows: Spans, modules: Marks | None) -> Iterable[tuple[str, float]]:
    """(cause, ps) of the time in which nothing runs on a device."""
    timeline = trace.timelines[index]
    gaps = _gaps(union(timeline.start_ps, timeline.start_ps + timeline.duration_ps), windows)
    if not len(gaps):
        return
    length = (gaps[:, 1] - gaps[:, 0]).astype(np.float64)
    if modules is not None:
        # A gap that a program's execution covers lies within it, else between two.
        runs = union(modules.start_ps, modules.end_ps)
        place = np.searchsorted(runs[:, 0], gaps[:, 0], side="right") - 1
        within = (place >= 0) & (gaps[:, 1] <= runs[np.maximum(place, 0), 1]) if len(runs) else place >= 0
        known = np.ones(len(gaps), np.bool_)
    else:
        within, known = _by_runs(trace, timeline, gaps)
        if trace.windows[index].source.startswith(REPEATS):  # a window begins with an execution, and a gap ends there
            edge = np.isin(gaps[:, 1], windows[:, 1]) | np.isin(gaps[:, 0], windows[:, 0])
            within, known = within & ~edge, known | edge
    between = known & ~within
    late = between & (length >= HOST_GAP_PS)
    yield WITHIN, float(length[known & within].sum())
    yield HOST, float(length[late].sum())
    yield BETWEEN, float(length[between & ~late].sum())
    yield UNKNOWN, float(length[~known].sum())


def _by_runs(trace: Trace, timeline: Timeline, gaps: Spans) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(within a program, known) per gap, by the execution that the ops around it belong to."""
    end = timeline.start_ps + timeline.duration_ps
    ends, starts = np.argsort(end, kind="stable"), np.argsort(timeline.start_ps, kind="stable")
    before = np.searchsorted(end[ends], gaps[:, 0], side="right") - 1
    after = np.searchsorted(timeline.start_ps[starts], gaps[:, 1], side="left")
    has_both = (before >= 0) & (after < len(starts))
    one = ends[np.maximum(before, 0)]
    other = starts[np.minimum(after, len(starts) - 1)]
    names = trace.ops["program_id"].to_list()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    program = np.array([numbers[name] if name is not None else -1 for name in names], np.int64)[timeline.op]
    run = timeline.run
    told = (program[one] >= 0) & (program[other] >= 0)
    same = program[one] == program[other]
    runs = (run[one] >= 0) & (run[other] >= 0)
    known = has_both & told & (~same | runs)
    return same & (run[one] == run[other]), known


def _gaps(busy: Spans, windows: Spans) -> Spans:
    """The parts of the windows that no busy span covers."""
    found = []
    for begin, end in windows.tolist():
        low, high = np.searchsorted(busy[:, 1], begin, side="right"), np.searchsorted(busy[:, 0], end, side="left")
        inside = busy[low:high]
        starts = np.append(begin, np.maximum(inside[:, 1], begin))
        ends = np.append(np.minimum(inside[:, 0], end), end)
        keep = ends > starts
        found.append(np.stack([starts[keep], ends[keep]], axis=1))
    return np.concatenate(found) if found else np.zeros((0, 2), np.int64)
