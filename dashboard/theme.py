"""Colours of the drawings, light and dark, and the style of what is drawn as HTML.

They are those of the HTML report. A meaning never rests on the hue alone: losses are hatched, the baseline is dashed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import streamlit as st

from profiler.report.html_parts import template


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of one theme."""

    ink: str
    dim: str
    rule: str
    paper: str
    gain: str
    loss: str
    total: str
    muted: str
    base: str
    opt: str
    limit: str


LIGHT = Palette(
    ink="#1c1e21", dim="#5c6168", rule="#dcdcd6", paper="#fdfdfc", gain="#0b6e66", loss="#b14a06", total="#6b7178",
    muted="#9aa0a6", base="#6b7178", opt="#0b5cad", limit="#a13a06",
)  # fmt: skip
DARK = Palette(
    ink="#e7e8e6", dim="#a2a9b0", rule="#343a40", paper="#14171a", gain="#45d0bf", loss="#ff9d57", total="#8b929a",
    muted="#6b7279", base="#a2a9b0", opt="#6cb2ff", limit="#ff9d57",
)  # fmt: skip


def palette() -> Palette:
    """The colours of the theme that the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


@cache
def stylesheet() -> str:
    """The report's components, inside ``.pf`` so that they touch nothing of Streamlit's own."""
    own = (Path(__file__).parent / "style.css").read_text("utf-8")
    return f"<style>.pf {{\n{template('components.css')}\n}}\n{own}</style>"
