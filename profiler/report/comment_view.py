"""A diff as a comment on a pull request: what a reviewer asks first is open, everything else is folded.

Verdict, key figures with what is known of their noise, the largest causes with their knobs and price, the configuration
that differs; then sections to open. Figures and intervals are those that ``profiler check`` holds against thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from profiler.gate.metrics import METRICS, Figures, compiled
from profiler.report import units
from profiler.report.check_view import change, figure
from profiler.report.comm_view import comm_blocks
from profiler.report.diff_tables import contributions_table, ops_table
from profiler.report.diff_view import DEFAULT_ROWS, estimate_lines, matched_text, noise_text, side_text, side_warnings
from profiler.report.figures import waterfall, waterfall_lines
from profiler.report.findings_view import MOST_FINDINGS, first, suggestions_items
from profiler.report.kernels_diff import kernels_table, tiles_table
from profiler.report.knobs_view import DEFAULT_KNOBS, effects_items, knobs_table
from profiler.report.memory_diff import memory_blocks
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Fold,
    Items,
    Line,
    Notes,
    Preformatted,
    Table,
    capped,
    label,
    limit,
)
from profiler.report.summary_view import impossible, mfu_text
from profiler.report.wording import EQUAL_WORK, sides
from profiler.results import Diff, Finding

MARKER = "<!-- profiler-diff -->"  # a workflow finds its own comment by it
OPEN_KNOBS = 10
PRICE = "price: "
MOST_NAMED = 3  # knobs in a line; the configuration below has them all


def comment_document(diff: Diff, top: int | None = None) -> Document:
    """The diff as blocks.

    Args:
        diff: baseline against optimized.
        top: rows per table; None for the default, 0 for all.
    """
    blocks: list[Block] = [Line(diff.verdict, headline=True)]
    if not diff.comparable:
        blocks.append(Line("Not comparable; compared all the same, as --force asks.", BAD))
    blocks += estimate_lines(diff)
    blocks.append(Notes("Mind", diff.warnings))
    blocks.append(_figures(diff))
    if diff.loss is not None:
        blocks.append(Line(f"Loss: {diff.loss.text}.", BAD if diff.loss.unchanged is False else DIM))
    blocks += _causes(diff)
    blocks += _configuration(diff, top)
    blocks += _sections(diff, top)
    return Document("profiler diff", tuple(blocks), marker=MARKER)


# --- the key figures -------------------------------------------------------------------------------------------------

# metric of the gate, what it is called, the unit of its change, whether less is better
_KEYS = (
    ("throughput", "throughput", "%", False),
    ("mfu", "MFU", "pt", False),
    ("hbm_peak", "HBM peak, static", "GiB", True),
    ("remat", "re-run calls", "", True),
    ("exposed_comm", "exposed communication", "ms", True),
    ("idle", "idle", "ms", True),
    ("loss", "loss, last step", "%", True),
)


_STRONG = ("step_time", "mfu")


def _figures(diff: Diff) -> Table:
    unit = diff.baseline.steps.unit
    work = EQUAL_WORK.get(diff.normalization)
    other = work is not None and not math.isclose(diff.delta.optimized_time_ps, diff.optimized.steps.mean_ps)
    rows = [_time_row(diff, f"{unit} time (mean)", judged=not other)]
    if other:
        rows.append(_work_row(diff, f"time for equal {work}"))
    for metric, title, shown, lower in _KEYS:
        found = (METRICS[metric].calls or METRICS[metric].of)(diff)
        told = found.missing is None or None not in (found.baseline, found.optimized)
        if (told and (found.baseline or found.optimized)) or metric == "mfu":
            rows.append(_row(metric, title, found, shown, lower))
    estimate = " (est.)" if compiled(diff) else ""
    return Table(
        f"Per device and {unit}",
        (
            Column("", numeric=False),
            Column(f"baseline{estimate}"),
            Column(f"optimized{estimate}"),
            Column("change"),
            Column("95 % interval"),
            Column("", numeric=False),
        ),
        tuple(rows),
        caption=noise_text(diff),
    )


def _row(metric: str, title: str, found: Figures, unit: str, lower: bool) -> tuple[Cell, ...]:
    base, opt = found.baseline, found.optimized
    kind = "calls" if metric == "remat" else METRICS[metric].figure_unit
    shown = [_impossible(metric, figure(value, kind), value) for value in (base, opt)]
    if base is None or opt is None or not units.known(base) or not units.known(opt):
        return label(title), *map(label, shown), label(units.UNKNOWN), label(""), label("n/a")
    texts = ("0", "") if opt == base else (_change_text(found, kind, unit), _reach(found, kind))
    tone = STRONG if metric in _STRONG else ""
    return label(title, tone), *map(label, shown), *map(label, texts), label(_word(found, lower))


def _change_text(found: Figures, kind: str, unit: str) -> str:
    base = found.baseline or 0.0
    value = (found.optimized or 0.0) - base
    share = f" ({units.change((base + value) / base)})" if base else ""
    if kind == "ps":
        scale = _scale(found)
        return f"{scale.delta(value)} {scale.unit}{share}"
    if kind == "bytes":
        scale = units.byte_scale((value,))
        return f"{scale.delta(value)} {scale.unit}{share}"
    if kind == "fraction":
        return f"{units.points(100 * value)} points"
    if kind == "calls":
        return ("+" if value > 0 else "") + units.number(value)
    return units.change((base + value) / base) if base else change(value, unit)


def _scale(found: Figures) -> units.Scale:
    """One unit for a change in time and its interval."""
    return units.time_scale(((found.optimized or 0.0) - (found.baseline or 0.0), *(found.reach or ())))


def _reach(found: Figures, kind: str) -> str:
    """The interval of the change, in the unit that the change is shown in; a word where there is none."""
    if found.reach is None:
        return {"none": "", "estimate": "estimate"}.get(found.noise, "noise unknown")
    low, high = found.reach
    if kind == "ps":
        scale = _scale(found)
        return f"{scale.delta(low)} to {scale.delta(high)} {scale.unit}"
    if kind == "fraction":
        return f"{units.points(100 * low)} to {units.points(100 * high)} points"
    base = found.baseline or 0.0
    return f"{units.change(1 + low / base)} to {units.change(1 + high / base)}" if base else ""


def _word(found: Figures, lower: bool) -> str:
    value = (found.optimized or 0.0) - (found.baseline or 0.0)
    if found.missing is not None:
        return "unclear"
    if not value:
        return "same"
    if found.reach is not None and found.reach[0] <= 0 <= found.reach[1]:
        return "~ within the noise"
    return "better" if (value < 0) == lower else "⚠ worse"


def _impossible(metric: str, text: str, value: float | None) -> str:
    return f"⚠ {text} (impossible)" if metric == "mfu" and impossible(value) else text


def _time_row(diff: Diff, title: str, *, judged: bool) -> tuple[Cell, ...]:
    """The step as it is; with another amount of work in it a longer one may be the better one."""
    found = METRICS["step_time"].of(diff)
    cells = _row("step_time", title, found, "%", True)
    return cells if judged else (label(title), *cells[1:4], label(""), label(""))


def _work_row(diff: Diff, title: str) -> tuple[Cell, ...]:
    base, opt = diff.delta.baseline_time_ps, diff.delta.optimized_time_ps
    bounds = None if compiled(diff) else diff.delta.interval
    reach = (base * (bounds[0] - 1), base * (bounds[1] - 1)) if bounds is not None else None
    noise = "estimate" if compiled(diff) else "interval" if reach else "unknown"
    found = Figures(base, opt, noise, reach, missing=METRICS["step_time"].of(diff).missing)
    cells = _row("step_time", title, found, "%", True)
    if diff.delta.band is not None:
        low, high = (units.change(end) for end in diff.delta.band)
        cells = (*cells[:4], label(f"{low} to {high} (band of the estimate)"), cells[5])
    return cells


# --- causes and configuration ----------------------------------------------------------------------------------------


def _causes(diff: Diff) -> list[Block]:
    if not diff.findings:
        return []
    hidden = len(diff.findings) - MOST_FINDINGS
    items = tuple((Cell(_cause(finding)), ()) for finding in diff.findings[:MOST_FINDINGS])
    return [Items("Top causes", items, f"{hidden} smaller (--format text shows more)" if hidden > 0 else None)]


def _cause(finding: Finding) -> str:
    """One line: what, how much, through which knobs, for which price."""
    parts = []
    if finding.mfu_points is not None:
        parts.append(f"{units.points(finding.mfu_points)} MFU points")
    elif finding.time_ps is not None:
        scale = units.time_scale((finding.time_ps,))
        parts.append(f"{scale.delta(finding.time_ps)} {scale.unit}")
    if finding.confidence != "high":
        parts.append(f"{finding.confidence} confidence")
    unnamed = [knob for knob in finding.knobs if knob not in finding.title]
    if unnamed and len(unnamed) <= MOST_NAMED:
        parts.append(f"knobs: {', '.join(unnamed)}")
    parts += [text for text in finding.evidence if text.startswith(PRICE)]
    return f"{finding.title} ({'; '.join(parts)})" if parts else finding.title


def _configuration(diff: Diff, top: int | None) -> list[Block]:
    if not diff.knobs:
        known = all((side.run_info or {}).get("config") for _, side in sides(diff))
        return [Line("The configurations are the same: no knob explains a change.", DIM)] if known else []
    table = knobs_table(diff)
    if len(table.rows) <= OPEN_KNOBS:
        return [table]
    most = limit(top, DEFAULT_KNOBS)
    every = knobs_table(diff, all_keys=most is None)
    rest = every if most is None else capped(every, most, ALL_ROWS)
    return [
        capped(table, OPEN_KNOBS, "below"),
        Fold("The whole configuration that differs", (rest,)),
    ]


# --- sections to open ------------------------------------------------------------------------------------------------


def _sections(diff: Diff, top: int | None) -> list[Block]:
    rows = limit(top, DEFAULT_ROWS)
    found: list[Block] = []
    if any(item.time_ps or item.mfu_points for item in diff.contributions):
        lines = tuple(waterfall_lines(waterfall(diff)))
        split = contributions_table(diff, rows)
        found.append(Fold("Where the change comes from", (Preformatted("Waterfall", lines), split)))
    if diff.effects:
        found.append(Fold("What the knobs did", (effects_items(diff),)))
    if diff.suggestions:
        found.append(Fold("What to try next", (first(suggestions_items(diff), rows),)))
    kernels = (kernels_table(diff), tiles_table(diff))
    sections = (
        ("Kernels", [table if rows is None else capped(table, rows, ALL_ROWS) for table in kernels]),
        ("HBM", memory_blocks(diff, top)),
        ("Communication and transfers", comm_blocks(diff, top)),
    )
    for title, blocks in sections:
        tables = tuple(_tables(blocks))
        found += [Fold(title, tables)] if tables else []
    if diff.ops.height and (diff.ops["delta_time_ps"] != 0).any():
        found.append(
            Fold("Ops that changed most", (replace(ops_table(diff, rows), folded=False), Line(matched_text(diff), DIM)))
        )
    facts = [(side, label(side_text(summary))) for side, summary in sides(diff)]
    facts += [(f"{side} MFU", label(mfu_text(summary))) for side, summary in sides(diff)]
    warned = [Notes(f"Warnings about the {side} recording", side_warnings(diff, each)) for side, each in sides(diff)]
    count = sum(len(notes.notes) for notes in warned)
    title = "Recordings" + (f" and {count} warning{'s' * (count != 1)} about them" if count else "")
    found.append(Fold(title, (Facts(tuple(facts)), *warned)))
    return found


def _tables(blocks: Iterable[Block]) -> Iterable[Table]:
    """The tables among some blocks, open: the section around them is folded."""
    return (replace(block, folded=False) for block in blocks if isinstance(block, Table) and block.rows)
