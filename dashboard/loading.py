"""Reads and compares what is chosen, once: results are kept by the files' content and the way they were read."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from dashboard.choice import Choice
from dashboard.sources import Sources
from profiler import api
from profiler.analysis.summary import Measured
from profiler.api import Options
from profiler.errors import ProfilerError, UnreadableError
from profiler.report import units
from profiler.results import Diff, Ladder
from profiler.xplane.locate import MANIFEST, labels, locate

Result = TypeVar("Result")

MOST_SIDES = 6  # a side of a 200 MB file takes some hundred megabytes
MOST_RESULTS = 64
PATIENCE_S = 0.3  # what takes longer says what it does


@dataclass(frozen=True)
class Side:
    """A measured side. ``key`` names its content and the way it was read; ``path`` is what ``profiler`` opens."""

    title: str  # "baseline" | "optimized"
    path: str
    key: str
    options: Options
    measured: Measured


@dataclass(frozen=True)
class Comparison:
    """Both sides and what ``profiler diff`` says of them."""

    choice: Choice
    base: Side
    opt: Side
    diff: Diff

    @property
    def sides(self) -> tuple[Side, Side]:
        """Baseline, optimized."""
        return self.base, self.opt


def comparison(choice: Choice, sources: Sources) -> Comparison:
    """Reads both sides and compares them, with a progress display where that takes its time.

    Raises:
        ProfilerError: a side may not or cannot be read, or the two cannot be compared.
    """
    paths = [sources.resolve(choice.base), sources.resolve(choice.opt)]
    options = [choice.base_options, choice.opt_options]
    named = labels(paths)
    with told(sources):
        found = _all_read(paths, options, ("the baseline", "the optimized side"), last="comparing")
    base, opt = (
        Side(title, path, key, each, _labelled(measured, label))
        for title, path, each, label, (key, measured) in zip(
            ("baseline", "optimized"), paths, options, named, found, strict=True
        )
    )
    diff = _diff(f"{base.key}|{opt.key}|{named}|{choice.base_options}", base.measured, opt.measured, options[0])
    return Comparison(choice, base, opt, diff)


def ladder(choice: Choice, sources: Sources) -> Ladder:
    """A chain of runs, each against the one before.

    Raises:
        ProfilerError: as ``comparison``.
    """
    paths = [sources.resolve(each) for each in choice.ladder]
    options = [choice.base_options] * len(paths)
    titles = [f"run {number} of {len(paths)}" for number in range(1, len(paths) + 1)]
    with told(sources):
        found = _all_read(paths, options, titles, last="comparing")
    sides = [_labelled(measured, label) for (_, measured), label in zip(found, labels(paths), strict=True)]
    return _ladder("|".join(key for key, _ in found) + f"|{paths}|{options[0]}", sides, options)


@contextmanager
def told(sources: Sources) -> Iterator[None]:
    """A file that cannot be read is named as people see it; what the system refuses is said like everything else."""
    try:
        yield
    except OSError as error:
        what, file = f"cannot be read: {error.strerror or error}", str(error.filename or "")
        raise UnreadableError(what, file=sources.short(file) if file else None) from error
    except ProfilerError as error:
        if not Path(str(error.file)).is_absolute():
            raise
        raise type(error)(error.what, file=sources.short(str(error.file)), remedy=error.remedy) from error


def analysed(side: Side, analysis: Callable[..., Result], *options: Options) -> Result:
    """What an analysis says of a side, such as ``api.kernels``; kept like everything else.

    Args:
        side: one side of a comparison.
        analysis: a named function of a module (its name is part of the key), of the measured side alone.
        options: how the side was read, for an analysis that has to know.
    """
    name = f"{analysis.__module__}.{analysis.__qualname__}|{options}"
    found: Result = _analysed(f"{side.key}|{side.measured.trace.label}|{name}", analysis, side.measured, options)
    return found


def compared(comparison: Comparison, analysis: Callable[[Measured, Measured, Diff], Result]) -> Result:
    """What an analysis says of both sides and their diff, such as ``oprows.op_rows``; kept like everything else.

    Args:
        comparison: what is compared, and how.
        analysis: a named function of a module (its name is part of the key).
    """
    base, opt = comparison.sides
    labelled = [side.measured.trace.label for side in comparison.sides]
    key = f"{base.key}|{opt.key}|{labelled}|{base.options}|{analysis.__module__}.{analysis.__qualname__}"
    found: Result = _compared(key, analysis, base.measured, opt.measured, comparison.diff)
    return found


def fingerprint(path: str) -> str:
    """The content of all files that a PATH names, in few characters.

    Raises:
        UnreadableError: there is none.
    """
    return "+".join(_digest(str(file), *_stamp(file)) for file in _telling(path))


def stamps(path: str) -> tuple[tuple[int, int, int], ...]:
    """What changes when the files that a PATH names do."""
    return tuple(_stamp(file) for file in _telling(path))


def extent(path: str) -> str:
    """How much a PATH names, in words: how many hosts, where there are several, and the size of their files."""
    files = [file for recording in locate(path).recordings for file in recording.files]
    inside = [each for file in files for each in (file.rglob("*") if file.is_dir() else (file,))]
    hosts = f"{len(files):,} files, " if len(files) > 1 else ""
    return hosts + units.size(sum(each.stat().st_size for each in inside if each.is_file()))


def _telling(path: str) -> list[Path]:
    """The files that tell the content: of a reduced run its manifest, which has the digests of all its hosts."""
    files = (file for recording in locate(path).recordings for file in recording.files)
    return [file / MANIFEST if file.is_dir() else file for file in files]


def _stamp(file: Path) -> tuple[int, int, int]:
    """What changes when a file does: nothing is hashed twice."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


