"""What ``profiler diff`` says: the verdict first, then what may make it wrong, then the figures that prove it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from profiler.report import units
from profiler.report.figures import contribution_label, waterfall, waterfall_lines
from profiler.report.model import (
    BAD,
    DIM,
    GOOD,
    PLAIN,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Items,
    Line,
    Notes,
    Preformatted,
    Table,
    capped,
    delta,
    label,
    limit,
    name,
)
from profiler.report.summary_view import ESTIMATE, devices_text, impossible, memory_peaks, mfu_text, steps_text
from profiler.results import Contribution, Diff, Note, Summary

DEFAULT_ROWS = 15
MATCH_TONES = {"same": DIM, "changed": PLAIN, "replaced": STRONG, "added": BAD, "removed": GOOD}


@dataclass(frozen=True, slots=True)
class Basis:
    """How times of a diff are counted: ``factor`` turns them into times ``per`` something a reader can picture."""

    per: str
    factor: float = 1.0


def basis(diff: Diff) -> Basis:
    """A time per FLOP is far below a picosecond; per TFLOP it is the same statement in milliseconds."""
    if diff.normalization == "flop":
        return Basis("model TFLOP", 1e12)
    return Basis(diff.normalization)


def diff_document(diff: Diff, top: int | None = None) -> Document:
    """The diff as blocks.

    Args:
        diff: baseline against optimized.
        top: rows per table; None for the default, 0 for all.
    """
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Line(diff.verdict, headline=True)]
    if not diff.comparable:
        blocks.append(Line("Not comparable; compared all the same, as --force asks.", BAD))
    for side, summary in sides(diff):
        if summary.kind == "compiled":
            blocks.append(Line(f"{side} is {ESTIMATE}.", BAD))
    blocks.append(Notes("Before you trust it", diff.warnings))
    blocks.append(Facts(tuple((side, name(side_text(summary))) for side, summary in sides(diff))))
    blocks.append(headline_table(diff))
    blocks.append(Preformatted("Waterfall", tuple(waterfall_lines(waterfall(diff)))))
    blocks.append(contributions_table(diff, rows))
    blocks.append(ops_table(diff, rows))
    blocks.append(Line(matched_text(diff), DIM))
    if diff.knobs:
        knobs = knobs_table(diff)
        blocks.append(knobs if top is None or rows is None else capped(knobs, rows))
    if diff.findings:
        blocks.append(findings_items(diff))
    for side, summary in sides(diff):
        blocks.append(Notes(f"Warnings about the {side} recording", side_warnings(diff, summary), folded=True))
    return Document("profiler diff", tuple(blocks))


def sides(diff: Diff) -> tuple[tuple[str, Summary], tuple[str, Summary]]:
    """Both recordings with the word for each."""
    return ("baseline", diff.baseline), ("optimized", diff.optimized)


def side_text(summary: Summary) -> str:
    """One recording in one line."""
    text = summary.file if summary.label in ("", summary.file) else f"{summary.label} ({summary.file})"
    return f"{text}: {devices_text(summary)}; {summary.steps.unit}s: {steps_text(summary)}"


def side_warnings(diff: Diff, summary: Summary) -> tuple[Note, ...]:
    """Warnings of one recording that the diff has not said already."""
    return tuple(note for note in summary.warnings if note not in diff.warnings)


def headline_table(diff: Diff) -> Table:
    """The figures of both sides: what a reviewer asks first."""
    base, opt = diff.baseline, diff.optimized
    rows = [_time_row(f"{base.steps.unit} time (mean)", base.steps.mean_ps, opt.steps.mean_ps)]
    how = basis(diff)
    if diff.normalization not in ("step", "run"):
        row = _time_row(
            f"time per {how.per}", diff.delta.baseline_time_ps * how.factor, diff.delta.optimized_time_ps * how.factor
        )
        # With another batch size a longer step may be the better one: only the time per unit of work is judged.
        rows = [tuple(Cell(cell.text) for cell in rows[0]), row]
    rows.append(
        (
            label("MFU", STRONG),
            _mfu_cell(base),
            _mfu_cell(opt),
            delta(_points_text(diff.delta.mfu_points), diff.delta.mfu_points, lower_is_better=False),
        )
    )
    if base.hfu is not None or opt.hfu is not None:
        rows.append(_percent_row("HFU (re-runs counted)", base.hfu, opt.hfu))
    ratio = diff.delta.throughput_ratio
    rows.append(
        (
            label("throughput"),
            label("1×" if ratio is not None else units.UNKNOWN),
            label(f"{units.fixed(ratio, 3)}×" if ratio is not None and units.known(ratio) else units.UNKNOWN),
            delta(units.change(ratio), None if ratio is None else ratio - 1, lower_is_better=False),
        )
    )
    rows.append(_percent_row("busy", base.busy_fraction, opt.busy_fraction))
    rows.extend(_memory_rows(diff))
    rows.append(_reruns_row(base, opt))
    return Table(
        f"Per device and {base.steps.unit}",
        (
            Column("", numeric=False),
            Column(_side_title("baseline", base)),
            Column(_side_title("optimized", opt)),
            Column("delta"),
        ),
        tuple(rows),
        caption=noise_text(diff),
    )


def _side_title(side: str, summary: Summary) -> str:
    return f"{side} (est.)" if summary.kind == "compiled" else side


def _time_row(title: str, base: float, opt: float) -> tuple[Cell, ...]:
    scale = units.time_scale((base, opt))
    text = f"{scale.delta(opt - base)} {scale.unit} ({units.change(opt / base if base else None)})"
    return (
        label(title, STRONG),
        label(f"{scale.show(base)} {scale.unit}"),
        label(f"{scale.show(opt)} {scale.unit}"),
        delta(text, opt - base),
    )


def _mfu_cell(summary: Summary) -> Cell:
    if impossible(summary.mfu):
        return label(f"{units.percent(summary.mfu, 2)} (impossible)", BAD)
    return label(units.percent(summary.mfu, 2), STRONG)


def _points_text(value: float | None) -> str:
    return f"{units.points(value)} points" if value is not None else units.UNKNOWN


def _percent_row(title: str, base: float | None, opt: float | None) -> tuple[Cell, ...]:
    change = (opt - base) * 100 if base is not None and opt is not None else None
    return label(title), label(units.percent(base)), label(units.percent(opt)), label(_points_text(change))


def _memory_rows(diff: Diff) -> list[tuple[Cell, ...]]:
    rows = []
    pairs = zip(memory_peaks(diff.baseline.memory), memory_peaks(diff.optimized.memory), strict=True)
    for (kind, base), (_, opt) in pairs:
        if base is None and opt is None:
            continue
        scale = units.byte_scale((base, opt))
        cells = [
            label(f"{scale.show(value)} {scale.unit}" if value is not None else units.UNKNOWN) for value in (base, opt)
        ]
        change = opt - base if base is not None and opt is not None else None
        text = f"{scale.delta(change)} {scale.unit}" if change is not None else units.UNKNOWN
        rows.append((label(f"HBM peak, {kind}"), *cells, delta(text, change)))
    if not rows:
        rows.append((label("HBM peak"), label(units.UNKNOWN), label(units.UNKNOWN), label(units.UNKNOWN)))
    return rows


def _reruns_row(base: Summary, opt: Summary) -> tuple[Cell, ...]:
    before, after = base.remat.rerun_calls_per_step, opt.remat.rerun_calls_per_step
    change = after - before
    text = ("+" if change > 0 else "") + units.number(change)
    return label("re-run calls"), label(units.number(before)), label(units.number(after)), delta(text, change)


def noise_text(diff: Diff) -> str:
    """Whether the change is more than noise, in benchstat's manner: "~" is no significant change."""
    if diff.delta.significant is None:
        return "noise unknown: too few samples to tell whether the change is significant"
    text = "significant" if diff.delta.significant else "~ not significant: within the noise"
    if diff.delta.interval is not None:
        low, high = (units.change(end) for end in diff.delta.interval)
        text += f"; interval of the time change {low} to {high}"
    return text


