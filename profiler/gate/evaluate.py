"""Whether a pair keeps its thresholds.

A change within the noise counts as no change, 0: it hits no limit on getting worse, and it does not make up for a gain
that is asked for (``mfu<+1%``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from profiler.gate.grammar import Rule
from profiler.gate.metrics import METRICS, UNITS, Figures, compiled
from profiler.results import Diff, Note
from profiler.results_check import HIT, PASSED, UNKNOWN, WITHIN_NOISE, Check, CheckRow

FAIL, WARN = "fail", "warn"


def check(diff: Diff, fail_on: Sequence[Rule], warn_on: Sequence[Rule] = (), *, allow_unknown: bool = False) -> Check:
    """Holds a diff against thresholds.

    Args:
        diff: the pair.
        fail_on: a hit fails the check, and so does a metric that this pair does not tell.
        warn_on: a hit is only said.
        allow_unknown: let pass what cannot be checked.
    """
    rows = (*(_row(diff, rule, FAIL) for rule in fail_on), *(_row(diff, rule, WARN) for rule in warn_on))
    hits = sum(row.verdict == HIT and row.action == FAIL for row in rows)
    warned = sum(row.verdict == HIT and row.action == WARN for row in rows)
    unknown = sum(row.verdict == UNKNOWN for row in rows)
    unchecked = sum(row.verdict == UNKNOWN and row.action == FAIL for row in rows)
    passed = not hits and (allow_unknown or not unchecked)
    return Check(
        passed=passed,
        exit_code=0 if passed else 1,
        verdict=_verdict(len(rows), passed, hits, warned, unknown),
        baseline=diff.baseline.label or diff.baseline.file,
        optimized=diff.optimized.label or diff.optimized.file,
        kinds=(diff.baseline.kind, diff.optimized.kind),
        comparable=diff.comparable,
        normalization=diff.normalization,
        diff=diff.verdict,
        allow_unknown=allow_unknown,
        hits=hits,
        warned=warned,
        unknown=unknown,
        rows=rows,
        warnings=(*diff.warnings, *_notes(diff)),
    )


def failure(result: Check) -> str:
    """Why a check fails, in a line."""
    hit = [row.expression for row in result.rows if row.verdict == HIT and row.action == FAIL]
    unknown = [row.expression for row in result.rows if row.verdict == UNKNOWN and row.action == FAIL]
    parts = [f"hit: {', '.join(hit)}"] if hit else []
    if unknown and not result.allow_unknown:
        parts.append(f"cannot be checked: {', '.join(unknown)} (--allow-unknown lets them pass)")
    return f"{result.baseline} against {result.optimized}: " + "; ".join(parts)


def _row(diff: Diff, rule: Rule, action: str) -> CheckRow:
    metric = METRICS[rule.metric]
    counted = rule.unit == "" and metric.calls is not None
    figures = metric.calls(diff) if counted and metric.calls else metric.of(diff)
    value = None if figures.missing is not None else _value(figures, rule.unit)
    bounds = None
    if value is None:
        verdict, remark = UNKNOWN, figures.missing or ""
    else:
        bounds = _bounds(figures, rule.unit)
        noise = value != 0 and bounds is not None and bounds[0] <= 0 <= bounds[1]
        hit = rule.holds(0.0 if noise else value)
        verdict, remark = HIT if hit else WITHIN_NOISE if noise else PASSED, figures.remark
        if hit and noise:
            remark = "; ".join(filter(None, (remark, "within the noise, which counts as no change")))
    return CheckRow(
        expression=str(rule),
        action=action,
        metric=rule.metric,
        operator=rule.operator,
        threshold=rule.threshold,
        unit=rule.unit,
        baseline=figures.baseline,
        optimized=figures.optimized,
        figure_unit="calls" if counted else metric.figure_unit,
        value=value if value is not None and math.isfinite(value) else None,
        interval=bounds,
        noise=figures.noise,
        verdict=verdict,
        remark=remark if value is None or math.isfinite(value) else "from nothing: there is no percentage",
    )


def _value(figures: Figures, unit: str) -> float:
    base, opt = figures.baseline or 0.0, figures.optimized or 0.0
    if unit != "%":
        return (opt - base) / UNITS[unit]
    if not base:
        return math.copysign(math.inf, opt) if opt else 0.0
    return 100 * (opt - base) / base


def _bounds(figures: Figures, unit: str) -> tuple[float, float] | None:
    if figures.reach is None:
        return None
    size = (figures.baseline or 0.0) / 100 if unit == "%" else UNITS[unit]
    # Of a percentage of nothing only the signs are known.
    low, high = (end / size if size else math.copysign(math.inf, end) if end else 0.0 for end in figures.reach)
    return low, high


def _verdict(count: int, passed: bool, hits: int, warned: int, unknown: int) -> str:
    parts = [f"{hits} hit" if hits else "", f"{warned} to be warned of" if warned else ""]
    parts.append(f"{unknown} that cannot be checked" if unknown else "")
    found = ", ".join(part for part in parts if part) or "none hit"
    return f"{'Passed' if passed else 'Failed'}: of {count} threshold{'s' * (count != 1)} {found}."


def _notes(diff: Diff) -> tuple[Note, ...]:
    notes = []
    if compiled(diff):
        notes.append(
            Note("estimates", "both sides are compiled, not recorded: every time is an estimate, without noise")
        )
    if diff.delta.interval is None and not compiled(diff):
        notes.append(
            Note(
                "noise_unknown",
                "a side has a single sample, so nothing can be said about noise: thresholds apply to the point values",
            )
        )
    return tuple(notes)
