"""Timeline: a step of both sides, one above the other, on one scale that begins at the step's start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import elements, shell, state
from dashboard.components import timeline as sheet
from dashboard.components.timeline import Drawn
from dashboard.loading import Comparison, Side
from profiler.analysis import timeline
from profiler.analysis.timelineexport import Step, export
from profiler.redact import redacted
from profiler.report import perfetto, units
from profiler.report.model import Cell, Column, Facts, Table
from profiler.report.wording import sides as named_sides
from profiler.results_timeline import TimelineDevice, TimelineOp, TimelineRows

SHEET, SHOWN = "timeline", "_timeline_shown"
SPAN = ("side", "op", "start")  # what names a span: start is time since the step's start
OWN = ("window", "span", "base_device", "base_step", "opt_device", "opt_step")  # in the URL, of this page alone
SHORT = {"baseline": "base", "optimized": "opt"}  # of a side, in the URL
MOST_SPANS = 12  # a side, in the table
WIDTH = 1100  # of the drawing, before the browser says how wide it is


def page(comparison: Comparison) -> None:
    """The page."""
    left, right = st.columns([5, 1], vertical_alignment="bottom")
    with left:
        st.header("Timeline")
    elements.estimate_banner(named_sides(comparison.diff))
    there = [timeline.devices(side.measured) for side in comparison.sides]
    if not any(there):
        elements.empty("Neither recording has a timeline.", "It needs ops of a device, with their times.")
        return
    drawn = _chosen(comparison.sides, there)
    if any(side.summary.fleet and side.summary.fleet.choice == "median" for side in (each.measured for each in drawn)):
        elements.text(
            "Of a run of many hosts the device with the median step is shown; Device, under How they are read, "
            "shows another one. A reduced run keeps the spans of the others only with profiler reduce --keep all."
        )
    with right:
        _exports(drawn)
    shown = [
        (side.key, each.device and each.device.name, each.step)
        for side, each in zip(comparison.sides, drawn, strict=True)
    ]
    key = blake2s(repr(shown).encode()).hexdigest()[:16]
    if st.session_state.get(SHOWN, key) != key:  # a window and a span are of what was shown before
        state.put("window", "")
        state.put("span", "")
    st.session_state[SHOWN] = key
    _drawing(drawn, key)


def _chosen(sides: Sequence[Side], there: Sequence[tuple[TimelineDevice, ...]]) -> list[Drawn]:
    """Device and step of each side; a picker where there is something to pick."""
    drawn = []
    places = _places()
    for side, devices in zip(sides, there, strict=True):
        device = _device(side.title, devices, places)
        step = _step(side.title, device, places) if device else 0
        rows = _rows(f"{side.key} {device.index}", side.measured.trace, device.index) if device else None
        drawn.append(Drawn(side.title, side.measured, device, step, rows))
    return drawn


def _places() -> Iterator[DeltaGenerator]:
    """Where pickers go; no room is taken where there is none."""
    yield from st.columns(4)


def _device(title: str, devices: tuple[TimelineDevice, ...], places: Iterator[DeltaGenerator]) -> TimelineDevice | None:
    if len(devices) < 2:
        return devices[0] if devices else None
    names = [each.name for each in devices]
    with next(places):
        name = st.selectbox(f"Device, {title}", names, key=f"{SHORT[title]}_device", bind="query-params")
    return devices[names.index(name)] if name in names else devices[0]


def _step(title: str, device: TimelineDevice, places: Iterator[DeltaGenerator]) -> int:
    count = len(device.steps)
    if count < 2:
        return 0
    lengths = [units.duration(each) for each in sorted((device.steps[:, 1] - device.steps[:, 0]).tolist())]
    field = partial(
        st.number_input,
        f"Step, {title} (0 to {count - 1})",
        0,
        count - 1,
        device.default,
        help=f"{count} steady steps of {lengths[0]} to {lengths[-1]}; step {device.default} is nearest the median",
    )
    key = f"{SHORT[title]}_step"
    with next(places):
        try:
            return int(field(key=key, bind="query-params"))
        except OverflowError:  # Streamlit's own, where the URL has an infinite one ("1e999")
            return int(field(key=f"{key}_unbound"))


@st.cache_resource(max_entries=16, show_spinner=False)
def _rows(key: str, _trace: Any, _device: int) -> TimelineRows:
    return timeline.rows(_trace, _device)


@st.fragment
def _drawing(drawn: list[Drawn], key: str) -> None:
    """The canvas, the chosen span, and the longest spans as a table: what follows the window, and nothing else."""
    asked = _said("window", key)
    window = sheet.inside([asked.get("start"), asked.get("end")] if asked else _numbers("window"), drawn)
    pixels = asked["pixels"] if isinstance(asked.get("pixels"), int) else WIDTH
    found = _said("span", key)
    span = _span([found.get(name) for name in SPAN] if found else _numbers("span"), drawn)
    sheet.draw(drawn, SHEET, key=key, window=window, pixels=pixels, span=span, overview=not asked.get("whole"))
    state.put("window", "" if window == sheet.home(drawn) else "{} {}".format(*window))
    state.put("span", " ".join(str(span[name]) for name in SPAN) if span else "")
    if span:
        _facts(drawn[span["side"]], span)
    with st.expander("The longest spans in view, as a table"):
        elements.table(_longest(drawn, window), title=False)


def _said(what: str, key: str) -> dict[str, Any]:
    """What the browser reports, empty where that is of another step, or nothing."""
    found = (st.session_state.get(SHEET) or {}).get(what)
    return found if isinstance(found, dict) and found.get("of") == key else {}


def _numbers(name: str) -> list[Any]:
    """The whole numbers of a parameter of the URL."""
    return [int(each) for each in re.findall(r"-?\d{1,18}", state.get(name))]


def _span(found: list[Any], drawn: list[Drawn]) -> dict[str, int] | None:
    """The chosen span, where there is such a one."""
    if len(found) != len(SPAN) or not all(isinstance(each, int) and abs(each) < 2**62 for each in found):
        return None
    side, op, start = found
    if not 0 <= side < len(drawn) or not 0 <= op < drawn[side].measured.trace.ops.height:
        return None
    duration = drawn[side].at(op, start)
    return None if duration is None else {"side": side, "op": op, "start": start, "duration": duration}


def _facts(side: Drawn, span: dict[str, int]) -> None:
    """What is known of the chosen span, and the way to its op."""
    (op,) = timeline.op_facts(side.measured.trace, [span["op"]])
    estimated = " (estimated)" if side.estimated else ""
    known = {
        "side": side.title,
        "family": op.family,
        "phase": op.phase,
        "duration": units.duration(span["duration"]) + estimated,
        "starts at": units.duration(span["start"]) + " in the step" + estimated,
        "kernel": op.kernel,
        "shape": op.shape,
        "scopes": op.scopes,
        "source": op.source,
        "program": op.program,
    }
    rows = tuple((name, Cell(text if text is not None else units.UNKNOWN, name=True)) for name, text in known.items())
    with st.container(border=True):
        elements.blocks([Facts(rows, title=op.op)])
        _link(op)


def _link(op: TimelineOp) -> None:
    if (Path(__file__).parent / "ops.py").exists():
        kept = {name: st.query_params.get_all(name) for name in st.query_params if name not in OWN}
        st.page_link("views/ops.py", label="This op on the Ops page", icon=":material/table_rows:",
                     query_params={**kept, "search": op.op})  # fmt: skip


def _longest(drawn: list[Drawn], window: tuple[int, int]) -> Table:
    estimated = any(side.estimated for side in drawn)
    rows = []
    for side in drawn:
        # The whole step is drawn with a margin, in which are spans of its neighbours.
        seen = (0, side.length_ps) if window == sheet.home(drawn) and side.length_ps else window
        spans = side.longest(seen, MOST_SPANS)
        facts = {each.op_id: each for each in timeline.op_facts(side.measured.trace, [span.op_id for span in spans])}
        for span in spans:
            op = facts.get(span.op_id)
            rows.append(
                (
                    Cell(op.op if op else f"{span.count} spans", name=op is not None),
                    Cell(side.title),
                    Cell(span.family),
                    Cell((op.phase if op else None) or units.UNKNOWN),
                    Cell(span.lane, name=True),
                    Cell(units.duration(span.start_ps - side.span[0])),
                    Cell(units.duration(span.busy_ps)),
                )
            )
    est = " (est.)" if estimated else ""
    names = ("op", "side", "family", "phase", "lane")
    columns = (*(Column(name, numeric=False) for name in names), Column(f"starts at{est}"), Column(f"takes{est}"))
    return Table("The longest spans in view", columns, tuple(rows), caption="time counts from the start of the step")


def _exports(drawn: list[Drawn]) -> None:
    """What is chosen, or all of it, for Perfetto: made when it is asked for."""
    with st.popover("Perfetto", icon=":material/download:", width="stretch"):
        elements.text("A file that ui.perfetto.dev opens.")
        hide = st.checkbox("Hide names of hosts, folders and users", key="redact_timeline")
        both = [side for side in drawn if side.device is not None]
        for title, name, make in (
            ("This step of both sides", "step", partial(packed, both, None, hide)),
            ("All steady steps, all devices", "steps", partial(packed, both, "all", hide)),
        ):
            st.download_button(title, make, f"{name}.json.gz", "application/gzip", key=f"perfetto-{name}",
                               on_click="ignore", width="stretch")  # fmt: skip


def packed(drawn: list[Drawn], step: Step, hide: bool) -> bytes:
    """The chosen device and step of each side, or "all" steps of all devices, as a gzipped file for Perfetto."""
    only = None if step == "all" else [(side.device.index, side.step) for side in drawn if side.device is not None]
    found = export([side.measured for side in drawn], step, only)
    return b"".join(perfetto.packed(perfetto.trace_events(redacted(found) if hide else found)))


if __name__ == "__main__":
    shell.show(page)
