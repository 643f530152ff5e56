"""A folder of runs as one history: a figure of each in the order of time, its levels, and what changed with them.

    found = history(Path("runs"), "step_time")
    found.series[0].changes[0].run

Reduced runs are read from their tables; recordings are measured, which takes as long as ``profiler summary`` of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from profiler import api
from profiler.analysis.changepoints import FEWEST, changes, drawn_in, exact_changes, levels, noise
from profiler.analysis.historywords import with_verdict
from profiler.analysis.runfigures import Figures, of_reduced, of_summary
from profiler.errors import ProfilerError, UnreadableError, UsageError
from profiler.results import Note
from profiler.results_history import History, HistoryChange, HistoryRun, HistorySeries, KeyChange, SkippedRun
from profiler.runinfo import flat
from profiler.xplane.locate import locate
from profiler.xplane.runs import Run, RunFacts, facts, reduced, runs

READERS = 2  # runs that are read beside each other
MOST_COPIES = 5  # that are named
FEWEST_FOR_NOISE, FEWEST_FOR_DRIFT = 4, 6
DRIFT_CONFIDENCE = 0.99
MFU, STEP_TIME = "mfu", "step_time"
MEMORY = ("hbm_peak", "hbm_window")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a history can show; it knows whether more of it is better."""

    title: str
    unit: str
    higher_is_better: bool
    of: Callable[[Figures], float | None]
    exact: bool = False  # has no noise, whatever the run