@st.cache_data(max_entries=4096, show_spinner=False)
def _digest(file: str, size: int, changed_ns: int, inode: int) -> str:
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()[:32]


def _key(path: str, options: Options) -> str:
    # The path too: warnings and provenance name the file.
    return f"{path}|{fingerprint(path)}|{replace(options, normalize=_how(options), force=False)}"


def _how(options: Options) -> str:
    """Only a whole recording is measured differently; the other units of work are a matter of the comparison."""
    return "run" if options.normalize == "run" else "auto"


@st.cache_resource(max_entries=MOST_SIDES, show_spinner=False)
def _measured(key: str, _path: str, _options: Options) -> Measured:
    return api.measured(_path, _options)


@st.cache_resource(max_entries=MOST_RESULTS, show_spinner=False)
def _diff(key: str, _base: Measured, _opt: Measured, _options: Options) -> Diff:
    return api.diff(_base, _opt, _options)


@st.cache_resource(max_entries=MOST_RESULTS, show_spinner=False)
def _ladder(key: str, _sides: Sequence[Measured], _options: Sequence[Options]) -> Ladder:
    return api.ladder(_sides, _options)


@st.cache_resource(max_entries=MOST_RESULTS, show_spinner=False)
def _analysed(key: str, _analysis: Callable[..., Any], _measured: Measured, _options: tuple[Options, ...]) -> Any:
    return _analysis(_measured, *_options)


@st.cache_resource(max_entries=MOST_RESULTS, show_spinner=False)
def _compared(
    key: str, _analysis: Callable[[Measured, Measured, Diff], Any], _base: Measured, _opt: Measured, _found: Diff
) -> Any:
    return _analysis(_base, _opt, _found)


def _labelled(measured: Measured, label: str) -> Measured:
    """The side under the name that tells it from the other one."""
    if measured.trace.label == label:
        return measured
    return replace(measured, trace=replace(measured.trace, label=label), summary=replace(measured.summary, label=label))


def _all_read(
    paths: Sequence[str], options: Sequence[Options], titles: Sequence[str], last: str
) -> list[tuple[str, Measured]]:
    """(key, measured) of every path; what takes longer than a moment shows how far it is.

    Two at a time; those of several hosts one after the other, since each takes all cores and the memory for itself.
    """
    context = get_script_run_ctx()
    shown = st.empty()
    at_once = 1 if any(len(each.files) > 1 for path in paths for each in locate(path).recordings) else 2

    def read(path: str, each: Options) -> tuple[str, Measured]:
        key = _key(path, each)
        return key, _measured(key, path, each)

    with ThreadPoolExecutor(
        at_once, initializer=lambda: add_script_run_ctx(threading.current_thread(), context)
    ) as pool:
        jobs = [pool.submit(read, path, each) for path, each in zip(paths, options, strict=True)]
        pending: set[Future[tuple[str, Measured]]] = set(jobs)
        while pending:
            done, pending = wait(pending, timeout=PATIENCE_S, return_when=FIRST_COMPLETED)
            if not done or len(jobs) > 2:
                left = [
                    f"{title} ({extent(path)})"
                    for title, path, job in zip(titles, paths, jobs, strict=True)
                    if job in pending
                ]
                words = f"Reading {' and '.join(left[:at_once])} …" if left else f"{last.capitalize()} …"
                shown.progress((len(jobs) - len(pending)) / (len(jobs) + 1), text=words)
        shown.empty()
        return [job.result() for job in jobs]
