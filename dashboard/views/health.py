"""Trace health: how far each side's figures can be trusted, what is known of how much of the time, what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from dashboard import elements, loading, shell
from dashboard.loading import Comparison
from dashboard.warned import warnings
from profiler import api
from profiler.analysis.grades import CARE, NO, NOTHING, YES
from profiler.analysis.remedies import problems
from profiler.report import diff_view, health_diff, units
from profiler.report.health_diff import Sides
from profiler.report.wording import sides
from profiler.results_health import Grade

# The mark and the class of an answer: its meaning is never the hue's alone.
MARKS = {YES: ("✓", "good"), CARE: ("!", "strong"), NO: ("✗", "bad"), NOTHING: ("–", "dim")}


def page(comparison: Comparison) -> None:
    """The page."""
    read = [(side.title, loading.analysed(side, api.health)) for side in comparison.sides]
    shown: Sides = [("recording", read[0][1])] if comparison.choice.alone else read
    heads = [title for title, _ in shown]
    st.header("Trace health")
    elements.text(f"{health_diff.verdict(shown)}.", "because")
    elements.estimate_banner(sides(comparison.diff))
    _grades(shown)
    _problems(comparison, shown)
    st.subheader("How much is known")
    elements.table(health_diff.coverage_table(shown), title=False)
    st.subheader("What is taken from where")
    _grid("Figures per device that no event tells", heads, health_diff.assumption_rows(shown))
    st.subheader("What the recordings hold" if len(shown) > 1 else "What the recording holds")
    _grid("What is there as a whole", heads, health_diff.presence_rows(shown), "without it")
    st.subheader("What was read")
    _grid("Files, devices and steps", heads, health_diff.facts_rows(shown))
    for title, health in shown:
        with st.expander(f"Devices of the {title}" + (" side" if len(shown) > 1 else "")):
            elements.table(health_diff.devices_table(health), title=False)


def _grades(shown: Sides) -> None:
    rows = [
        (each[0].question, *(_answer(grade) for grade in each))
        for each in zip(*(health.grades for _, health in shown), strict=True)
    ]
    _table("grades", "Questions and answers", [title for title, _ in shown], rows)


def _answer(grade: Grade) -> str:
    """An answer with its reason, as HTML."""
    mark, tone = MARKS[grade.answer]
    helps = f"<small><bdi>What helps: {escape(grade.remedy)}</bdi></small>" if grade.remedy else ""
    return (
        f'<span class="answer {tone}"><span aria-hidden="true">{mark}</span> {escape(grade.answer)}</span>'
        f"<bdi>{escape(grade.reason)}</bdi>{helps}"
    )


def _grid(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], last: str = "") -> None:
    """A table of texts, one column per side and perhaps a ``last`` one."""
    cells = [(row[0], *(f"<bdi>{escape(units.shorten(each, 400))}</bdi>" for each in row[1:])) for row in rows]
    _table("facts grid", caption, heads, cells, last)


def _table(kind: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], last: str = "") -> None:
    """A table whose cells are HTML already; what is the same on both sides stands once, across both columns."""
    body = []
    for what, *of in rows:
        own, more = of[: len(heads)], of[len(heads) :]
        same = len(own) > 1 and len(set(own)) == 1
        sides_cells = f'<td colspan="{len(own)}">{own[0]}</td>' if same else "".join(f"<td>{each}</td>" for each in own)
        tail = "".join(f'<td class="dim">{each}</td>' for each in more)
        body.append(f'<tr><th scope="row">{escape(what)}</th>{sides_cells}{tail}</tr>')
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in (*heads, *([last] if last else [])))
    elements.html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="{kind}">'
        f'<caption class="vh">{escape(caption)}</caption><thead><tr><td></td>{titles}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _problems(comparison: Comparison, shown: Sides) -> None:
    st.subheader("What was lost, assumed, and is worth knowing")
    diff = comparison.diff
    about = [("comparison", problems(diff.warnings))] if not comparison.choice.alone else []
    told = dict(zip(("baseline", "optimized"), (side for _, side in sides(diff)), strict=True))
    for title, health in shown:
        own = diff_view.side_warnings(diff, told[title]) if title in told else None
        about.append((title, health.problems if own is None else problems(own)))
    found = health_diff.warned(about)
    if not found:
        elements.text("No warnings: nothing is lost that the files tell of.")
    for title, rows in found:
        warnings(rows, title)


if __name__ == "__main__":
    shell.show(page)
