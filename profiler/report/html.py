"""A diff as one HTML file: no network, readable without JavaScript, quiet about hostile names.

Everything of the trace passes jinja2's autoescaping as text. The page's policy allows no request at all and only the
one script whose hash it names, so nothing else could run even if something slipped through.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from profiler.report import diff_tables, diff_view, findings_view, knobs_view, side_tables, units
from profiler.report.figures import waterfall, waterfall_svg
from profiler.report.json_ import plain
from profiler.report.model import BAD, GOOD, Cell, Table, capped
from profiler.report.summary_view import devices_text, mfu_text, steps_text
from profiler.report.wording import basis, sides
from profiler.results import Diff, Note, Summary

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

MOST_OPS = 2000
OPS_BUDGET_BYTES = 1_500_000  # the whole page stays under 2.5 MB
MOST_ROWS = 80
MOST_NOTES = 40
MOST_EFFECTS = 30
MOST_SUGGESTIONS = 10
MOST_FACTS = 60
NAME_WIDTH = 120
TITLE_WIDTH = 300
SENTENCE_WIDTH = 600


@dataclass(frozen=True, slots=True)
class OpRow:
    """One row of the op table: what is shown, and the raw figures that sorting uses."""

    match: str
    baseline: str | None
    optimized: str | None
    where: str
    title: str
    cells: tuple[Cell, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One headline figure."""

    title: str
    baseline: str
    optimized: str
    change: str
    tone: str
    word: str