def contributions_table(diff: Diff, rows: int | None) -> Table:
    """The exact split of the delta, largest part first; the last rows sum what is not shown and everything."""
    how, in_points = basis(diff), diff.delta.mfu_points is not None
    ordered = sorted(diff.contributions, key=lambda item: -abs(weight(item, in_points)))
    shown, hidden = ordered[:rows], ordered[rows:] if rows is not None else []
    times = [value * how.factor for item in ordered for value in (item.baseline_time_ps, item.optimized_time_ps)]
    scale = units.time_scale(times)
    parts = [_contribution_row(item, scale, how, in_points) for item in shown]
    if hidden:
        parts.append(_sum_row(f"{len(hidden)} smaller", hidden, scale, how, in_points, DIM))
    gain = ("MFU points", "by calls", "by cost/call") if in_points else ("by calls", "by cost/call")
    return Table(
        "What the change is made of" + (", in MFU points" if in_points else ", in time"),
        (
            Column("family · phase", numeric=False),
            Column(f"base {scale.unit}"),
            Column(f"opt {scale.unit}"),
            Column(f"Δ {scale.unit}"),
            Column("calls"),
            *(Column(title) for title in gain),
        ),
        tuple(parts),
        total=_sum_row("sum = delta", ordered, scale, how, in_points, STRONG),
        caption=f"exclusive time per device and {how.per}; {_convention(diff)}",
    )


