"""What ``profiler ladder`` says: the runs, what each rung is made of, and its knobs."""

from __future__ import annotations

from profiler.report import units
from profiler.report.knobs_view import change_text
from profiler.report.model import (
    BAD,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Items,
    Line,
    Notes,
    Table,
    delta,
    label,
    limit,
    name,
)
from profiler.report.summary_view import ESTIMATE
from profiler.report.wording import EQUAL_WORK
from profiler.results import Delta, Ladder, LadderRow, Rung, Summary

DEFAULT_ROWS = 15
MOST_FINDINGS = 2


def ladder_document(ladder: Ladder, top: int | None = None) -> Document:
    """The ladder as blocks.

    Args:
        ladder: runs in order.
        top: rows per table; None for the default, 0 for all.
    """
    blocks: list[Block] = [Line(ladder.verdict, headline=True)]
    if not ladder.comparable:
        blocks.append(Line("Not comparable; compared all the same, as --force asks.", BAD))
    if any(run.kind == "compiled" for run in ladder.runs):
        blocks.append(Line(f"Runs are {ESTIMATE}.", BAD))
    blocks.append(Notes("Comparability", ladder.warnings))
    blocks.append(Facts(tuple((str(i), name(_run_text(run))) for i, run in enumerate(ladder.runs, 1))))
    blocks.append(runs_table(ladder))
    blocks.append(rungs_table(ladder, limit(top, DEFAULT_ROWS)))
    blocks.append(rung_items(ladder, top == 0))
    return Document("profiler ladder", tuple(blocks))


def _run_text(run: Summary) -> str:
    return run.file if run.label in ("", run.file) else f"{run.label} ({run.file})"


def runs_table(ladder: Ladder) -> Table:
    """Every run: its step, the time for equal work, MFU, and the change against the one before and the first."""
    work = EQUAL_WORK.get(ladder.normalization)
    steps = [run.steps.mean_ps for run in ladder.runs]
    equal = [ladder.delta.baseline_time_ps, *(rung.from_first.optimized_time_ps for rung in ladder.rungs)]
    own, shared = units.time_scale(steps), units.time_scale(equal)
    rows = []
    for index, run in enumerate(ladder.runs):
        rung = ladder.rungs[index - 1] if index else None
        peak = run.memory.static_peak_bytes
        cells = [
            label(str(index + 1)),
            name(run.label or run.file),
            label(own.show(steps[index])),
            *([label(shared.show(equal[index]))] if work else []),
            label(units.percent(run.mfu, 2), STRONG),
            _change(rung.delta) if rung else label(""),
            _change(rung.from_first) if rung else label(""),
            label(units.size(peak) if peak is not None else units.UNKNOWN),
        ]
        rows.append(tuple(cells))
    unit = ladder.runs[0].steps.unit
    return Table(
        "Runs",
        (
            Column("", numeric=False),
            Column("run", numeric=False),
            Column(f"{unit} {own.unit}"),
            *([Column(f"equal work {shared.unit}")] if work else []),
            Column("MFU"),
            Column("to the one before"),
            Column("to the first"),
            Column("HBM peak"),
        ),
        tuple(rows),
        caption=(f"equal work: for the {work} of one {unit} of the first run; " if work else "")
        + "~: within the noise",
    )


def _change(change: Delta) -> Cell:
    """Points where MFU is known, else the time for equal work; "~" where it is no more than noise."""
    noise = "~ " if change.significant is False else ""
    if change.mfu_points is not None:
        cell = delta(units.points(change.mfu_points), change.mfu_points, lower_is_better=False)
        return Cell(f"{noise}{cell.text} points", "" if noise else cell.tone)
    ratio = change.optimized_time_ps / change.baseline_time_ps if change.baseline_time_ps else None
    cell = delta(units.change(ratio), None if ratio is None else ratio - 1)
    return Cell(noise + cell.text, "" if noise else cell.tone)


def rungs_table(ladder: Ladder, rows: int | None) -> Table:
    """Categories by rung; every column sums to its rung's change, and the last one to the whole."""
    points = all(row.mfu_points is not None for row in ladder.rows) and ladder.delta.mfu_points is not None
    scale = units.time_scale(value for row in ladder.rows for value in (*row.time_ps, row.total_time_ps))

    def values(row: LadderRow) -> list[float]:
        known = row.mfu_points if points and row.mfu_points is not None else row.time_ps
        total = row.total_mfu_points if points else row.total_time_ps
        return [*known, total or 0.0]

    def cells(title: str, numbers: list[float], tone: str = "") -> tuple[Cell, ...]:
        shown = (
            delta(units.points(value), value, lower_is_better=False) if points else delta(scale.delta(value), value)
            for value in numbers
        )
        return label(title, tone), *shown

    def summed(some: tuple[LadderRow, ...]) -> list[float]:
        return [sum(column) for column in zip(*(values(row) for row in some), strict=True)]

    present = tuple(row for row in ladder.rows if any(values(row)))
    shown, hidden = present[:rows], present[rows:] if rows is not None else ()
    body = [cells(f"{row.family} · {row.phase}" if row.phase else row.family, values(row)) for row in shown]
    if hidden:
        body.append(cells(f"{len(hidden)} smaller", summed(hidden), DIM))
    unit = ladder.runs[0].steps.unit
    basis = EQUAL_WORK.get(ladder.normalization)
    per = f"for the {basis} of one {unit} of the first run" if basis else f"and {unit}"
    return Table(
        f"What the rungs are made of, in {'MFU points' if points else scale.unit}",
        (
            Column("family · phase", numeric=False),
            *(Column(f"{i} → {i + 1}") for i in range(1, len(ladder.rungs) + 1)),
            Column("sum"),
        ),
        tuple(body),
        total=cells("sum = delta", summed(present), STRONG) if present else None,
        caption=f"exclusive time per device {per}; the rungs sum to the change from first to last exactly",
    )


def rung_items(ladder: Ladder, everything: bool) -> Items:
    """The knobs and the largest findings of every rung."""
    items = []
    for number, rung in enumerate(ladder.rungs, 1):
        head = f"{number} → {number + 1}, {rung.label}: {_change(rung.delta).text}"
        items.append((Cell(head, STRONG, name=True), tuple(_details(rung, everything))))
    return Items("Rungs, each in times of its own first run's work", tuple(items))


def _details(rung: Rung, everything: bool) -> list[str]:
    changes = change_text(rung.knobs)
    details = [f"knobs: {'; '.join(changes)}"] if changes else ["no knob differs"]
    for finding in rung.findings if everything else rung.findings[:MOST_FINDINGS]:
        size = f" ({units.points(finding.mfu_points)} points)" if finding.mfu_points is not None else ""
        details.append(finding.title + size)
    return details
