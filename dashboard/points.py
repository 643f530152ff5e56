"""Many runs measured, one after another: the few figures of each that a history shows, kept until its files change."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from dashboard.loading import stamps, told
from dashboard.sources import Sources
from profiler import api
from profiler.analysis.runfigures import of_summary
from profiler.api import Options
from profiler.errors import ProfilerError
from profiler.history import Entry
from profiler.history import told as told_of
from profiler.results import Summary
from profiler.results_history import HistorySeries
from profiler.runinfo import flat
from profiler.xplane.locate import locate
from profiler.xplane.runs import facts, runs

MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Point:
    """One measured run.

    Attributes:
        text: its PATH as people see it.
        summary: what it says; None where it cannot be read, and ``error`` says why.
        started: when it began, as it says itself or as its folder or file does.
        config: its keys, nested ones with dots.
        entry: the same as a history takes it.
    """

    text: str
    started: datetime
    summary: Summary | None = None
    model: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    entry: Entry | None = None

    @property
    def kind(self) -> str | None:
        """ "recorded" or "compiled"."""
        return self.summary.kind if self.summary else None

    @property
    def chip(self) -> str | None:
        """The type of its devices."""
        return self.summary.devices[0].type if self.summary and self.summary.devices else None


def points(texts: Sequence[str], sources: Sources, options: Options) -> list[Point]:
    """Measures runs, two at a time, and shows how far it is. A run that cannot be read keeps its place."""
    context = get_script_run_ctx()
    shown = st.empty()
    found: dict[str, Point] = {}

    def measure(text: str) -> Point:
        try:
            path = sources.resolve(text)
            with told(sources):
                return _point(f"{path}|{stamps(path)}|{options}", text, path, options)
        except ProfilerError as error:
            return Point(text, datetime.fromtimestamp(0).astimezone(), error=str(error))

    with ThreadPoolExecutor(2, initializer=lambda: add_script_run_ctx(threading.current_thread(), context)) as pool:
        jobs = [pool.submit(measure, text) for text in texts]
        for done, job in enumerate(as_completed(jobs), 1):
            found[job.result().text] = job.result()
            shown.progress(done / len(jobs), text=f"Measured {done} of {len(jobs)} runs …")
    shown.empty()
    return [found[text] for text in texts]


def differing(found: Sequence[Point]) -> list[str]:
    """The keys whose values differ between the runs that have a configuration; one that a run lacks differs."""
    configs = [point.config for point in found if point.config]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]


def levels(found: Sequence[Point], names: Sequence[str], metric: str) -> tuple[HistorySeries, ...]:
    """Where a figure of the runs got another level, as ``profiler history`` tells it.

    Args:
        found: measured runs.
        names: a name for each.
        metric: one of profiler.history.METRICS.
    """
    entries = [
        replace(point.entry, run=replace(point.entry.run, name=name))
        for point, name in zip(found, names, strict=True)
        if point.entry
    ]
    return told_of("", entries, metric).series if entries else ()


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _point(key: str, _text: str, _path: str, _options: Options) -> Point:
    run = runs(locate(_path).recordings[0].files[0]).runs[0]
    said = facts(run)
    summary = api.summary(_path, _options)
    info, entry = summary.run_info or {}, Entry(run, said, of_summary(summary))
    return Point(_text, said.started or run.started, summary, said.model, flat(info.get("config")), None, entry)