def _convention(diff: Diff) -> str:
    if diff.delta.mfu_points is not None:
        return "points sum to the MFU delta exactly"
    return f"in time, since MFU is unknown ({mfu_text(diff.baseline).removeprefix('n/a: ')})"


def weight(item: Contribution, in_points: bool) -> float:
    """The size of a contribution in the unit of the split."""
    return (item.mfu_points or 0.0) if in_points else item.time_ps


def _contribution_row(item: Contribution, scale: units.Scale, how: Basis, in_points: bool) -> tuple[Cell, ...]:
    change = item.optimized_time_ps - item.baseline_time_ps
    return (
        name(contribution_label(item)),
        label(scale.show(item.baseline_time_ps * how.factor)),
        label(scale.show(item.optimized_time_ps * how.factor)),
        delta(scale.delta(change * how.factor), change),
        label(pair(item.baseline_calls, item.optimized_calls)),
        *_split_cells(item.mfu_points, item.calls_points, item.per_call_points, item, scale, how, in_points),
    )


def _split_cells(
    points: float | None,
    calls: float | None,
    per_call: float | None,
    item: Contribution | None,
    scale: units.Scale,
    how: Basis,
    in_points: bool,
) -> tuple[Cell, ...]:
    if in_points:
        return tuple(delta(units.points(value), value, lower_is_better=False) for value in (points, calls, per_call))
    times = (item.calls_time_ps, item.per_call_time_ps) if item else (calls or 0.0, per_call or 0.0)
    return tuple(delta(scale.delta(value * how.factor), value) for value in times)


def _sum_row(
    title: str, items: Iterable[Contribution], scale: units.Scale, how: Basis, in_points: bool, tone: str
) -> tuple[Cell, ...]:
    items = list(items)
    base, opt = (sum(item.baseline_time_ps for item in items), sum(item.optimized_time_ps for item in items))
    if in_points:
        calls = sum(item.calls_points or 0.0 for item in items)
        per_call = sum(item.per_call_points or 0.0 for item in items)
    else:
        calls, per_call = sum(item.calls_time_ps for item in items), sum(item.per_call_time_ps for item in items)
    points = sum(item.mfu_points or 0.0 for item in items)
    return (
        label(title, tone),
        label(scale.show(base * how.factor), tone),
        label(scale.show(opt * how.factor), tone),
        delta(scale.delta((opt - base) * how.factor), opt - base),
        label(""),
        *_split_cells(points, calls, per_call, None, scale, how, in_points),
    )


def pair(base: float | None, opt: float | None) -> str:
    """ "96 → 48"; one number where nothing changed; a dash for a side that has none."""
    left, right = ("–" if value is None else units.number(value) for value in (base, opt))
    return left if left == right else f"{left} → {right}"


