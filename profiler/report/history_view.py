"""What ``profiler history`` says: each series as a curve and a table, and the runs that changed its level."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    GOOD,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Items,
    Line,
    Notes,
    Preformatted,
    Table,
    capped,
    label,
    limit,
    name,
)
from profiler.report.sparkline import sparkline
from profiler.report.summary_view import ESTIMATE
from profiler.results_history import History, HistoryChange, HistoryRun, HistorySeries, KeyChange

DEFAULT_ROWS = 20
MOST_SKIPPED = 20
MOST_KEYS = 3  # of the changed keys of a run that a row names
MOST_KEYS_LISTED = 12  # of those of a change
MOST_VALUE = 60  # characters
COMMIT = 10


def history_document(history: History, top: int | None = None) -> Document:
    """The history as blocks; ``top`` runs per series, the newest, None for the default, 0 for all."""
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Facts(_facts(history))]
    for series in history.series:
        blocks += _blocks(history, series, rows)
    if history.skipped:
        blocks.append(_skipped(history))
    blocks.append(Notes("Warnings", history.warnings))
    return Document(f"profiler history: {history.title}", tuple(blocks))


def value_text(history: History) -> Callable[[float | None], str]:
    """How a value of this history is written."""
    if history.unit == "fraction":
        return lambda value: units.percent(value, 2)
    if history.unit == "ps":
        return lambda value: units.UNKNOWN if value is None else units.duration(value)
    if history.unit == "bytes":
        return lambda value: units.UNKNOWN if value is None else units.size(value)
    return units.grouped


def series_title(series: HistorySeries) -> str:
    """What its runs have in common."""
    return " · ".join((series.model or "no model named", series.chip or "unknown chip", series.kind))


def _facts(history: History) -> tuple[tuple[str, Cell], ...]:
    runs = sum(len(series.runs) for series in history.series)
    reduced = sum(run.reduced for series in history.series for run in series.runs)
    better = "more is better" if history.higher_is_better else "less is better"
    lost = f", {len(history.skipped):,} cannot be read" if history.skipped else ""
    return (
        ("folder", name(history.file)),
        ("runs", label(f"{runs:,} ({reduced:,} reduced){lost}")),
        ("figure", label(f"{history.title}; {better}")),
    )


def _blocks(history: History, series: HistorySeries, rows: int | None) -> list[Block]:
    known = [run for run in series.runs if run.value is not None]
    blocks: list[Block] = [
        Line(units.clean(series_title(series)), STRONG),
        Line(series.verdict, headline=True),
    ]
    if series.kind == "compiled" and history.unit != "bytes":
        blocks.append(Line(ESTIMATE + ".", BAD))
    if len(known) > 1:
        blocks.append(_curve(history, series, known))
    if series.changes:
        blocks.append(_changes(history, series))
    table = _table(history, series)
    blocks.append(table if rows is None else capped(table, rows, ALL_ROWS))
    return blocks


def _curve(history: History, series: HistorySeries, known: Sequence[HistoryRun]) -> Preformatted:
    """Oldest to newest, with the runs that changed the level under it."""
    moved = {change.run for change in series.changes}
    values = [run.value for run in known if run.value is not None]
    text = value_text(history)
    lines = sparkline(values, [run.name in moved for run in known])
    return Preformatted(
        f"{history.title}, oldest to newest, from {text(min(values))} to {text(max(values))}",
        tuple(lines),
        in_text=True,
    )


def _changes(history: History, series: HistorySeries) -> Items:
    return Items(
        "Changes of level",
        tuple(
            (
                Cell(_change_title(history, each), GOOD if each.better else BAD, name=True),
                tuple(_change_details(each)),
            )
            for each in series.changes
        ),
    )


def _change_title(history: History, each: HistoryChange) -> str:
    text = value_text(history)
    way = "better" if each.better else "worse"
    return f"{each.run}: {text(each.before)} → {text(each.after)} ({units.change(each.ratio)}, {way})"


def _change_details(each: HistoryChange) -> list[str]:
    scatter = f", runs scatter by {units.percent(each.noise, 2)}" if each.noise else ""
    before = f"{each.runs_before:,} run{'s' * (each.runs_before > 1)} before"
    details = [f"from {when(each.started)} on; {before}, {each.runs_after:,} since{scatter}"]
    if not each.changed:
        return [*details, "nothing differs from the run before that these runs tell of"]
    shown = [key_text(change) for change in each.changed[:MOST_KEYS_LISTED]]
    more = len(each.changed) - len(shown)
    return [*details, "differs from the run before: " + "; ".join(shown) + (f"; and {more} more" if more else "")]


def key_text(change: KeyChange) -> str:
    """One key with both values."""
    if change.source == "commit":
        before, after = (str(value)[:COMMIT] if value else "n/a" for value in (change.before, change.after))
        return f"commit {before} → {after}"
    before, after = (
        "absent" if value is None else units.shorten(str(value), MOST_VALUE) for value in (change.before, change.after)
    )
    return f"{change.key} {before} → {after}"


def _table(history: History, series: HistorySeries) -> Table:
    """The newest first."""
    text = value_text(history)
    moved = {change.run for change in series.changes}
    est = " (est.)" if series.kind == "compiled" and history.unit != "bytes" else ""

    def row(run: HistoryRun) -> tuple[Cell, ...]:
        mark = "level changes" if run.name in moved else "stands out" if run.stands_out else ""
        return (
            name(run.name, STRONG if run.name in moved else ""),
            label(when(run.started)),
            label(text(run.value), "" if run.value is not None else DIM),
            label(mark, STRONG if run.name in moved else ""),
            name((run.commit or "")[:COMMIT], DIM),
            name(_keys(run), DIM),
        )

    return Table(
        "Runs, the newest first",
        (
            Column("run", numeric=False, kept=True),
            Column("started", numeric=False, minor=True),
            Column(f"{history.title}{est}"),
            Column("", numeric=False),
            Column("commit", numeric=False, minor=True),
            Column("changed against the run before", numeric=False),
        ),
        tuple(row(run) for run in reversed(series.runs)),
    )


def _keys(run: HistoryRun) -> str:
    keys = [change.key for change in run.changed if change.source != "commit"]
    more = len(keys) - MOST_KEYS
    return ", ".join(keys[:MOST_KEYS]) + (f" and {more} more" if more > 0 else "")


def when(started: str) -> str:
    """A time to the minute."""
    return started[:16].replace("T", " ")


def _skipped(history: History) -> Items:
    more = len(history.skipped) - MOST_SKIPPED
    return Items(
        "Cannot be read, and left out",
        tuple((name(run.name), (run.why,)) for run in history.skipped[:MOST_SKIPPED]),
        more=f"{more:,} more; --format json has all" if more > 0 else None,
    )
