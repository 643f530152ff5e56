"""What ``profiler comm`` says, and the table "Communication and transfers" of a diff."""

from __future__ import annotations

from profiler.analysis.comm import INPUT
from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Line,
    Notes,
    Table,
    capped,
    delta,
    label,
    limit,
    name,
)
from profiler.report.summary_view import ESTIMATE, WORTH_SAYING
from profiler.report.wording import basis
from profiler.results import CommDeltaRow, CommReport, CommRow, Diff, WholeRecording

DEFAULT_ROWS = 20
DEFAULT_CHANGES = 10
SMALL = 0.0005  # of the step: shows as 0.0 %


def comm_document(report: CommReport, top: int | None = None) -> Document:
    """The report as blocks; ``top`` rows per table, None for the default, 0 for all."""
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Line(verdict(report), headline=True)]
    if report.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    blocks.append(Facts(comm_facts(report)))
    tables = [_split(report), _moved(report), *([_whole(report.whole)] if report.whole else [])]
    blocks += [table if rows is None else capped(table, rows, ALL_ROWS) for table in tables if table.rows]
    blocks.append(Notes("Warnings", report.warnings))
    return Document(f"profiler comm: {report.label}", tuple(blocks))


def verdict(report: CommReport) -> str:
    """What of the step is exposed, and what that is mostly."""
    total = next((row for row in report.totals if row.category is None), None)
    if total is None:
        return f"No communication and no transfers in the {report.unit}."
    share = units.percent(total.exposed_ps / report.step_ps if report.step_ps else None)
    text = (
        f"{units.duration(total.exposed_ps)} of the {report.unit} ({share}) is communication and transfers that no "
        "compute hides"
    )
    most = max(report.rows, key=lambda row: row.exposed_ps)
    if most.exposed_ps:
        text += f", mostly {_title(most)} ({units.duration(most.exposed_ps)})"
    return text + f"; {units.duration(total.hidden_ps)} is hidden."


def _title(row: CommRow | CommDeltaRow) -> str:
    return f"{row.kind} {row.where}" if row.category == "transfer" and row.where else row.kind


def _where(row: CommRow) -> str:
    if row.where or row.category == "transfer":
        return row.where or "–"
    return f"n/a (groups of {row.group_size})" if row.group_size else units.UNKNOWN


def comm_facts(report: CommReport) -> tuple[tuple[str, Cell], ...]:
    """File, devices, step, mesh and links."""
    kinds = ", ".join(dict.fromkeys(each.type or "unknown device" for each in report.devices))
    facts = [("file", name(report.file)), ("devices", label(f"{len(report.devices)} × {kinds}"))]
    busy = units.percent(report.busy_ps / report.step_ps if report.step_ps else None)
    facts.append((report.unit, label(f"{units.duration(report.step_ps)} per device, {busy} busy")))
    mesh = " × ".join(f"{axis} {size}" for axis, size in (report.mesh or {}).items())
    facts.append(("mesh", label(mesh or f"{units.UNKNOWN}: run info or --config with mesh names the axes")))
    link = (
        f"{units.number(report.link_bytes_per_s / 1e9)} GB/s one way, all of a {report.link_source}"
        if (report.link_bytes_per_s)
        else f"{units.UNKNOWN}: the chip is not known"
    )
    facts.append(("links", label(link)))
    return tuple(facts)


def _split(report: CommReport) -> Table:
    """Where the step goes, with communication and waiting by cause; sums to the step."""
    exposed = [row for row in report.totals if row.category is not None]
    idle = [(row.cause, row.time_ps) for row in report.waits if row.cause != INPUT]
    rows = [("compute", report.compute_ps)]
    rows += [(f"exposed {row.category}", row.exposed_ps) for row in exposed]
    scale = units.time_scale(time for _, time in [*rows, *idle])
    widest = max((time for _, time in [*rows, *idle]), default=0.0) or 1.0
    step = report.step_ps or 1.0
    return Table(
        f"Where the {report.unit} goes",
        (Column("", numeric=False), Column(_estimated(report, scale.unit)), Column("share"),
         Column("", numeric=False, bar=True)),
        tuple(
            (label(title), label(scale.show(time)), label(units.percent(time / step)), label(str(time / widest)))
            for title, time in [*rows, *idle]
        ),
        total=(
            label("sum", STRONG),
            label(scale.show(sum(time for _, time in [*rows, *idle])), STRONG),
            label(units.percent(sum(time for _, time in [*rows, *idle]) / step), STRONG),
            label("0"),
        ),
        caption=_input(report),
    )  # fmt: skip


def _input(report: CommReport) -> str | None:
    waits = [row for row in report.waits if row.cause == INPUT]
    return f"of the transfers, {units.duration(waits[0].time_ps)} is waiting for input (infeed)" if waits else None


def _estimated(report: CommReport, title: str) -> str:
    return f"{title} (est.)" if report.kind == "compiled" else title


