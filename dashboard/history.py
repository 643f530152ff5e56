"""The runs that can be chosen, and what they say about themselves, kept until their files change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from dashboard.sources import SAMPLES, Root, Sources, browser
from profiler.report import units
from profiler.results import Note
from profiler.xplane.runs import Run, RunFacts, Runs, facts, runs

MOST_LISTED = 500  # runs in a list to choose from; the page of runs has all
MOST_DESCRIBED = 24  # of them with what they say about themselves
MOST_LETTERS = 300  # of the line of a run
QUICK_BYTES = 64 << 20  # that a gzipped file may unpack to, where there are many to describe
_FRESH_S = 30


@dataclass(frozen=True, slots=True)
class Listed:
    """One run as it is chosen: ``text`` is its PATH as people see it; ``run`` is None for an upload."""

    text: str
    root: str
    run: Run | None = None


def below(root: Root) -> Runs:
    """The runs below a root; looked for again after half a minute, or after ``look_again``."""
    return _found(str(root.real))


def look_again() -> None:
    """Forgets which runs there are."""
    _found.clear()


def described(run: Run, *, most_unpacked: int = QUICK_BYTES) -> RunFacts:
    """What a run says about itself."""
    return _facts(run.path, run.modified_ns, run.bytes, most_unpacked, run)


def listed(sources: Sources) -> list[Listed]:
    """What can be chosen: this session's uploads, the runs of every folder, newest first, and the samples."""
    found = [Listed(text, "uploads") for text in reversed(sources.uploads.texts(browser()))]
    for root in sources.roots:
        found += [Listed(sources.short(run.path), root.name, run) for run in below(root).runs[:MOST_LISTED]]
    return found


def notes(sources: Sources) -> list[Note]:
    """What the searches left out."""
    return [note for root in sources.roots if root.name != SAMPLES for note in below(root).notes]


def titles(choices: Sequence[Listed]) -> dict[str, str]:
    """A line for every run that can be chosen; the newest say what they are."""
    lines: dict[str, str] = {}
    taken: set[str] = set()  # the browser tells entries of a list apart by their lines
    for number, each in enumerate(choices):
        if each.run is None:
            line = each.text.split("/", 1)[-1] + " · upload"
        else:
            said = described(each.run) if number < MOST_DESCRIBED or each.root == SAMPLES else None
            line = " · ".join([short(each.text), *_words(each.run, said)])
        line = units.shorten(line, MOST_LETTERS)
        lines[each.text] = line if line not in taken else f"{line} ({units.clean(each.text)})"
        taken.add(line)
    return lines


def line(each: Listed) -> str:
    """What one of them says about itself."""
    return " · ".join(_words(each.run, described(each.run))) if each.run else "upload"


def when(run: Run, said: RunFacts | None) -> str:
    """When a run began, to the minute."""
    return ((said.started if said else None) or run.started).strftime("%Y-%m-%d %H:%M")


def batch_text(said: RunFacts) -> str:
    """Sequences per device × tokens of each; empty where it is not known."""
    sizes = [units.number(size, 6) for size in (said.batch, said.sequence) if size]
    return " × ".join(sizes) if said.batch else ""


def chip_text(said: RunFacts) -> str:
    """The chips and how many devices there are, or the slice that a profile was compiled for."""
    if said.topology:
        return f"{said.chip or ''} {said.topology}".strip()
    many = f"{said.devices:,} × " if said.devices and said.devices > 1 else ""
    return f"{many}{said.chip}" if said.chip else ""


def _words(run: Run, said: RunFacts | None) -> list[str]:
    if said is None:
        return [when(run, None)]
    if said.error:
        return ["cannot be read"]
    batch = batch_text(said)
    words = [said.model or "", chip_text(said), f"batch {batch}" if batch else "", said.kind or "", when(run, said)]
    return [word for word in words if word]


def short(text: str) -> str:
    """A path without what every path has."""
    for suffix in (".xplane.pb.gz", ".xplane.pb"):
        text = text.removesuffix(suffix)
    return text.replace("/plugins/profile/", "/")


@st.cache_data(ttl=_FRESH_S, show_spinner=False)
def _found(folder: str) -> Runs:
    return runs(Path(folder))


@st.cache_data(max_entries=20_000, show_spinner=False)
def _facts(path: str, modified_ns: int, size: int, most_unpacked: int, _run: Run) -> RunFacts:
    return facts(_run, most_unpacked=most_unpacked)