def ops_table(diff: Diff, rows: int | None) -> Table:
    """The ops that changed most, matched across the two compiles."""
    how, frame = basis(diff), diff.ops
    shown = frame.head(rows if rows is not None else frame.height).to_dicts()
    scale = units.time_scale(
        value * how.factor for row in shown for value in (row["baseline_time_ps"], row["optimized_time_ps"]) if value
    )
    mean = units.time_scale(row[key] for row in shown for key in ("baseline_mean_ps", "optimized_mean_ps"))
    hidden = frame.height - len(shown)
    rest = float(frame["delta_time_ps"].tail(hidden).sum() or 0) * how.factor if hidden else 0.0
    return Table(
        "Ops that changed most",
        (
            Column("match", numeric=False),
            Column("op", numeric=False),
            Column(f"base {scale.unit}"),
            Column(f"opt {scale.unit}"),
            Column(f"Δ {scale.unit}"),
            Column("calls"),
            Column(f"mean {mean.unit}"),
        ),
        tuple(_op_row(row, scale, mean, how) for row in shown),
        caption=f"self time per device and {how.per}; calls and mean time apart",
        more=f"{hidden} more rows, net {scale.delta(rest)} {scale.unit} (--top 0 shows all)" if hidden else None,
        folded=True,
    )


def op_names(row: dict[str, Any]) -> str:
    """One name where both sides agree, else "old → new"."""
    base, opt = row["baseline_op"], row["optimized_op"]
    if base and opt and base != opt:
        return f"{units.shorten(base, 120)} → {units.shorten(opt, 120)}"
    return str(base or opt or "–")


def _op_row(row: dict[str, Any], scale: units.Scale, mean: units.Scale, how: Basis) -> tuple[Cell, ...]:
    base, opt = ((value or 0.0) * how.factor for value in (row["baseline_time_ps"], row["optimized_time_ps"]))
    family = " · ".join(part for part in (row["family"], row["phase"]) if part)
    means = [
        mean.show(value) if value is not None else "–" for value in (row["baseline_mean_ps"], row["optimized_mean_ps"])
    ]
    return (
        label(row["match"], MATCH_TONES.get(row["match"], PLAIN)),
        Cell(op_names(row), name=True, under=family or None),
        label(scale.show(base)),
        label(scale.show(opt)),
        delta(scale.delta(opt - base), opt - base),
        label(pair(row["baseline_calls"], row["optimized_calls"])),
        label(means[0] if means[0] == means[1] else " → ".join(means)),
    )


def matched_text(diff: Diff) -> str:
    """How much of the device time stands opposite something on the other side."""
    return (
        f"Matched or replaced: {units.percent(diff.matched_time_fraction)} of device time "
        f"(baseline {units.percent(diff.baseline_matched_fraction)}, "
        f"optimized {units.percent(diff.optimized_matched_fraction)})."
    )


def knobs_table(diff: Diff) -> Table:
    """What differs between the two configurations."""
    return Table(
        "Configuration that differs",
        (Column("knob", numeric=False), Column("baseline", numeric=False), Column("optimized", numeric=False)),
        tuple(
            (name(knob.key), name(value_text(knob.baseline)), name(value_text(knob.optimized))) for knob in diff.knobs
        ),
    )


def value_text(value: Any) -> str:
    """A configuration value as YAML writes it."""
    if value is None:
        return "(unset)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def findings_items(diff: Diff) -> Items:
    """Causes with their evidence."""
    items = []
    for finding in diff.findings:
        effect = [f"{units.points(finding.mfu_points)} MFU points"] if finding.mfu_points is not None else []
        if finding.time_ps is not None and not effect:
            how = basis(diff)
            scaled = finding.time_ps * how.factor
            effect.append(f"{units.time_scale((scaled,)).delta(scaled)} {units.time_scale((scaled,)).unit}")
        effect.append(f"{finding.confidence} confidence")
        knobs = (f"knobs: {', '.join(finding.knobs)}",) if finding.knobs else ()
        items.append((Cell(f"{finding.title} ({', '.join(effect)})", STRONG), (*knobs, *finding.evidence)))
    return Items("Findings", tuple(items))
