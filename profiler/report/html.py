"""A diff as one HTML file: no network, readable without JavaScript, quiet about hostile names.

Everything of the trace passes jinja2's autoescaping as text, or the drawings' own escaping. The page's policy allows no
request at all and only the one script whose hash it names, so nothing else could run even if something slipped through.
The same diff gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from profiler.report import (
    diff_tables,
    diff_view,
    findings_view,
    html_kernels,
    html_tables,
    knobs_view,
    memory_diff,
    side_tables,
    units,
)
from profiler.report.comm_view import comm_blocks
from profiler.report.figures import waterfall, waterfall_svg
from profiler.report.figures_memory import MemoryFigure, memory_figure, memory_svg, swatch
from profiler.report.figures_steps import steps_figure, steps_svg
from profiler.report.html_kpis import cards
from profiler.report.html_ops import op_table
from profiler.report.html_parts import environment, template
from profiler.report.html_sides import command_of, provenance
from profiler.report.model import Items, Line, Table, capped
from profiler.report.summary_view import rerun_text
from profiler.report.wording import basis, sides
from profiler.results import Diff, Note

WIDE, NARROW = 1000, 360  # of the drawings
MOST_ROWS = 80  # of a table, except those that say otherwise
MOST_FAMILIES = 20  # of a phase
MOST_TENSORS = 12
MOST_NOTES = 40
MOST_EFFECTS = 40
MOST_SUGGESTIONS = 10


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure for wide and for narrow pages; both are in the file, and the page shows the one that fits."""

    wide: Markup
    narrow: Markup


def diff_page(diff: Diff, typed: Sequence[str] | None = None) -> str:
    """The whole page.

    Args:
        diff: the comparison.
        typed: the arguments that it is made from; None for those that the result implies.
    """
    script = template("report.js")
    return (
        environment()
        .get_template("report.html")
        .render(
            script=Markup(script),  # ours, and the policy admits it by its hash only
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            style=Markup(template("components.css") + template("report.css")),
            diff=diff,
            unit=diff.baseline.steps.unit,
            basis=basis(diff),
            title=" → ".join(units.shorten(side.label or side.file, 60) for _, side in sides(diff)),
            compiled=[title for title, side in sides(diff) if side.kind == "compiled"],
            command=command_of(diff, typed),
            labels=[(title, side.label) for title, side in sides(diff)],
            provenance=provenance(diff),
            notes=_notes(diff.warnings),
            side_notes=[(title, _notes(diff_view.side_warnings(diff, side))) for title, side in sides(diff)],
            **_headline(diff),
            **_configuration(diff),
            **_where_time_goes(diff),
            **_memory(diff),
            **_communication(diff),
            **_steps(diff),
            **_words(diff),
            ops=op_table(diff),
            matched=diff_view.matched_text(diff),
        )
    )


def _drawing(draw: Callable[..., str], figure: Any, name: str) -> Drawing:
    """Both widths of a figure; it escapes its own text."""
    return Drawing(Markup(draw(figure, WIDE, f"{name}-wide")), Markup(draw(figure, NARROW, f"{name}-narrow")))


def _notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    if len(notes) <= MOST_NOTES:
        return tuple(notes)
    hidden = len(notes) - MOST_NOTES
    return (*notes[:MOST_NOTES], Note("more", f"{hidden} more warnings are in the JSON output"))


def _headline(diff: Diff) -> dict[str, Any]:
    headline = diff_view.headline_table(diff)
    figure = waterfall(diff)
    return {
        "cards": cards(diff),
        "headline": replace(headline, caption=None),
        "noise": headline.caption,
        "waterfall": figure,
        "waterfall_drawing": _drawing(waterfall_svg, figure, "waterfall"),
        "contributions": html_tables.marked(diff_tables.contributions_table(diff, MOST_ROWS), diff),
    }


def _configuration(diff: Diff) -> dict[str, Any]:
    groups = html_tables.knob_groups(diff) if diff.knobs else []
    return {
        "knob_groups": groups[:MOST_EFFECTS],
        "knob_groups_hidden": max(len(groups) - MOST_EFFECTS, 0),
        "knobs": capped(knobs_view.knobs_table(diff, all_keys=True), MOST_ROWS) if diff.knobs else None,
        "configured": all(html_tables.configured(side) for _, side in sides(diff)),
    }


def _where_time_goes(diff: Diff) -> dict[str, Any]:
    def table(found: Table) -> Table:
        return capped(html_tables.marked(found, diff), MOST_ROWS)

    return {
        "phases": html_tables.phases_table(diff, MOST_FAMILIES),
        "counts": html_kernels.counts_table(diff),
        "kernels": replace(table(side_tables.kernels_table(diff)), title="Time and share of the peak"),
        "tiles": capped(html_kernels.tiles_table(diff), MOST_ROWS),
        "reruns": table(side_tables.rerun_table(diff)),
        "rerun_texts": [(title, rerun_text(side)) for title, side in sides(diff)],
    }


def _memory(diff: Diff) -> dict[str, Any]:
    blocks = memory_diff.memory_blocks(diff, 0)
    found = diff.memory
    by_group = {row.group: (row.baseline_bytes, row.optimized_bytes) for row in found.groups} if found else {}
    tables = [block for block in blocks if isinstance(block, Table)]
    groups = (
        html_tables.with_bars(tables[0], [by_group.get(row[0].text) for row in tables[0].rows]) if (tables) else None
    )
    figure = memory_figure(diff)
    return {
        "memory_lines": [block.text for block in blocks if isinstance(block, Line)],
        "memory_groups": groups,
        "memory_tensors": replace(tables[1], rows=tables[1].rows[:MOST_TENSORS]) if len(tables) > 1 else None,
        "memory_count": len(tables[1].rows) if len(tables) > 1 else 0,
        "memory_all_tensors": capped(tables[1], MOST_ROWS)
        if len(tables) > 1 and len(tables[1].rows) > MOST_TENSORS
        else None,
        "memory_figure": figure,
        "memory_drawing": _drawing(memory_svg, figure, "hbm") if figure else None,
        "memory_legend": _legend(figure) if figure else [],
    }


def _legend(figure: MemoryFigure) -> list[tuple[Markup, str, str]]:
    """(tone, letter, phase) of what stands in the strips below the curves."""
    return [
        (Markup(swatch(figure, phase, f"tone-{index}")), letter, phase)
        for index, (phase, letter) in enumerate(figure.phases.items())
    ]


def _communication(diff: Diff) -> dict[str, Any]:
    blocks = comm_blocks(diff, 0)
    tables = [capped(html_tables.marked(block, diff), MOST_ROWS) for block in blocks if isinstance(block, Table)]
    return {
        "communication": tables[0] if tables else None,
        "communication_lines": [block.text for block in blocks if isinstance(block, Line)],
    }


def _steps(diff: Diff) -> dict[str, Any]:
    figure = steps_figure(diff)
    return {
        "steps_figure": figure,
        "steps_drawing": _drawing(steps_svg, figure, "steps") if figure else None,
    }


def _words(diff: Diff) -> dict[str, Any]:
    def first(items: Items, most: int) -> Items:
        return replace(items, items=items.items[:most])

    return {
        "findings": first(findings_view.findings_items(diff), MOST_NOTES),
        "suggestions": first(findings_view.suggestions_items(diff), MOST_SUGGESTIONS),
    }
