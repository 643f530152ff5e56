"""Communication and waiting of two recordings beside each other: what a diff does not split, per step of each side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from profiler.analysis.comm import INPUT
from profiler.report import diff_tables, units
from profiler.report.comm_view import SMALL, comm_facts
from profiler.report.model import DIM, STRONG, Cell, Column, Table, label
from profiler.report.wording import basis
from profiler.results import CommDeltaRow, CommReport, CommRow, Contribution, Diff

MOVED = ("communication", "transfer")
MOST_PARTS = 8
Row = TypeVar("Row")


def verdict(diff: Diff) -> str | None:
    """How much of the compared work is exposed on both sides, and which kind changed most; None where nothing moves."""
    rows = diff.communication.rows if diff.communication else ()
    if not rows:
        return None
    base, opt = (sum(times) for times in zip(*map(_exposed, rows), strict=True))
    scale = units.time_scale((base, opt))
    est = ", est." if "compiled" in (diff.baseline.kind, diff.optimized.kind) else ""
    change = f"{scale.delta(opt - base)} {scale.unit}" if opt != base else "no change"
    text = f"Exposed communication and transfers: {units.duration(base)} → {units.duration(opt)} ({change}{est})"
    most = max(rows, key=lambda row: abs(_exposed(row)[1] - _exposed(row)[0]))
    before, after = _exposed(most)
    if before != after:
        name = " ".join(filter(None, (most.kind, most.where)))
        text += f", most of all {name} ({scale.delta(after - before)} {scale.unit})"
    return f"{text}, {basis(diff)}."


def _exposed(row: CommDeltaRow) -> tuple[float, float]:
    return row.baseline_exposed_ps or 0.0, row.optimized_exposed_ps or 0.0


def facts(base: CommReport, opt: CommReport) -> list[tuple[str, str, str]]:
    """(what it is, the baseline's, the optimized side's): the step, the mesh, the links."""
    both = [{title: cell.text for title, cell in comm_facts(report) if title != "file"} for report in (base, opt)]
    return [(title, both[0].get(title, "–"), both[1].get(title, "–")) for title in dict.fromkeys([*both[0], *both[1]])]


def bandwidth_table(base: CommReport, opt: CommReport) -> Table:
    """Bytes, bandwidth and the share of the links of every kind on both sides."""
    rows = _beside(base.rows, opt.rows, lambda row: (row.category, row.kind, row.where, row.group_size))
    rows.sort(key=lambda pair: -max(row.in_flight_ps for row in pair if row))
    size = units.byte_scale(row.bytes_per_step for pair in rows for row in pair if row)
    links = any(row.link_fraction is not None for pair in rows for row in pair if row)

    def both(pair: Sequence[CommRow | None], show: Callable[[CommRow], str]) -> tuple[str, ...]:
        return tuple(show(row) if row else "–" for row in pair)

    return Table(
        "Calls, bytes and bandwidth",
        (
            Column("kind", numeric=False),
            Column("axis / way", numeric=False),
            Column("devices"),
            *_columns("calls", base, opt),
            *_columns(size.unit, base, opt),
            *_columns("GB/s", base, opt, timed=True),
            *(_columns("of links", base, opt, timed=True) if links else ()),
        ),
        tuple(
            (
                label(first.kind),
                label(first.where or ("–" if first.category == "transfer" else units.UNKNOWN), DIM),
                label(units.number(first.group_size) if first.group_size else "–", DIM),
                *map(label, both(pair, lambda row: units.number(row.calls_per_step))),
                *map(label, both(pair, lambda row: size.show(row.bytes_per_step))),
                *map(label, both(pair, _gb_per_s)),
                *(map(label, both(pair, _of_links)) if links else ()),
            )
            for pair in rows
            if (first := pair[0] or pair[1])
        ),
        caption=f"per device and {base.unit} of each side, not scaled to equal work; bytes: what a device sends "
        "(collectives) or moves; GB/s: over the time in flight; devices: in a group",
    )


def _gb_per_s(row: CommRow) -> str:
    return units.number(row.bytes_per_s / 1e9 if row.bytes_per_s is not None else None)


def _of_links(row: CommRow) -> str:
    return units.percent(row.link_fraction, 0) if row.category == "communication" else "–"


def split_table(base: CommReport, opt: CommReport) -> Table:
    """Where a step of each side goes, with waiting by its cause; either column sums to the step."""
    both = [_split(report) for report in (base, opt)]
    titles = list(dict.fromkeys([*both[0], *both[1]]))
    scale = units.time_scale((base.step_ps, opt.step_ps))
    steps = (base.step_ps, opt.step_ps)

    def cells(times: Iterable[float | None], tone: str = "") -> tuple[Cell, ...]:
        found = list(times)
        shares = [time / step if time is not None and step else None for time, step in zip(found, steps, strict=True)]
        return (
            *(label(scale.show(time) if time is not None else "–", tone) for time in found),
            *(label(units.percent(share) if share is not None else "–", tone) for share in shares),
        )

    return Table(
        f"Where the {base.unit} goes",
        (
            Column("", numeric=False),
            *_columns(scale.unit, base, opt, timed=True),
            *_columns("share", base, opt, timed=True),
        ),
        tuple((label(title), *cells(part.get(title) for part in both)) for title in titles),
        total=(label("sum", STRONG), *cells((sum(part.values()) for part in both), STRONG)),
        caption=_input(base, opt),
    )


def _split(report: CommReport) -> dict[str, float]:
    return {
        "compute": report.compute_ps,
        **{f"exposed {row.category}": row.exposed_ps for row in report.totals if row.category is not None},
        **{row.cause: row.time_ps for row in report.waits if row.cause != INPUT},
    }


def _input(base: CommReport, opt: CommReport) -> str:
    waiting = [
        f"{units.duration(row.time_ps)} ({title})"
        for title, report in (("baseline", base), ("optimized", opt))
        for row in report.waits
        if row.cause == INPUT
    ]
    words = f"per device and {base.unit} of each side, not scaled to equal work"
    return words + (f"; of the transfers, waiting for input (infeed): {', '.join(waiting)}" if waiting else "")


def whole_table(base: CommReport, opt: CommReport) -> Table | None:
    """Exposed time over all of both recordings, gaps between programs included; None where neither has any to show."""
    rows = [report.whole.rows if report.whole else () for report in (base, opt)]
    pairs = [
        pair
        for pair in _beside(rows[0], rows[1], lambda row: (row.category, row.kind))
        if max(row.fraction for row in pair if row) >= SMALL
    ]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: -max(row.time_ps for row in pair if row))
    scale = units.time_scale(row.time_ps for pair in pairs for row in pair if row)
    lengths = ", ".join(
        f"{title} {units.duration(report.whole.length_ps)}, "
        f"{units.percent(report.whole.busy_ps / report.whole.length_ps if report.whole.length_ps else None)} busy"
        for title, report in (("baseline", base), ("optimized", opt))
        if report.whole
    )
    return Table(
        "The whole recording",
        (
            Column("exposed", numeric=False),
            *_columns(scale.unit, base, opt),
            *_columns("of it", base, opt),
            *_columns("of busy", base, opt),
        ),
        tuple(
            (
                label(first.kind),
                *(label(scale.show(row.time_ps) if row else "–") for row in pair),
                *(label(units.percent(row.fraction) if row else "–") for row in pair),
                *(label(units.percent(row.busy_fraction) if row else "–") for row in pair),
            )
            for pair in pairs
            if (first := pair[0] or pair[1])
        ),
        caption=f"per device from the first to the last op, between programs too: {lengths}",
    )


def contributions_table(diff: Diff) -> Table | None:
    """The parts of the change that are exposed communication and transfers; None where there are none."""

    def moved(item: Contribution) -> bool:
        return item.category in MOVED and bool(item.baseline_time_ps or item.optimized_time_ps)

    parts = tuple(filter(moved, diff.contributions))
    if not parts:
        return None
    table = diff_tables.contributions_table(replace(diff, contributions=parts), MOST_PARTS)
    total = (label("sum of these", STRONG), *table.total[1:]) if table.total else None
    _, *noise = (table.caption or "").partition("; ~")
    return replace(
        table,
        title="What that is of the change",
        total=total,
        caption=f"exclusive time {basis(diff)}; some of the parts that sum to the whole change{''.join(noise)}",
    )


def _columns(title: str, base: CommReport, opt: CommReport, *, timed: bool = False) -> tuple[Column, Column]:
    """Two columns; those of times say where a side is estimated."""
    left, right = (
        Column(f"{side} {title}" + (" (est.)" if timed and report.kind == "compiled" else ""))
        for side, report in (("base", base), ("opt", opt))
    )
    return left, right


def _beside(
    base: Sequence[Row], opt: Sequence[Row], key: Callable[[Row], object]
) -> list[tuple[Row | None, Row | None]]:
    """Rows of both sides with equal keys, in the order in which they are first met."""
    found = [{key(row): row for row in rows} for rows in (base, opt)]
    return [(found[0].get(each), found[1].get(each)) for each in dict.fromkeys([*found[0], *found[1]])]
