"""The timeline's canvas, and what it is sent: samples of both sides, with time counted from their step's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from profiler.analysis import timeline
from profiler.analysis.summary import Measured
from profiler.report import units
from profiler.results_timeline import TimelineDevice, TimelineRows, TimelineSpan, TimelineView

HERE = Path(__file__).parent
SCRIPTS = ("timeline_drawing.js", "timeline.js")  # one after the other they are one module
PIXELS = (200, 4000)  # of a drawing, whatever the browser says
OVERVIEW_PIXELS = 1600
MARGIN = 0.015  # of the longer step, left and right of it
NARROWEST_PS = 1000
MOST_LETTERS = 240

# Colour and pattern of every family: what it is for by hue, which of its kind by lightness and pattern, so that nothing
# depends on telling hues apart. Communication and transfers are always hatched. Greys have a colour for dark themes.
LOOKS: dict[str, tuple[str, str] | tuple[str, str, str]] = {
    "splash forward": ("#0b5cad", ""),
    "splash backward (dq)": ("#5b9bd9", "rising"),
    "splash backward (dkv)": ("#3a7fc4", "falling"),
    "splash backward (fused)": ("#7fb4e6", "crossed"),
    "attention": ("#2f6fb3", "dotted"),
    "gmm forward": ("#0b6e66", ""),
    "gmm dlhs": ("#46a89d", "rising"),
    "tgmm": ("#2a8a80", "falling"),
    "router": ("#b9d46a", "dotted"),
    "MoE dispatch": ("#7c9a2e", ""),
    "dense matmul": ("#5a4bb0", ""),
    "quantized matmul": ("#8477d6", "rising"),
    "convolution": ("#a79df0", ""),
    "norm / elementwise": ("#dcb93e", ""),
    "reduction": ("#f0dc8f", "dotted"),
    "embedding": ("#a9892a", ""),
    "loss and logits": ("#a4407a", ""),
    "optimizer": ("#d993bd", "dotted"),
    "copy / layout": ("#c4c0b4", "lined", "#807d74"),
    "other": ("#8f959c", ""),
    "all-gather": ("#e07b2a", "rising"),
    "all-reduce": ("#b14a06", "falling"),
    "reduce-scatter": ("#f0a868", "crossed"),
    "all-to-all": ("#8c3a08", "rising"),
    "collective-permute": ("#d4915f", "falling"),
    "collective (other)": ("#f3c9a2", "rising"),
    "host transfer": ("#b3243b", "crossed"),
    "async copy": ("#e0a3a9", "lined"),
    "wait": ("#e4e4df", "dotted", "#474c52"),
    "control flow": ("#d3d6da", "", "#3b4147"),
}

_sheet = st.components.v2.component(
    "profiler_timeline",
    js="\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS),
    css=(HERE / "timeline.css").read_text("utf-8"),
)


@dataclass(frozen=True)
class Drawn:
    """One side of the drawing: a step of a device. ``rows`` are all spans of the device, None where it has none."""

    title: str
    measured: Measured
    device: TimelineDevice | None
    step: int
    rows: TimelineRows | None

    @property
    def estimated(self) -> bool:
        """Whether its times are estimates."""
        return self.measured.trace.kind == "compiled"

    @cached_property
    def span(self) -> tuple[int, int]:
        """Start and end of the step, ps of the device's clock."""
        if self.device is None:
            return 0, 0
        start, end = self.device.steps[self.step].tolist()
        return start, end

    @property
    def length_ps(self) -> int:
        """How long the step takes."""
        return self.span[1] - self.span[0]

    def sample(self, window: tuple[int, int], pixels: int) -> TimelineView | None:
        """What is seen of the side in a window of time since the step's start."""
        if self.rows is None:
            return None
        return timeline.view(self.rows, window[0] + self.span[0], window[1] + self.span[0], pixels)

    def longest(self, window: tuple[int, int], most: int) -> tuple[TimelineSpan, ...]:
        """The longest spans and blocks in a window."""
        view = self.sample(window, OVERVIEW_PIXELS)
        return timeline.longest(view, most) if view is not None else ()

    def at(self, op: int, start: int) -> int | None:
        """The duration of the span of an op that begins at a time since the step's start; None where there is none."""
        if self.rows is None:
            return None
        found = np.flatnonzero((self.rows.start_ps == start + self.span[0]) & (self.rows.op == op))
        return int(self.rows.duration_ps[found[0]]) if len(found) else None


def home(sides: Sequence[Drawn]) -> tuple[int, int]:
    """The window that shows the longer step whole."""
    longest = max((side.length_ps for side in sides), default=0) or NARROWEST_PS
    margin = max(int(longest * MARGIN), 1)
    return -margin, longest + margin


def limits(sides: Sequence[Drawn]) -> tuple[int, int]:
    """As far as there are spans on either side."""
    low, high = home(sides)
    for side in sides:
        if side.device is not None:
            low = min(low, side.device.bounds_ps[0] - side.span[0])
            high = max(high, side.device.bounds_ps[1] - side.span[0])
    return low, high


