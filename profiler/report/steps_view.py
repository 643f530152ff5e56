"""The steps of both sides in words and as tables; the figures are in ``figures_steps`` and ``figures_devices``."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.analysis.stepspread import DeviceSteps
from profiler.report import units
from profiler.report.model import DIM, STRONG, Cell, Column, Table, delta, label, name
from profiler.report.wording import EQUAL_WORK, sides
from profiler.results import Diff, Note, Summary

# Warnings that are about the steps themselves.
CODES = (
    "slow_first_step", "uneven_steps", "steps_dropped", "no_steps", "devices_without_steps", "few_steps",
    "mostly_idle", "unit_differs", "noise_unknown",
)  # fmt: skip


def steps_text(diff: Diff) -> tuple[str, str | None]:
    """The change of the mean step; where a step does another amount of work, that of equal work and the step second."""
    base, opt = (side.steps for _, side in sides(diff))
    if base.unit != opt.unit:
        return f"The baseline is timed per {base.unit}, the optimized side per {opt.unit}", None
    estimated = [title for title, side in sides(diff) if side.kind == "compiled"]
    words = ", both estimated" if len(estimated) == 2 else f", {estimated[0]} estimated" if estimated else ""
    what = f"Mean device time of a {base.unit}" if by_device_time(diff) else f"Mean {base.unit}"
    step = f"{what} {_change(base.mean_ps, opt.mean_ps)}{words}"
    if not scaled(diff):
        return step, None
    times = _change(diff.delta.baseline_time_ps, diff.delta.optimized_time_ps)
    return f"Time for equal {EQUAL_WORK[diff.normalization]} {times}{words}", f"{step}, of another amount of work"


def _change(before: float, after: float) -> str:
    scale = units.time_scale((before, after))
    change = units.change(after / before if before else None)
    return f"{scale.show(before)} → {scale.show(after)} {scale.unit} ({change})"


def scaled(diff: Diff) -> bool:
    """Whether a step does another amount of work on the two sides, so that a longer one may be the better one."""
    return diff.normalization in EQUAL_WORK and diff.delta.optimized_time_ps != diff.optimized.steps.mean_ps


def by_device_time(diff: Diff) -> bool:
    """Whether the comparison is of device time alone, since the host's waiting fills most of the steps."""
    return any(note.code == "mostly_idle" for note in diff.warnings)


def steps_table(diff: Diff) -> Table:
    """How many steps each side has, how they were found and how they spread."""
    base, opt = diff.baseline, diff.optimized
    scale = units.time_scale(each for side in (base, opt) for each in (side.steps.mean_ps, side.steps.p90_ps))
    spread = (("median", "median_ps"), ("10th percentile", "p10_ps"), ("90th percentile", "p90_ps"))
    several = max(base.steps.count, opt.steps.count) > 1
    judged = not scaled(diff)
    rows: list[tuple[str, Cell, Cell, Cell]] = [
        ("found by", name(base.steps.source), name(opt.steps.source), label("")),
        ("how many", label(f"{base.steps.count:,}"), label(f"{opt.steps.count:,}"), label("")),
        *(
            (f"{title} {scale.unit}", *_times(getattr(base.steps, field), getattr(opt.steps, field), scale, judged))
            for title, field in (("mean", "mean_ps"), *(spread if several else ()))
        ),
    ]
    if not judged:
        times = diff.delta.baseline_time_ps, diff.delta.optimized_time_ps
        rows.append((f"for equal {EQUAL_WORK[diff.normalization]} {scale.unit}", *_times(*times, scale, True)))
    if not by_device_time(diff):
        rows.append(("busy", *_shares(base, opt), label("")))
    if base.tokens_per_s or opt.tokens_per_s:
        change = opt.tokens_per_s / base.tokens_per_s if opt.tokens_per_s and base.tokens_per_s else None
        before, after = (label(units.grouped(side.tokens_per_s)) for side in (base, opt))
        rows.append(("tokens/s per device", before, after, delta(units.change(change), (change or 1.0) - 1, False)))
    return Table(
        "Steps of both sides",
        (Column("", numeric=False), Column(_title("baseline", base)), Column(_title("optimized", opt)), Column("Δ")),
        tuple((label(title, STRONG if title.startswith("mean") else ""), *cells) for title, *cells in rows),
    )


def _title(side: str, summary: Summary) -> str:
    return f"{side} (est.)" if summary.kind == "compiled" else side


def _shares(base: Summary, opt: Summary) -> tuple[Cell, Cell]:
    return label(units.percent(base.busy_fraction)), label(units.percent(opt.busy_fraction))


def _times(before: float, after: float, scale: units.Scale, judged: bool) -> tuple[Cell, Cell, Cell]:
    change = units.change(after / before if before else None)
    return (
        label(scale.show(before)),
        label(scale.show(after)),
        delta(change, after - before) if judged else label(change),
    )


def steps_notes(diff: Diff) -> tuple[tuple[str, Note], ...]:
    """(side or "comparison", warning) of everything that is said about steps."""
    found = [("comparison", note) for note in diff.warnings if note.code in CODES]
    found += [(title, note) for title, side in sides(diff) for note in side.warnings if note.code in CODES]
    return tuple(found)


def devices_table(title: str, devices: Sequence[DeviceSteps]) -> Table:
    """Every device of one side, slowest mean first."""
    scale = units.time_scale(each.most_ps for each in devices)
    columns = ("mean", "median", "shortest", "longest")
    return Table(
        f"Devices of the {title} side",
        (
            Column("device", numeric=False),
            Column("host", numeric=False),
            Column("steps"),
            *(Column(f"{each} {scale.unit}") for each in columns),
            Column("busy"),
        ),
        tuple(
            (
                name(each.name),
                name(each.host, DIM),
                label(f"{each.count:,}"),
                *(label(scale.show(time)) for time in (each.mean_ps, each.median_ps, each.least_ps, each.most_ps)),
                label(units.percent(each.busy_ps / each.mean_ps if each.mean_ps else None)),
            )
            for each in sorted(devices, key=lambda each: -each.mean_ps)
        ),
    )
