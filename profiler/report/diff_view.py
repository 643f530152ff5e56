"""What ``profiler diff`` says: the verdict first, then what may make it wrong, then the figures that prove it."""

from __future__ import annotations

import math

from profiler.report import units
from profiler.report.comm_view import comm_blocks
from profiler.report.diff_tables import contributions_table, ops_table
from profiler.report.figures import waterfall, waterfall_lines
from profiler.report.findings_view import findings_items, first, suggestions_items
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
    Line,
    Notes,
    Preformatted,
    Table,
    capped,
    delta,
    label,
    limit,
)
from profiler.report.summary_view import ESTIMATE, devices_text, impossible, memory_rows, mfu_text
from profiler.report.wording import EQUAL_WORK, sides
from profiler.results import Diff, Note, Summary

DEFAULT_ROWS = 15


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
    blocks.extend(estimate_lines(diff))
    blocks.append(Notes("Comparability", diff.warnings))
    blocks.append(Facts(_side_facts(diff)))
    blocks.append(headline_table(diff))
    if diff.loss is not None:
        blocks.append(Line(f"Loss: {diff.loss.text}.", BAD if diff.loss.unchanged is False else DIM))
    blocks.append(Preformatted("Waterfall", tuple(waterfall_lines(waterfall(diff)))))
    blocks.append(contributions_table(diff, rows))
    if diff.findings:
        blocks.append(first(findings_items(diff), rows))
    blocks.extend(_knobs(diff, top))
    if diff.suggestions:
        blocks.append(first(suggestions_items(diff), rows))
    blocks.extend(comm_blocks(diff, top))
    blocks.extend(memory_blocks(diff, top))
    kernels = (kernels_table(diff), tiles_table(diff))
    blocks.extend(table if rows is None else capped(table, rows, ALL_ROWS) for table in kernels if table.rows)
    blocks.append(ops_table(diff, rows))
    blocks.append(Line(matched_text(diff), DIM))
    for side, summary in sides(diff):
        blocks.append(Notes(f"Warnings about the {side} recording", side_warnings(diff, summary), folded=True))
    return Document("profiler diff", tuple(blocks))


def estimate_lines(diff: Diff) -> list[Line]:
    """Which sides are compiled, in one line."""
    if diff.baseline.kind == diff.optimized.kind == "compiled":
        return [Line(f"Both sides are {ESTIMATE}.", BAD)]
    return [Line(f"{side} is {ESTIMATE}.", BAD) for side, summary in sides(diff) if summary.kind == "compiled"]


def _knobs(diff: Diff, top: int | None) -> list[Block]:
    """The configuration that differs, and what was seen of it."""
    if not diff.knobs:
        known = all((side.run_info or {}).get("config") for _, side in sides(diff))
        return [Line("The configurations are the same: no knob explains a change.", DIM)] if known else []
    most = limit(top, DEFAULT_KNOBS)
    table = knobs_table(diff, all_keys=most is None)
    return [table if most is None else capped(table, most, ALL_ROWS), *([effects_items(diff)] if diff.effects else [])]


def side_text(summary: Summary) -> str:
    """One recording in one line: where it lies, what it ran on, how many steps count."""
    text = units.shorten(summary.file, 200)
    if summary.label not in ("", summary.file):
        text = f"{units.shorten(summary.label, 80)} ({text})"
    steps = summary.steps
    return f"{text}; {devices_text(summary)}; {steps.count} {steps.unit}{'s' * (steps.count != 1)} ({steps.source})"


def _side_facts(diff: Diff) -> tuple[tuple[str, Cell], ...]:
    rows = [(side, label(side_text(summary))) for side, summary in sides(diff)]
    if diff.delta.mfu_points is not None:
        rows += [(f"{side} MFU", label(mfu_text(summary))) for side, summary in sides(diff)]
    return tuple(rows)


def side_warnings(diff: Diff, summary: Summary) -> tuple[Note, ...]:
    """Warnings of one recording that the diff has not said already."""
    return tuple(note for note in summary.warnings if note not in diff.warnings)


def headline_table(diff: Diff) -> Table:
    """The figures of both sides: what a reviewer asks first."""
    base, opt = diff.baseline, diff.optimized
    noise = "~ " if diff.delta.significant is False else ""
    rows = [_time_row(f"{base.steps.unit} time (mean)", base.steps.mean_ps, opt.steps.mean_ps, noise)]
    if base.steps.count > 1 or opt.steps.count > 1:
        rows.append(_spread_row(base, opt))
    work = EQUAL_WORK.get(diff.normalization)
    if work is not None and diff.delta.optimized_time_ps != opt.steps.mean_ps:
        times = (diff.delta.baseline_time_ps, diff.delta.optimized_time_ps)
        row = _time_row(f"time for equal {work}", *times, noise)
        # With another batch size a longer step may be the better one: only the time per unit of work is judged.
        rows = [tuple(Cell(cell.text) for cell in rows[0]), *rows[1:], row]
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
    if diff.delta.band is not None and ratio is not None:
        low, high = (units.fixed(1 / end, 2) for end in reversed(diff.delta.band))
        rows.append((label("band of the estimate", DIM), label(""), label(f"{low} to {high}×", DIM), label("")))
    rows.append(_percent_row("busy", base.busy_fraction, opt.busy_fraction))
    rows.extend(_memory_rows(diff))
    rows.append(_reruns_row(base, opt))
    rows.extend(_loss_rows(diff))
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