def inside(window: object, sides: Sequence[Drawn]) -> tuple[int, int]:
    """A window that the browser or a URL asks for, as far as it makes sense; else the whole step."""
    low, high = limits(sides)
    if not (
        isinstance(window, tuple | list) and len(window) == 2 and all(type(each) in (int, float) for each in window)
    ):
        return home(sides)
    start, end = (int(min(max(each, low), high)) for each in window)  # NaN is no JSON
    return (start, end) if end - start >= NARROWEST_PS else home(sides)


def draw(sides: Sequence[Drawn], name: str, **asked: Any) -> None:
    """Mounts the drawing of ``payload``; the state of the widget ``name`` has what the browser reports.

    That is "window" (``of``, ``start``, ``end``, ``pixels``, ``whole``: whether it has the overview) and "span"
    (``of``, ``side``, ``op``, ``start``; ``op`` −1 for none); ``of`` is the payload's key.
    """
    _sheet(key=name, data=payload(sides, **asked), on_window_change=_nothing, on_span_change=_nothing)


def payload(
    sides: Sequence[Drawn],
    *,
    key: str,
    window: tuple[int, int],
    pixels: int,
    span: dict[str, int] | None = None,
    overview: bool = True,
) -> dict[str, Any]:
    """What the browser gets.

    Args:
        sides: what is drawn, top to bottom.
        key: names what is drawn: another one starts anew.
        window: what is seen, time since the step's start.
        pixels: how wide the drawing is.
        span: the chosen span: side, op, start.
        overview: whether the browser needs the sample of the whole step.
    """
    whole, (low, high) = home(sides), limits(sides)
    length = window[1] - window[0]
    wide = (max(window[0] - length, low), min(window[1] + length, high))  # room to pan at once
    pixels = min(max(pixels, PIXELS[0]), PIXELS[1]) * (wide[1] - wide[0]) // length
    first = [side.sample(whole, OVERVIEW_PIXELS) for side in sides]
    finer = [side.sample(wide, pixels) for side in sides]
    kept = [_kept(view) for view in first]
    names = list(dict.fromkeys(each for side in sides if side.rows for each in side.rows.families))
    numbers = {each: number for number, each in enumerate(names)}
    columns = [
        [_columns(view, rows, numbers, side.span[0]) for view, rows, side in zip(views, kept, sides, strict=True)]
        for views in (first, finer)
    ]
    described = []
    for index, side in enumerate(sides):
        ops = {op for sample in (columns if overview else columns[1:]) for op in sample[index]["op"]}
        described.append(_side(side, first[index], kept[index], ops))
    return {
        "key": key,
        "families": [(each, *LOOKS.get(each, LOOKS["other"])) for each in names],
        "home": whole,
        "limits": (low, high),
        "window": window,
        "span": span,
        "sides": described,
        "overview": {"range": whole, "sides": columns[0]} if overview else None,
        "detail": {"range": wide, "sides": columns[1]},
        "alt": "; ".join(_alt(side) for side in sides),
    }


def _nothing() -> None:
    """Streamlit keeps a value only where there is a callback."""


def _kept(view: TimelineView | None) -> np.ndarray:
    """The rows that have a span in the step."""
    return np.unique(view.row) if view is not None else np.zeros(0, np.int64)


def _columns(view: TimelineView | None, kept: np.ndarray, numbers: dict[str, int], origin: int) -> dict[str, list[int]]:
    """A sample as the browser gets it: rows counted among those that are kept, time since the step's start."""
    if view is None:
        return {name: [] for name in ("row", "start", "end", "busy", "count", "op", "family")}
    place = np.full(len(view.rows), -1, np.int64)
    place[kept] = np.arange(len(kept))
    family = np.array([numbers[each] for each in view.families], np.int64)
    mine = place[view.row] >= 0
    return {
        "row": place[view.row][mine].tolist(),
        "start": (view.start_ps - origin)[mine].tolist(),
        "end": (view.end_ps - origin)[mine].tolist(),
        "busy": view.busy_ps[mine].tolist(),
        "count": view.count[mine].tolist(),
        "op": view.op[mine].tolist(),
        "family": family[view.family][mine].tolist(),
    }


def _side(side: Drawn, view: TimelineView | None, kept: np.ndarray, ops: set[int]) -> dict[str, Any]:
    facts = timeline.op_facts(side.measured.trace, ops)
    return {
        "title": f"{side.title}{' (estimated)' if side.estimated else ''}",
        "words": _words(side),
        "estimated": side.estimated,
        "length": side.length_ps,
        "rows": [(units.shorten(view.rows[row].name, 80), view.rows[row].depth) for row in kept] if view else [],
        "none": "no device of this recording ran an op" if side.device is None else "no span in this step",
        "ops": [
            (each.op_id, *(_short(text) for text in (each.op, each.phase, each.scopes, each.source))) for each in facts
        ],
    }


def _words(side: Drawn) -> str:
    """What the side shows, in few words."""
    label = side.measured.trace.label
    parts = [label] if label != side.title else []
    if side.device is not None:
        parts.append(side.device.name)
        parts.append(f"step {side.step}" if side.device.unit == "step" else "whole recording")
        parts.append(units.duration(side.length_ps))
    return units.shorten(" · ".join(parts), 200)


def _alt(side: Drawn) -> str:
    return f"{side.title}: {_words(side)}{', an estimate' if side.estimated else ''}"


def _short(text: str | None) -> str | None:
    return None if text is None else units.shorten(text, MOST_LETTERS)
