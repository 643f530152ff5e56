"""What every page is made of. Text of a trace reaches the browser through these, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import polars as pl
import streamlit as st

from profiler.errors import ProfilerError
from profiler.report import html_parts, units
from profiler.report.csv_ import frame_csv
from profiler.report.model import Block, Table
from profiler.results import Note, Summary

PLOT = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
PLAIN_WIDTH = 2000


def html(markup: str) -> None:
    """HTML that is escaped already, in the style of the report."""
    st.html(f'<div class="pf">{markup}</div>')


def text(words: str, kind: str = "remark") -> None:
    """A paragraph of plain text, whatever it holds; ``kind`` is a class of the style sheet."""
    html(f'<p class="{kind}"><bdi>{escape(units.shorten(words, PLAIN_WIDTH))}</bdi></p>')


def blocks(found: Sequence[Block]) -> None:
    """Blocks of one of profiler's views."""
    html(html_parts.blocks(found))


def table(found: Table, *, title: bool = True) -> None:
    """A table of one of profiler's views, where it has rows."""
    if found.rows:
        html(html_parts.table(found, title=title))


def notes(found: Sequence[Note], title: str, *, expanded: bool = False) -> None:
    """Warnings behind their number; nothing where there are none."""
    if found:
        with st.expander(f"{title} ({len(found)})", expanded=expanded, icon=":material/warning:"):
            html(html_parts.notes(found))


def failure(error: ProfilerError) -> None:
    """One clear line: the file, what is wrong, the remedy."""
    html(f'<div class="failure" role="alert"><p><bdi>{escape(units.shorten(str(error), PLAIN_WIDTH))}</bdi></p></div>')


def empty(words: str, remedy: str = "") -> None:
    """A page, or a part of one, that has nothing to show: why, and what would change that."""
    more = f'<br><span class="dim">{escape(remedy)}</span>' if remedy else ""
    html(f'<p class="empty" role="status">{escape(words)}{more}</p>')


def estimate_banner(sides: Sequence[tuple[str, Summary]]) -> None:
    """Says that times are estimates, where a side is compiled."""
    compiled = [title for title, side in sides if side.kind == "compiled"]
    if not compiled:
        return
    many = len(compiled) > 1
    html(
        f'<p class="estimate"><strong>Estimate.</strong> {" and ".join(compiled).capitalize()} '
        f"{'are' if many else 'is'} compiled, not recorded: every time of {'them' if many else 'it'} is an estimate. "
        "Counts, tiles and HBM are the compiler's own and exact.</p>"
    )


def plot(figure: Any, key: str, alt: str, **more: Any) -> Any:
    """A plotly figure; ``alt`` says in words what it shows."""
    return st.plotly_chart(figure, key=key, alt=alt, width="stretch", config=PLOT, **more)


def downloads(name: str, frame: Callable[[], pl.DataFrame], key: str) -> None:
    """Buttons for a table as CSV, JSON and parquet; the file is made when it is asked for."""
    place = st.container(horizontal=True, horizontal_alignment="right")
    with place.popover("Download", icon=":material/download:"):
        for kind, mime, make in (
            ("CSV", "text/csv", lambda: frame_csv(frame()).encode()),
            ("JSON", "application/json", lambda: frame().write_json().encode()),
            ("parquet", "application/vnd.apache.parquet", lambda: _parquet(frame())),
        ):
            st.download_button(
                kind,
                make,
                f"{name}.{kind.lower()}",
                mime,
                key=f"{key}-{kind}",
                on_click="ignore",
                width="stretch",
            )


def _parquet(frame: pl.DataFrame) -> bytes:
    import io

    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