def _moved(report: CommReport) -> Table:
    scale = units.time_scale(row.in_flight_ps for row in report.rows)
    size = units.byte_scale(row.bytes_per_step for row in report.rows)
    shown = [row for row in report.rows if row.in_flight_ps >= SMALL * report.step_ps] or list(report.rows)
    hidden = len(report.rows) - len(shown)
    return Table(
        "Communication and transfers",
        (
            *(Column(title, numeric=False) for title in ("kind", "axis / way")),
            Column("calls"),
            *(Column(_estimated(report, title)) for title in (f"in flight {scale.unit}", "exposed", "hidden")),
            Column(size.unit),
            Column("GB/s"),
            Column("of links", minor=True),
        ),
        tuple(
            (
                label(row.kind),
                label(_where(row), DIM),
                label(units.number(row.calls_per_step)),
                *(label(scale.show(time)) for time in (row.in_flight_ps, row.exposed_ps, row.hidden_ps)),
                label(size.show(row.bytes_per_step)),
                label(units.number(row.bytes_per_s / 1e9 if row.bytes_per_s is not None else None)),
                label(units.percent(row.link_fraction, 0) if row.category == "communication" else "–"),
            )
            for row in shown
        ),
        total=_totals(report, scale),
        caption=f"per device and {report.unit}; exposed: no compute runs; hidden: the rest of the time in flight; "
        "bytes: what a device sends (collectives) or moves; the total counts a moment once",
        more=f"{hidden} smaller (--format json has all)" if hidden else None,
    )


def _totals(report: CommReport, scale: units.Scale) -> tuple[Cell, ...] | None:
    both = next((row for row in report.totals if row.category is None), None)
    if both is None:
        return None
    times = (both.in_flight_ps, both.exposed_ps, both.hidden_ps)
    return (label("any of them", STRONG), label(""), label(""), *(label(scale.show(time), STRONG) for time in times),
            *(label("") for _ in range(3)))  # fmt: skip


def _whole(whole: WholeRecording) -> Table:
    scale = units.time_scale((whole.length_ps,))
    return Table(
        "The whole recording",
        (
            Column("exposed", numeric=False),
            Column(scale.unit),
            Column("of the recording"),
            Column("of busy time"),
        ),
        tuple(
            (
                label(row.kind),
                label(scale.show(row.time_ps)),
                label(units.percent(row.fraction)),
                label(units.percent(row.busy_fraction)),
            )
            for row in whole.rows
            if row.fraction >= SMALL
        ),
        caption=f"{units.duration(whole.length_ps)} per device from the first to the last op, "
        f"{units.percent(whole.busy_ps / whole.length_ps if whole.length_ps else None)} of it busy",
    )


# --- in a diff --------------------------------------------------------------------------------------------------------


def comm_blocks(diff: Diff, top: int | None) -> list[Block]:
    """The table of a diff, and what either side mostly waits for; nothing where neither side moves anything."""
    if diff.communication is None or not diff.communication.rows:
        return []
    most = limit(top, DEFAULT_CHANGES)
    table = _changes(diff)
    lines: list[Block] = []
    for side, summary in (("baseline", diff.baseline), ("optimized", diff.optimized)):
        row = summary.whole.rows[0] if summary.whole and summary.whole.rows else None
        if row is not None and row.fraction >= 4 * WORTH_SAYING:
            lines.append(
                Line(
                    f"The {side} recording mostly waits for {row.kind}: {units.percent(row.fraction)} of all of it, "
                    f"{units.percent(row.busy_fraction)} of busy time.",
                    BAD,
                )
            )
    return [table if most is None else capped(table, most, ALL_ROWS), *lines]


def _changes(diff: Diff) -> Table:
    found = diff.communication
    rows = found.rows if found is not None else ()
    pairs = [
        (
            row,
            (row.baseline_in_flight_ps, row.optimized_in_flight_ps),
            (row.baseline_exposed_ps, row.optimized_exposed_ps),
            (row.baseline_hidden_ps, row.optimized_hidden_ps),
        )
        for row in rows
    ]
    small = SMALL * max(diff.delta.baseline_time_ps, diff.delta.optimized_time_ps)
    shown = [pair for pair in pairs if max(time or 0.0 for time in pair[1]) >= small]
    scale = units.time_scale(time for _, total, *_ in pairs for time in total)
    sums = [sum(exposed[side] or 0.0 for _, _, exposed, _ in pairs) for side in (0, 1)]

    def both(pair: tuple[float | None, float | None]) -> Cell:
        texts = [scale.show(time or 0.0) for time in pair]
        return label(texts[0] if texts[0] == texts[1] else " → ".join(texts))

    def change(pair: tuple[float | None, float | None]) -> Cell:
        value = (pair[1] or 0.0) - (pair[0] or 0.0)
        return delta(scale.delta(value), value)

    return Table(
        "Communication and transfers",
        (
            *(Column(title, numeric=False) for title in ("kind", "axis / way")),
            Column(f"in flight {scale.unit}"),
            Column(f"exposed {scale.unit}"),
            Column(f"Δ exposed {scale.unit}"),
            Column(f"hidden {scale.unit}"),
        ),
        tuple(
            (
                label(row.kind),
                label(row.where or ("–" if row.category == "transfer" else units.UNKNOWN), DIM),
                both(total),
                both(exposed),
                change(exposed),
                both(hidden),
            )
            for row, total, exposed, hidden in shown
        ),
        total=(
            label("sum of exposed", STRONG),
            label(""),
            label(""),
            both((sums[0], sums[1])),
            change((sums[0], sums[1])),
            label(""),
        ),
        caption=f"{basis(diff)}; what is exposed is what the split above calls exposed",
        more=f"{len(pairs) - len(shown)} smaller, in the sum" if len(shown) < len(pairs) else None,
    )
