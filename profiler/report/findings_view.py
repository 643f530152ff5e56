"""Findings and what to try next, in words."""

from __future__ import annotations

from profiler.report import units
from profiler.report.model import STRONG, Cell, Items
from profiler.results import Diff, Finding

MOST_FINDINGS = 5
MOST_EVIDENCE = 4
MOST_NAMED = 6  # knobs of a finding; more of them are in the table


def first(findings: Items, rows: int | None) -> Items:
    """The largest findings with their first evidence; ``--top 0`` shows all of both."""
    if rows is None:
        return findings
    hidden = len(findings.items) - MOST_FINDINGS
    items = tuple((head, details[:MOST_EVIDENCE]) for head, details in findings.items[:MOST_FINDINGS])
    more = f"{hidden} more (--top 0 shows all)" if hidden > 0 else None
    return Items(findings.title, items, more)


def findings_items(diff: Diff) -> Items:
    """Causes with their evidence."""
    return Items("Findings", _items(diff.findings))


def suggestions_items(diff: Diff) -> Items:
    """What the optimized side's own figures leave to gain."""
    return Items("What to try next on the optimized side: each by itself, gains at most", _items(diff.suggestions))


def _items(findings: tuple[Finding, ...]) -> tuple[tuple[Cell, tuple[str, ...]], ...]:
    items = []
    for finding in findings:
        effect = [f"{units.points(finding.mfu_points)} MFU points"] if finding.mfu_points is not None else []
        if finding.time_ps is not None and not effect:
            scale = units.time_scale((finding.time_ps,))
            effect.append(f"{units.fixed(finding.time_ps / scale.divisor, 2, sign=True)} {scale.unit}")
        effect.append(f"{finding.confidence} confidence")
        knobs = (f"knobs: {', '.join(finding.knobs)}",) if 0 < len(finding.knobs) <= MOST_NAMED else ()
        items.append((Cell(f"{finding.title} ({', '.join(effect)})", STRONG), (*knobs, *finding.evidence)))
    return tuple(items)