def _time_row(title: str, base: float, opt: float, noise: str) -> tuple[Cell, ...]:
    scale = units.time_scale((base, opt))
    text = f"{noise}{scale.delta(opt - base)} {scale.unit} ({units.change(opt / base if base else None)})"
    return (
        label(title, STRONG),
        label(f"{scale.show(base)} {scale.unit}"),
        label(f"{scale.show(opt)} {scale.unit}"),
        delta(text, opt - base),
    )


def _spread_row(base: Summary, opt: Summary) -> tuple[Cell, ...]:
    scale = units.time_scale((base.steps.p90_ps, opt.steps.p90_ps))
    spread = [
        f"{scale.show(steps.p10_ps)} to {scale.show(steps.p90_ps)} {scale.unit}" if steps.count > 1 else units.UNKNOWN
        for steps in (base.steps, opt.steps)
    ]
    medians = (base.steps.median_ps, opt.steps.median_ps)
    change = units.change(medians[1] / medians[0] if medians[0] else None)
    return label("p10 to p90", DIM), label(spread[0], DIM), label(spread[1], DIM), label(f"median {change}", DIM)


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
    pairs = zip(memory_rows(diff.baseline.memory), memory_rows(diff.optimized.memory), strict=True)
    for (title, base), (_, opt) in pairs:
        if base is None and opt is None:
            continue
        scale = units.byte_scale((base, opt))
        cells = [
            label(f"{scale.show(value)} {scale.unit}" if value is not None else units.UNKNOWN) for value in (base, opt)
        ]
        change = opt - base if base is not None and opt is not None else None
        text = f"{scale.delta(change)} {scale.unit}" if change is not None else units.UNKNOWN
        rows.append((label(title), *cells, delta(text, change)))
    if not rows:
        rows.append((label("HBM peak"), label(units.UNKNOWN), label(units.UNKNOWN), label(units.UNKNOWN)))
    return rows


def _reruns_row(base: Summary, opt: Summary) -> tuple[Cell, ...]:
    before, after = base.remat.rerun_calls_per_step, opt.remat.rerun_calls_per_step
    change = after - before
    text = ("+" if change > 0 else "") + units.number(change)
    return label("re-run calls"), label(units.number(before)), label(units.number(after)), delta(text, change)


def _loss_rows(diff: Diff) -> list[tuple[Cell, ...]]:
    """Loss and perplexity after the last step that the run info has."""
    loss = diff.loss
    if loss is None:
        return []
    word = {True: "unchanged", False: "differs", None: "no verdict"}[loss.unchanged]
    pairs = (
        ("loss", loss.baseline_loss, loss.optimized_loss),
        ("perplexity", loss.baseline_perplexity, loss.optimized_perplexity),
    )
    return [
        (
            label(title),
            *(label(units.number(ends[1]) if ends else units.UNKNOWN) for ends in (base, opt)),
            label(word, BAD if loss.unchanged is False else ""),
        )
        for title, base, opt in pairs
        if base or opt
    ]


def noise_text(diff: Diff) -> str:
    """Whether the change is more than noise, in benchstat's manner: "~" is no significant change.

    The time is that of equal work, where the work is known.
    """
    significant, interval = diff.delta.significant, diff.delta.interval
    if significant is None:
        return "noise unknown: a side has a single sample"
    if interval is None:
        return "significant" if significant else "~ not significant: within the noise"
    width = interval[1] - interval[0]
    # Two digits of the width: with fewer, an interval beside 1 would read as if it held it.
    decimals = min(max(3, 1 - math.floor(math.log10(width))), 6) if units.known(width) and width > 0 else 3
    low, high = (units.fixed(end, decimals) for end in interval)
    if not significant:
        return f"~ not significant: the interval {low} to {high} of the time ratio holds 1"
    base, opt = diff.delta.baseline_time_ps, diff.delta.optimized_time_ps
    if width == 0 and diff.baseline.kind == diff.optimized.kind == "compiled" and diff.delta.band is None and base:
        return f"time ratio {units.fixed(opt / base, 3)}; estimates have no noise"
    if diff.delta.band is not None and base:
        low, high = (units.fixed(end, 3) for end in diff.delta.band)
        return f"time ratio {units.fixed(opt / base, 3)}; {low} to {high} over the ranges of the estimates' constants"
    ratio = units.fixed(opt / base, decimals) if base else units.UNKNOWN
    return f"time ratio {ratio}, 95 % interval {low} to {high}"


def matched_text(diff: Diff) -> str:
    """How much of the device time stands opposite something on the other side."""
    return (
        f"Matched or replaced: {units.percent(diff.matched_time_fraction)} of device time "
        f"(baseline {units.percent(diff.baseline_matched_fraction)}, "
        f"optimized {units.percent(diff.optimized_matched_fraction)})."
    )
