"""Warnings as a list: what happened, on which side, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dashboard import elements
from profiler.report import units
from profiler.report.health_diff import Warned

WIDTH = 600


def warnings(rows: Sequence[Warned], title: str = "") -> None:
    """One group of warnings; ``title`` stands above it."""
    listed = "".join(_row(row) for row in rows)
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    elements.html(f'{heading}<ul class="notes">{listed}</ul>')


def _row(row: Warned) -> str:
    helps = f" · what helps: {row.remedy}" if row.remedy else ""
    message = escape(units.shorten(row.message, WIDTH))
    return (
        f'<li><span class="mark" aria-hidden="true">!</span><span><bdi>{message}</bdi>'
        f'<small class="about"><bdi>{escape(row.about + helps)}</bdi></small></span></li>'
    )