def diff_page(diff: Diff) -> str:
    """The whole page."""
    environment = _environment()
    script = (TEMPLATES / "report.js").read_text("utf-8")
    figure = waterfall(diff)
    rows, hidden = _op_rows(diff)
    headline = diff_view.headline_table(diff)
    suggestions = findings_view.suggestions_items(diff)
    return environment.get_template(
        "report.html"
    ).render(
        script=Markup(script),  # ours, and the policy admits it by its hash only
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup((TEMPLATES / "report.css").read_text("utf-8")),
        diff=diff,
        title=" → ".join(units.shorten(side.label or side.file, 60) for _, side in sides(diff)),
        sides=[_side(title, side) for title, side in sides(diff)],
        compiled=[title for title, side in sides(diff) if side.kind == "compiled"],
        notes=_notes(diff.warnings),
        side_notes=[(title, _notes(diff_view.side_warnings(diff, side))) for title, side in sides(diff)],
        cards=_cards(headline),
        headline=replace(headline, caption=None),
        noise=headline.caption,
        knobs=capped(knobs_view.knobs_table(diff, all_keys=True), MOST_ROWS) if diff.knobs else None,
        effects=knobs_view.effects_items(diff).items[:MOST_EFFECTS],
        figure=figure,
        wide=Markup(waterfall_svg(figure, 1000, "waterfall-wide")),  # escapes its own text
        narrow=Markup(waterfall_svg(figure, 360, "waterfall-narrow")),
        contributions=diff_tables.contributions_table(diff, MOST_ROWS),
        findings=findings_view.findings_items(diff).items[:MOST_NOTES],
        suggestions=replace(suggestions, items=suggestions.items[:MOST_SUGGESTIONS]),
        families=capped(side_tables.families_table(diff), MOST_ROWS),
        kernels=capped(side_tables.kernels_table(diff), MOST_ROWS),
        reruns=capped(side_tables.rerun_table(diff), MOST_ROWS),
        ops=rows,
        op_columns=_op_columns(diff),
        matches=_match_counts(rows),
        hidden=hidden,
        matched=diff_view.matched_text(diff),
        basis=basis(diff),
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["name"] = lambda text: units.shorten(str(text), NAME_WIDTH)
    environment.filters["sentence"] = lambda text: units.shorten(str(text), SENTENCE_WIDTH)
    return environment


def _notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    if len(notes) <= MOST_NOTES:
        return tuple(notes)
    hidden = len(notes) - MOST_NOTES
    return (*notes[:MOST_NOTES], Note("more", f"{hidden} more warnings are in the JSON output"))


def _side(title: str, side: Summary) -> dict[str, Any]:
    facts = [
        ("file", side.file),
        ("label", side.label),
        ("kind", "compiled: every time is an estimate" if side.kind == "compiled" else side.kind),
        ("devices", devices_text(side)),
        (f"{side.steps.unit}s", steps_text(side)),
        ("MFU", mfu_text(side)),
    ]
    for key, value in list((side.run_info or {}).items())[:MOST_FACTS]:
        text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
        facts.append((units.shorten(str(key), 60), units.shorten(text, 400)))
    return {"title": title, "facts": facts}


def _cards(headline: Table) -> list[Card]:
    """The four figures that decide: MFU, the time that is judged, throughput, memory; else what else is known."""
    by_title = {row[0].text: row for row in headline.rows}
    times = [title for title in by_title if "time" in title]
    judged = next((title for title in times if by_title[title][3].tone), times[-1])
    memory = next(title for title in by_title if title.startswith("HBM peak"))
    wanted = ["MFU", judged, "throughput", memory, "busy", "re-run calls"]
    known = [title for title in wanted if title == "MFU" or by_title[title][3].text != units.UNKNOWN]
    words = {GOOD: "better", BAD: "worse"}
    cards = []
    for title in known[:4]:
        _, base, opt, change = by_title[title]
        # "−1.005 ms (−23.2 %)": the difference is plain from both sides, the share is what counts.
        text = change.text.partition("(")[2].rstrip(")") if "(" in change.text else change.text
        text = f"~ {text}" if change.text.startswith("~") else text
        cards.append(Card(title, base.text, opt.text, text, change.tone, words.get(change.tone, "")))
    return cards


def _op_columns(diff: Diff) -> tuple[str, ...]:
    scales = diff_tables.op_scales(diff.ops.head(MOST_OPS).to_dicts())
    time, mean = (scale.unit for scale in scales)
    return f"baseline {time}", f"optimized {time}", f"Δ {time}", "calls", f"mean {mean}"


def _op_rows(diff: Diff) -> tuple[list[OpRow], str | None]:
    """As many rows as the page's budget holds, and what is left out."""
    records = diff.ops.head(MOST_OPS).to_dicts()
    time, mean = diff_tables.op_scales(records)
    rows: list[OpRow] = []
    used = 0
    for record in records:
        row = _op_row(record, time, mean)
        # As the page will hold it: escaped, in UTF-8; the rest of a row is tags and figures.
        used += 480 + sum(
            len(escape(text).encode()) for text in (row.baseline, row.optimized, row.where, row.title) if text
        )
        if used > OPS_BUDGET_BYTES:
            break
        rows.append(row)
    hidden = diff.ops.height - len(rows)
    if not hidden:
        return rows, None
    rest = float(diff.ops["delta_time_ps"].tail(hidden).sum() or 0.0)
    return rows, f"{hidden} more rows, net {time.delta(rest)} {time.unit}, are in the JSON and CSV output"


def _op_row(record: dict[str, Any], time: units.Scale, mean: units.Scale) -> OpRow:
    cells = diff_tables.op_cells(record, time, mean)
    base, opt = record["baseline_op"], record["optimized_op"]
    details = [record.get("name_stack"), record.get("source"), record.get("evidence")]
    title = "\n".join(units.shorten(str(text), TITLE_WIDTH) for text in details if text)
    values = (
        (record["baseline_time_ps"] or 0.0) / time.divisor,
        (record["optimized_time_ps"] or 0.0) / time.divisor,
        (record["delta_time_ps"] or 0.0) / time.divisor,
        record["optimized_calls"] or record["baseline_calls"] or 0.0,
        (record["optimized_mean_ps"] or record["baseline_mean_ps"] or 0.0) / mean.divisor,
    )
    return OpRow(
        match=str(record["match"]),
        baseline=units.shorten(base, NAME_WIDTH) if base else None,
        optimized=units.shorten(opt, NAME_WIDTH) if opt and opt != base else None,
        where=units.shorten(cells[1].under or "", NAME_WIDTH),
        title=title,
        cells=cells[2:],
        values=tuple(float(f"{value:.6g}") for value in values),
    )


def _match_counts(rows: Sequence[OpRow]) -> list[tuple[str, int]]:
    order = list(diff_tables.MATCH_TONES)
    counts = dict.fromkeys(order, 0)
    for row in rows:
        counts[row.match] = counts.get(row.match, 0) + 1
    return [(match, count) for match, count in counts.items() if count]
