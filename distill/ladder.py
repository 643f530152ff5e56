"""``distill ladder``: from one configuration to another one knob at a time, and what each rung was worth.

Rungs are cumulative. Keys that only mean something together are one rung: the rematerialisation of named tensors, the
tiles of the grouped matmuls, the axes of the mesh. ``climb`` runs every rung, ``climb_compiled`` compiles it for a TPU.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.agreement import compare_losses
from distill.calls import attention_calls
from distill.compare import recorded_config
from distill.config import REMAT_TENSORS, Config, load
from distill.runs import Plan, Run, run
from profiler.errors import UsageError

if TYPE_CHECKING:
    from distill.aot import Cache
    from distill.points import Lead, Point, Points

REPORT = "ladder.txt"


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: what it changes, and the overrides of the baseline that lead to it."""

    name: str
    changes: Mapping[str, Any]
    overrides: tuple[str, ...]


def rungs(baseline: Config, optimized: Config) -> list[Rung]:
    """The baseline itself, then one rung per knob that differs, in the order of the configuration's keys."""
    before, after = baseline.to_dict(), optimized.to_dict()
    groups: dict[str, dict[str, Any]] = {}
    for key in before:
        if before[key] != after[key]:
            groups.setdefault(_group(key), {})[key] = after[key]
    found, overrides = [Rung("baseline", {}, ())], []
    for name, changes in groups.items():
        overrides += [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        found.append(Rung(name, changes, tuple(overrides)))
    return found


def climb(baseline: str, optimized: str, out: Path, plan: Plan) -> str:
    """Runs every rung, writes the table to ``out`` and returns it.

    Args:
        baseline, optimized: recipes' names or YAML files.
        out: gets a folder per run, and ladder.txt.
        plan: steps, repeats, devices, overrides for all runs.

    Raises:
        UsageError: a configuration is not possible, or the two do not differ.
        ProfilerError: a run failed.
    """
    ladder = rungs(recorded_config(baseline, plan), recorded_config(optimized, plan))
    _check(ladder, baseline, optimized)
    # What is wrong with a rung is said before the first run: two knobs may be possible only together.
    configs = [_config(baseline, plan, rung) for rung in ladder]
    runs: list[list[Run]] = [[] for _ in ladder]
    order = plan.order(len(ladder))
    for count, (side, repeat) in enumerate(order, 1):
        rung = ladder[side]
        print(f"distill: rung {side} ({rung.name}), run {count} of {len(order)}", file=sys.stderr, flush=True)
        runs[side].append(run(baseline, out / f"{side}-{repeat + 1}", plan, rung.overrides))
    return _written(table(ladder, configs, runs, plan), out)


def table(ladder: Sequence[Rung], configs: Sequence[Config], runs: Sequence[Sequence[Run]], plan: Plan) -> list[str]:
    """One row per rung: time, throughput, the gain over the rung below, attention forwards, and whether losses hold."""
    widest = max(len(rung.name) for rung in ladder)
    lines = [
        f"Each rung adds to the one above. Runs of {plan.steps} steps, {plan.repeats} per rung.",
        "",
        f"   {'rung':{widest}}  {'step ms':>9}  {'±':>5}  {'tokens/s':>10}  {'gain':>7}  {'MFU':>6}  forwards  loss",
    ]
    before = None
    for number, (rung, config, side) in enumerate(zip(ladder, configs, runs, strict=True)):
        times = [each.step_s for each in side]
        seconds = statistics.median(times)
        spread = f"{(max(times) - min(times)) / 2 / seconds:.1%}" if len(times) > 1 else "n/a"
        steps = side[0].steps
        rate = steps[0]["tokens"] / seconds
        mfu = steps[-1]["mfu"] and steps[-1]["mfu"] * steps[-1]["step_time_s"] / seconds
        calls = attention_calls(str(side[0].folder), config)
        agreement = compare_losses(runs[0][0].steps, steps, runs[0][0].config, side[0].config)
        words = {True: "unchanged", False: "CHANGED", None: "other settings"}[agreement.unchanged] if number else "–"
        lines.append(
            f"{number:2} {rung.name:{widest}}  {seconds * 1e3:9.1f}  {spread:>5}  {rate:10,.0f}  "
            f"{f'{rate / before - 1:+.1%}' if before else '–':>7}  {f'{mfu:.1%}' if mfu else 'n/a':>6}  "
            f"{f'{calls.student:g}' if calls else 'n/a':>8}  {words}"
        )
        before = rate
    lines += [
        "",
        "±: half the range of a rung's runs; a gain within it says nothing. gain: tokens/s over the rung above.",
        "forwards: the student's attention forward passes per layer.",
    ]
    return [*lines, *_changes(ladder)]


# --- compiled --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What one rung does to the estimated MFU.

    Attributes:
        since: number of the rung that it is held against: the last one below that fits.
        points: percentage points.
        lead: MFU over that rung's.
    """

    since: int
    points: float
    lead: Lead


def climb_compiled(
    baseline: str,
    optimized: str,
    topology: str,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    whole: bool = False,
    kernels: bool = True,
    cache: Cache | None = None,
) -> tuple[str, bool]:
    """Compiles every rung for a slice, writes profiles and table to ``out``; returns the table and whether any fits.

    Args:
        baseline, optimized: recipes' names or YAML files.
        topology: the slice's name.
        out: gets a profile of each rung that fits, and ladder.txt.
        overrides: ``key=value`` for all rungs.
        whole: compile to the end.
        kernels: compile each kernel alone, too, for its time.
        cache: where finished compiles are kept.

    Raises:
        UsageError: a configuration is not possible, the two do not differ, or there is no such slice.
        ProfilerError: there is no TPU compiler.
    """
    from distill.points import Wanted, measure

    ladder = rungs(load(baseline, overrides).config, load(optimized, overrides).config)
    _check(ladder, baseline, optimized)
    wanted = [
        Wanted(
            f"rung {number} ({rung.name})",
            re.sub(r"[^\w.+-]", "_", f"{number}-{rung.name}"),
            load(baseline, [*overrides, *rung.overrides]),
        )
        for number, rung in enumerate(ladder)
    ]
    found = measure(wanted, topology, out, whole=whole, kernels=kernels, cache=cache)
    return _written(compiled_table(ladder, found), out), bool(found.fitting)


def parts(points: Sequence[Point]) -> list[Part | None]:
    """Each rung's part of the change in estimated MFU; None for the first that fits, and for what does not fit.

    They sum to the change from the first rung that fits to the last one: each begins where the one before ends.
    """
    from distill.points import Lead, ahead

    found: list[Part | None] = []
    since, before = 0, None
    for number, point in enumerate(points):
        mfu = point.estimate.mfu if point.estimate else None
        part = None
        if mfu is not None:
            if before is not None:
                part = Part(since, 100 * (mfu - before), ahead(point, points[since], "flop") or Lead(mfu / before))
            since, before = number, mfu
        found.append(part)
    return found


def compiled_table(ladder: Sequence[Rung], found: Points) -> list[str]:
    """The verdict, and a row for every rung: memory, calls, estimates, and its part of the change."""
    from distill.points_table import aligned, figures, reasons, remarks, times
    from profiler.report import units

    split = parts(found.points)
    columns = [
        ("points", [units.points(part.points) if part else "–" for part in split]),
        ("ratio", [times(part.lead) if part else "–" for part in split]),
        ("over rung", [str(part.since) if part else "–" for part in split]),
    ]
    names = [f"{number:2} {rung.name}" for number, rung in enumerate(ladder)]
    return [
        _whole(ladder, found, split),
        "",
        *aligned([("", [("   rung", names)]), *figures(found), ("part of the MFU", columns)]),
        "",
        "Each rung adds to the one above. Its part is its estimated MFU against that of the last rung above that fits; "
        "the points sum to the whole.",
        *remarks(found),
        *(
            f"Not in the estimate of rung {number}: {sentence}"
            for number, part in enumerate(split)
            for sentence in (part.lead.unseen if part else ())
        ),
        *reasons(found),
        *_changes(ladder),
    ]


def _whole(ladder: Sequence[Rung], found: Points, split: Sequence[Part | None]) -> str:
    """The change that the parts sum to."""
    from profiler.report import units

    estimates = [(number, each.estimate) for number, each in enumerate(found.points) if each.estimate]
    if not estimates:
        return f"No rung fits {found.where()}"
    (a, first), (z, last) = estimates[0], estimates[-1]
    points = sum(part.points for part in split if part)
    ends = f"rung {a} ({ladder[a].name}) to rung {z} ({ladder[z].name})"
    missing = [
        f"; the {side} does not fit" for side, gone in (("baseline", a > 0), ("last rung", z + 1 < len(ladder))) if gone
    ]
    return (
        f"Estimated MFU {units.percent(first.mfu)} → {units.percent(last.mfu)}, {units.points(points)} points, from "
        f"{ends}, on {found.where()}{''.join(missing)}"
    )


def _check(ladder: Sequence[Rung], baseline: str, optimized: str) -> None:
    if len(ladder) == 1:
        raise UsageError(f"{baseline} and {optimized} are the same configuration", remedy="name two that differ")


def _changes(ladder: Sequence[Rung]) -> list[str]:
    """What each rung changes, one line each."""
    return [
        f"{number:2} {rung.name}: {', '.join(f'{key}={value}' for key, value in rung.changes.items())}"
        for number, rung in enumerate(ladder[1:], 1)
    ]


def _written(lines: Sequence[str], out: Path) -> str:
    """Writes the table to ``out`` and returns it."""
    from profiler.report.output import write_whole

    text = "\n".join(lines) + "\n"
    write_whole(out / REPORT, text.encode())
    print(f"distill: wrote {out / REPORT}", file=sys.stderr)
    return text


def _group(key: str) -> str:
    """The rung that a key belongs to."""
    if key == "remat_policy" or key in REMAT_TENSORS:
        return "rematerialisation"
    if "_tile_" in key:
        return "grouped matmul tiles"
    if key in ("ici_data_parallelism", "ici_fsdp_parallelism"):
        return "mesh"
    return key


def _config(baseline: str, plan: Plan, rung: Rung) -> Config:
    extended = Plan(plan.steps, plan.repeats, plan.devices, (*plan.overrides, *rung.overrides))
    return recorded_config(baseline, extended)