METRICS = {
    MFU: Metric("MFU", "fraction", True, lambda run: run.mfu),
    STEP_TIME: Metric("mean step", "ps", False, lambda run: run.step_ps if run.unit == "step" else None),
    "tokens_per_s": Metric("tokens/s per device", "tokens/s", True, lambda run: run.tokens_per_s),
    "busy": Metric("busy share of the step", "fraction", True, lambda run: run.busy_fraction),
    "hbm_peak": Metric("static HBM peak", "bytes", False, lambda run: run.hbm_peak_bytes, exact=True),
    "hbm_window": Metric("HBM peak of the allocators", "bytes", False, lambda run: run.hbm_window_bytes),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One run that could be read: what it says of itself, and its figures."""

    run: Run
    said: RunFacts
    figures: Figures

    @property
    def started(self) -> datetime:
        """When it began, as far as anything tells."""
        return self.said.started or self.run.started

    @property
    def started_by(self) -> str:
        """Who tells."""
        return "recording" if self.said.started else "folder" if self.run.stamped else "file"


def history(folder: Path, metric: str | None = None, progress: Progress = lambda done, of: None) -> History:
    """The history of all runs below a folder.

    Args:
        folder: on this machine.
        metric: one of ``METRICS``; None for MFU where most runs know it, else the mean step.
        progress: called after each run: how many are read, of how many.

    Raises:
        UnreadableError: there is no such folder, or no run in it can be read.
        UsageError: there is no such metric.
    """
    if metric is not None and metric not in METRICS:
        raise UsageError(f"no metric {metric!r}", remedy=f"there are: {', '.join(METRICS)}")
    if not folder.exists():
        raise UnreadableError("no such folder", file=folder)
    found = runs(folder)
    if not found.runs:
        raise UnreadableError("holds no run", file=folder, remedy="give a folder of recordings or reduced runs")
    entries, skipped = read(found.runs, progress, memory=metric in MEMORY)
    if not entries:
        raise UnreadableError(f"holds no run that can be read: {skipped[0].name} {skipped[0].why}", file=folder)
    return told(str(folder), entries, metric, skipped, found.notes)


def read(
    found: Sequence[Run], progress: Progress = lambda done, of: None, *, memory: bool = True
) -> tuple[list[Entry], list[SkippedRun]]:
    """The figures of runs, some beside each other, and those that cannot be read.

    Args:
        found: the runs.
        progress: see ``history``.
        memory: whether figures of memory are wanted, which take longer.
    """
    read_runs: dict[str, Entry | SkippedRun] = {}
    with ThreadPoolExecutor(READERS) as pool:
        jobs = {pool.submit(_entry, run, memory): run for run in found}
        for done, job in enumerate(as_completed(jobs), 1):
            read_runs[jobs[job].path] = job.result()
            progress(done, len(jobs))
    ordered = [read_runs[run.path] for run in found]
    return [each for each in ordered if isinstance(each, Entry)], [
        each for each in ordered if isinstance(each, SkippedRun)
    ]


def _entry(run: Run, memory: bool) -> Entry | SkippedRun:
    try:
        said = facts(run)
        if said.error:
            return SkippedRun(run.name, run.path, said.error)
        figures = of_reduced(locate(run.path), memory=memory) if reduced(run) else of_summary(api.summary(run.path))
    except ProfilerError as error:
        return SkippedRun(run.name, run.path, error.what)
    except (OSError, MemoryError) as error:
        return SkippedRun(run.name, run.path, str(error) or type(error).__name__)
    except Exception as error:  # one run of many: it is named, and the others are told all the same
        return SkippedRun(run.name, run.path, f"unexpected {type(error).__name__}: {error} (a bug in profiler)")
    return Entry(run, said, figures)


def told(
    folder: str,
    entries: Sequence[Entry],
    metric: str | None,
    skipped: Sequence[SkippedRun] = (),
    notes: Sequence[Note] = (),
) -> History:
    """The history of runs that were read already, each counted once."""
    entries, copies = once(entries)
    if metric is None:
        known = sum(entry.figures.mfu is not None for entry in entries)
        metric = MFU if 2 * known >= len(entries) else STEP_TIME
    chosen = METRICS[metric]
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.started, entry.run.name)):
        # A compiled profile is an estimate: its series is its own.
        key = entry.figures.kind, entry.said.model or "", entry.said.chip or entry.figures.chip or ""
        groups.setdefault(key, []).append(entry)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != "recorded", -len(item[1]), item[0]))
    return History(
        file=folder,
        metric=metric,
        title=chosen.title,
        unit=chosen.unit,
        higher_is_better=chosen.higher_is_better,
        series=tuple(_series(chosen, mine) for _, mine in ordered),
        skipped=tuple(skipped),
        warnings=(*notes, *copies, *_notes(chosen, entries)),
    )


def once(entries: Sequence[Entry]) -> tuple[list[Entry], list[Note]]:
    """Recordings without their copies, and which were left out.

    A run often lies there twice, as it was recorded and reduced. Two recordings are one where they began together and
    their figures are equal to the last bit, which no two measurements are; a reduced one stands for the others.
    """
    kept: dict[Any, Entry] = {}
    left: list[str] = []
    for entry in sorted(entries, key=lambda entry: (not reduced(entry.run), entry.run.name)):
        figures = replace(entry.figures, run_info={}, hbm_peak_bytes=None, hbm_window_bytes=None)
        said = json.dumps(entry.figures.run_info, sort_keys=True, default=repr)
        # Compiled profiles of two runs may well be equal.
        key = entry.run.path if figures.kind == "compiled" else (entry.said.started, said, *astuple(figures)[:-1])
        if key in kept:
            left.append(f"{entry.run.name} (as {kept[key].run.name})")
        else:
            kept[key] = entry
    more = f" and {len(left) - MOST_COPIES:,} more" if len(left) > MOST_COPIES else ""
    text = f"copies of recordings that are here too are left out: {', '.join(left[:MOST_COPIES])}{more}"
    return list(kept.values()), [Note("copies", text)] if left else []


def _notes(metric: Metric, entries: Sequence[Entry]) -> list[Note]:
    found = []
    by_file = sum(entry.started_by == "file" for entry in entries)
    if by_file:
        found.append(
            Note(
                "start_by_file",
                f"{by_file} of {len(entries)} runs do not say when they began: the time at which the file was written "
                "stands for it, which a copy may have changed",
            )
        )
    unknown = sum(metric.of(entry.figures) is None for entry in entries)
    if unknown:
        found.append(Note("figure_unknown", f"{unknown} of {len(entries)} runs do not tell their {metric.title}"))
    return found


# --- one series ------------------------------------------------------------------------------------------------------


def _series(metric: Metric, entries: Sequence[Entry]) -> HistorySeries:
    """Runs of one kind, model and chip, by time."""
    known = [place for place, entry in enumerate(entries) if metric.of(entry.figures) is not None]
    values = np.array([metric.of(entries[place].figures) for place in known], np.float64)
    exact = metric.exact or entries[0].figures.kind == "compiled"
    starts = exact_changes(values) if exact else changes(values)
    medians = levels(values, starts) if len(values) else ()
    level = np.searchsorted(starts, np.arange(len(values)), side="right").tolist()
    out = (drawn_in(values) != values) & (len(values) >= FEWEST_FOR_NOISE and not exact)
    scatter = None
    if len(values) >= FEWEST_FOR_NOISE and np.median(values):
        scatter = 0.0 if exact else noise(values) / float(np.median(values))
    changed = [(), *(changed_keys(before, after) for before, after in pairwise(entries))]
    of_known = {place: number for number, place in enumerate(known)}

    def row(place: int, entry: Entry) -> HistoryRun:
        number = of_known.get(place)
        return HistoryRun(
            name=entry.run.name,
            file=entry.run.path,
            started=entry.started.isoformat(timespec="seconds"),
            started_by=entry.started_by,
            kind=entry.figures.kind,
            model=entry.said.model,
            chip=entry.said.chip or entry.figures.chip,
            reduced=reduced(entry.run),
            devices=entry.figures.devices,
            hosts=entry.figures.hosts,
            commit=entry.said.commit,
            value=None if number is None else float(values[number]),
            steps=entry.figures.steps,
            level=None if number is None else level[number],
            stands_out=number is not None and bool(out[number]),
            changed=changed[place],
        )

    rows = tuple(row(place, entry) for place, entry in enumerate(entries))
    ends = [*starts, len(values)]
    found = tuple(
        _change(
            metric,
            rows[known[start]],
            rows[known[start - 1]],
            # All that is new since the last run that the figure is known of.
            changed_keys(entries[known[start - 1]], entries[known[start]]),
            (medians[number], medians[number + 1]),
            scatter,
            (start - (starts[number - 1] if number else 0), ends[number + 1] - start),
        )
        for number, start in enumerate(starts)
    )
    ratio = medians[-1] / medians[0] if medians and medians[0] else None
    series = HistorySeries(
        kind=rows[0].kind,
        model=rows[0].model,
        chip=rows[0].chip,
        verdict="",
        runs=rows,
        levels=medians,
        changes=found,
        noise=scatter,
        ratio=ratio,
        drift=None if exact else _drift(values[starts[-1] if starts else 0 :]),
    )
    return with_verdict(series, metric.title, metric.higher_is_better, fewest=2 if exact else FEWEST)


def _change(
    metric: Metric,
    run: HistoryRun,
    last: HistoryRun,
    changed: tuple[KeyChange, ...],
    medians: tuple[float, float],
    scatter: float | None,
    counts: tuple[int, int],
) -> HistoryChange:
    before, after = medians
    return HistoryChange(
        run=run.name,
        started=run.started,
        before=before,
        after=after,
        ratio=after / before if before else None,
        better=(after > before) == metric.higher_is_better,
        noise=scatter,
        runs_before=counts[0],
        runs_after=counts[1],
        commit_before=last.commit,
        commit_after=run.commit,
        changed=changed,
    )


def changed_keys(before: Entry, after: Entry) -> tuple[KeyChange, ...]:
    """What a run has other than another: commit, configuration, mesh and versions, in this order."""
    pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("commit", {"git_commit": before.said.commit}, {"git_commit": after.said.commit}),
        ("config", before.said.config, after.said.config),
        ("mesh", before.said.mesh, after.said.mesh),
        ("versions", before.said.versions, after.said.versions),
        ("flags", _flags(before), _flags(after)),
    ]
    return tuple(
        KeyChange(key, old.get(key), new.get(key), source)
        for source, old, new in pairs
        for key in dict.fromkeys((*old, *new))
        # Texts of YAML and numbers of JSON may mean the same; True and 1 do not.
        if repr(old.get(key)) != repr(new.get(key))
    )


def _flags(entry: Entry) -> dict[str, Any]:
    """XLA flags of the run info: a list of texts, or a mapping."""
    found = entry.figures.run_info.get("xla_flags")
    if isinstance(found, Mapping):
        return flat(found)
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list | tuple) else []
    return {name: value or "true" for name, _, value in (each.partition("=") for each in texts)}


def _drift(values: np.ndarray) -> float | None:
    """The relative change per run within a level; None where there are few runs, or no more change than noise."""
    if len(values) < FEWEST_FOR_DRIFT or not np.median(values):
        return None
    from scipy.stats import theilslopes  # here, since loading scipy costs a tenth of a second

    slope, _, low, high = theilslopes(values, alpha=DRIFT_CONFIDENCE)
    return float(slope / np.median(values)) if low > 0 or high < 0 else None
