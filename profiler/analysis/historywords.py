"""What a series of runs says in a sentence."""

from __future__ import annotations

from dataclasses import replace

from profiler.results_history import HistoryChange, HistorySeries


def with_verdict(series: HistorySeries, title: str, higher_is_better: bool, fewest: int) -> HistorySeries:
    """The series with its verdict; ``title`` is the figure's, ``fewest`` runs are needed to see a change of level."""
    return replace(series, verdict=_verdict(series, title, higher_is_better, fewest))


def _verdict(series: HistorySeries, title: str, higher_is_better: bool, fewest: int) -> str:
    known = sum(run.value is not None for run in series.runs)
    if not known:
        return f"n/a: no run tells its {title}"
    if known < fewest:
        return f"n/a: {known} run{'s' * (known > 1)} with a known {title}, a change of level takes {fewest}"
    rest = f"{_drift(series, higher_is_better)}{_last(series)}."
    if not series.changes:
        return f"{title} keeps its level over {known} runs{rest}"
    last = series.changes[-1]
    count = len(series.changes)
    whole = f" ({_percent(series.ratio)} since the first run)" if count > 1 and series.ratio is not None else ""
    return (
        f"{title} changed its level {'once' if count == 1 else f'{count} times'} over {known} runs{whole}; last with "
        f"{last.run}: {_percent(last.ratio)}, {'better' if last.better else 'worse'}{_with(last)}{rest}"
    )


def _with(change: HistoryChange) -> str:
    """What changed with it, in a few words."""
    keys = [each.key for each in change.changed if each.source != "commit"]
    commit = any(each.source == "commit" for each in change.changed)
    if not keys:
        return ", with another commit" if commit else ", with nothing else that is known"
    shown = ", ".join(keys[:2]) + (f" and {len(keys) - 2} more keys" if len(keys) > 2 else "")
    return f", with {shown}" + (" and another commit" if commit else "")


def _last(series: HistorySeries) -> str:
    newest = [run for run in series.runs if run.value is not None][-1]
    return f"; the newest run, {newest.name}, stands out, but one run is no level" if newest.stands_out else ""


def _drift(series: HistorySeries, higher_is_better: bool) -> str:
    if series.drift is None:
        return ""
    way = "better" if (series.drift > 0) == higher_is_better else "worse"
    return f"; within the last level it gets {way} by {_percent(1 + abs(series.drift), 2, '')} per run"


def _percent(ratio: float | None, decimals: int = 1, plus: str = "+") -> str:
    if ratio is None:
        return "n/a"
    change = 100 * (ratio - 1)
    return f"{'−' if change < 0 else plus}{abs(change):.{decimals}f} %"
