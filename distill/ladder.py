"""``distill ladder``: from one configuration to another one knob at a time, and what each rung was worth.

Rungs are cumulative. Keys that only mean something together are one rung: the rematerialisation of named tensors, the
tiles of the grouped matmuls, the axes of the mesh.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.agreement import compare_losses
from distill.calls import attention_calls
from distill.compare import recorded_config
from distill.config import REMAT_TENSORS, Config
from distill.runs import Plan, Run, run
from profiler.errors import UsageError

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
    if len(ladder) == 1:
        raise UsageError(f"{baseline} and {optimized} are the same configuration", remedy="name two that differ")
    # What is wrong with a rung is said before the first run: two knobs may be possible only together.
    configs = [_config(baseline, plan, rung) for rung in ladder]
    runs: list[list[Run]] = [[] for _ in ladder]
    order = plan.order(len(ladder))
    for count, (side, repeat) in enumerate(order, 1):
        rung = ladder[side]
        print(f"distill: rung {side} ({rung.name}), run {count} of {len(order)}", file=sys.stderr, flush=True)
        runs[side].append(run(baseline, out / f"{side}-{repeat + 1}", plan, rung.overrides))
    text = "\n".join(table(ladder, configs, runs, plan)) + "\n"
    from profiler.report.output import write_whole

    write_whole(out / REPORT, text.encode())
    print(f"distill: wrote {out / REPORT}", file=sys.stderr)
    return text


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
    for number, rung in enumerate(ladder[1:], 1):
        lines.append(f"{number:2} {rung.name}: {', '.join(f'{key}={value}' for key, value in rung.changes.items())}")
    return lines


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
