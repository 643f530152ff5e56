"""Tables as CSV for spreadsheets and scripts: raw figures, unit in the header, empty for unknown.

A text cell that a spreadsheet could take for a formula, spaces before it or not, gets a leading apostrophe: names come
from a trace and are never evaluated. Controls and line breaks appear as escapes, so that every row is one line.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from profiler.report.json_ import peaks_object
from profiler.report.units import clean
from profiler.results import Contribution, Diff, Ladder, Summary
from profiler.results_history import History, HistoryRun

if TYPE_CHECKING:
    import polars as pl

    from profiler.api import OpTable

_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # the wide ones are read as the others in some locales


def summary_csv(summary: Summary) -> str:
    """The families of one recording, one row each."""
    names = ("category", "family", "phase", "calls_per_step", "time_ps_per_step", "fraction")
    return _write(names, (asdict(row) for row in summary.families))


def ops_csv(table: OpTable, top: int | None = None) -> str:
    """The per-op table."""
    return frame_csv(table.ops, top)


def rows_csv(kind: type[Any], rows: Sequence[Any], top: int | None = None) -> str:
    """Rows that are dataclasses of one kind, one line each; mappings and lists become text."""
    names = tuple(field.name for field in fields(kind))
    return _write(names, ({name: getattr(row, name) for name in names} for row in rows[: top or None]))


def diff_csv(diff: Diff, top: int | None = None) -> str:
    """The matched ops of both sides; the split of the delta is in the JSON."""
    return frame_csv(diff.ops, top)


def ladder_csv(ladder: Ladder) -> str:
    """The contributions of every rung, one row each; ``rung`` counts from 1."""
    names = ("rung", "label", *(field.name for field in fields(Contribution)))
    rows = ((number, rung, each) for number, rung in enumerate(ladder.rungs, 1) for each in rung.contributions)
    return _write(names, ({"rung": number, "label": rung.label, **asdict(each)} for number, rung, each in rows))


def history_csv(history: History) -> str:
    """All runs of all series, one row each; ``changed`` has the keys alone."""
    names = tuple(field.name for field in fields(HistoryRun))
    rows = (run for series in history.series for run in series.runs)
    return _write(names, ({**asdict(run), "changed": [each.key for each in run.changed]} for run in rows))


def peaks_csv() -> str:
    """The chip table; sources are joined by spaces."""
    chips = peaks_object()["chips"]
    return _write(tuple(chips[0]), ({**chip, "sources": " ".join(chip["sources"])} for chip in chips))


def frame_csv(frame: pl.DataFrame, top: int | None = None) -> str:
    """Any table, its first ``top`` rows."""
    return _write(tuple(frame.columns), frame.head(top or frame.height).iter_rows(named=True))


def _write(names: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row[key]) for key in names])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        value = "; ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    if isinstance(value, str):
        value = clean(value)
        return f"'{value}" if value.lstrip().startswith(_FORMULA_STARTS) else value
    return value
