"""``distill compare``: train two configurations, and say what the change did to time and to what is learnt.

Both sides run on the same data from the same seeds, in processes of their own and in turn (distill.runs). Losses are
compared as far as the settings allow (distill.agreement); the recordings go to ``profiler.diff``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.agreement import Agreement, compare_losses
from distill.calls import RERUN, AttentionCalls, attention_calls
from distill.config import Config, load
from distill.runs import Plan, Run, run
from profiler.errors import UsageError

if TYPE_CHECKING:
    from profiler.results import Diff

SIDES = ("baseline", "optimized")
SHORT = ("base", "opt")
REPORT, PAGE = "compare.txt", "diff.html"
ATTENTION = ("attention", "splash forward")  # profiler's families of the forward kernel


@dataclass(frozen=True)
class Comparison:
    """What the runs gave, before it is put into words. Pairs are (baseline, optimized)."""

    plan: Plan
    configs: tuple[Config, Config]
    runs: tuple[list[Run], list[Run]]
    agreement: Agreement
    repeats_agree: bool | None
    calls: tuple[AttentionCalls | None, AttentionCalls | None]
    diff: Diff


def compare(baseline: str, optimized: str, out: Path, plan: Plan) -> str:
    """Runs both sides, writes the report to ``out`` and returns it.

    Args:
        baseline, optimized: recipes' names or YAML files.
        out: gets a folder per run, compare.txt and diff.html.
        plan: steps, repeats, devices, overrides for both sides.

    Raises:
        ProfilerError: a configuration is not possible, or a run failed.
    """
    if "," in str(out) or "=" in str(out):
        raise UsageError("a name with ',' or '=' stands for several recordings", file=out, remedy="choose another -o")
    recipes = (baseline, optimized)
    configs = (recorded_config(baseline, plan), recorded_config(optimized, plan))
    runs: tuple[list[Run], list[Run]] = ([], [])
    order = plan.order(len(recipes))
    for count, (side, repeat) in enumerate(order, 1):
        print(f"distill: {SIDES[side]} {recipes[side]}, run {count} of {len(order)}", file=sys.stderr, flush=True)
        runs[side].append(run(recipes[side], out / f"{SHORT[side]}-{repeat + 1}", plan))
    result = evaluate(plan, configs, runs)
    return write(result, out)


def evaluate(plan: Plan, configs: tuple[Config, Config], runs: tuple[list[Run], list[Run]]) -> Comparison:
    """Everything that finished runs say together."""
    import profiler

    paths = [f"{name}={','.join(str(one.folder) for one in side)}" for name, side in zip(SIDES, runs, strict=True)]
    return Comparison(
        plan=plan,
        configs=configs,
        runs=runs,
        agreement=compare_losses(runs[0][0].steps, runs[1][0].steps, runs[0][0].config, runs[1][0].config),
        repeats_agree=None if plan.repeats == 1 else all(map(_repeats_agree, runs)),
        calls=tuple(  # type: ignore[arg-type]
            attention_calls(path, config) for path, config in zip(paths, configs, strict=True)
        ),
        diff=profiler.diff(paths[0], paths[1]),
    )


def write(result: Comparison, out: Path) -> str:
    """Writes compare.txt and diff.html, and returns the text."""
    from profiler.report import render_diff, render_html
    from profiler.report.output import Style, write_whole

    text = "\n".join(describe(result)) + "\n\n" + render_diff(result.diff, "text", Style()).decode()
    write_whole(out / PAGE, render_html(result.diff))
    write_whole(out / REPORT, text.encode())
    print(f"distill: wrote {out / REPORT} and {out / PAGE}", file=sys.stderr)
    return text


def describe(result: Comparison) -> list[str]:
    """Runs, losses and attention calls in words; the diff follows on its own."""
    knobs = ", ".join(f"{each.key} {each.baseline} → {each.optimized}" for each in result.diff.knobs) or "none"
    repeats = result.plan.repeats
    lines = [
        f"Runs: {repeats} a side, {result.plan.steps} steps each, in processes of their own and in turn",
        f"Knobs: {knobs}",
        *(
            f"  {name:9}  median step {', '.join(f'{each.step_s * 1e3:.1f} ms' for each in side)}"
            for name, side in zip(SIDES, result.runs, strict=True)
        ),
        "",
        "Loss",
        *(f"  {line}" for line in describe_losses(result.agreement)),
    ]
    if repeats == 1:
        lines.append("  one run a side: what differs from run to run is in no interval below (--repeats 2 or more)")
    if result.repeats_agree is not None:
        same = "are bit-identical" if result.repeats_agree else "DIFFER, though nothing but time lies between them"
        lines.append(f"  the losses of a side's repeats {same}")
    return [*lines, "", "Attention forward passes per layer in one step", *(f"  {x}" for x in describe_calls(result))]


def describe_losses(found: Agreement) -> list[str]:
    """What became of loss and perplexity, and how far the two sides agree."""
    lines = []
    for name, ends in (("loss", found.losses), ("perplexity", found.perplexities)):
        (b0, b1), (o0, o1) = ends
        lines.append(f"{name}: baseline {b0:.4f} → {b1:.4f}, optimized {o0:.4f} → {o1:.4f} (first → last step)")
    if not found.falls:
        lines.append("the loss does NOT fall on both sides")
    if found.kind == "steps":
        verdict = "unchanged within" if found.unchanged else "CHANGED beyond"
        lines.append(
            f"{verdict} {found.tolerance:g} step by step: largest relative difference of loss and log-perplexity "
            f"{found.difference:.2g} (step {found.at}), of the perplexity itself {found.perplexity_difference:.2g}"
        )
        return lines
    if found.kind == "settings":
        lines.append(f"no verdict: the sides learn under different settings ({', '.join(found.settings)})")
    else:
        lines.append("a step is not the same batch on both sides: step-wise equality is not expected")
    by = f"optimized − baseline {found.difference:+.4f} nats at {found.at:,} tokens seen"
    if found.tolerance is None:
        lines.append(by)
    elif found.tolerance == float("inf"):
        lines.append(f"{by}; too few steps to say more")
    else:
        verdict = "unchanged within" if found.unchanged else "CHANGED beyond"
        lines.append(f"{verdict} ±{found.tolerance:.4f}, two standard errors of the comparison: {by}")
    return lines


def describe_calls(result: Comparison) -> list[str]:
    """The table of attention calls, and what the difference was worth."""
    before, after = result.calls
    if before is None or after is None:
        return ["n/a: no attention kernel that is known here, or its op has lost its name"]
    lines = [f"{'':24}{'baseline':>9}{'optimized':>11}"]
    for name, b, o in (
        ("student forward", before.forward, after.forward),
        ("student re-run (remat)", before.rerun, after.rerun),
        ("student, both", before.student, after.student),
        ("teacher", before.teacher, after.teacher),
    ):
        lines.append(f"{name:24}{b:>9g}{o:>11g}")
    teacher = "untouched" if before.teacher == after.teacher else "NOT the same"
    lines.append(f"the student's go {before.student:g} → {after.student:g} per layer; the teacher's are {teacher}")
    if before.rerun != after.rerun:
        lines.append(f"worth: {worth(result.diff)}")
    return lines


def worth(diff: Diff) -> str:
    """What the re-runs of the attention forward pass cost on each side, from the exact split of the diff."""
    parts = [each for each in diff.contributions if each.phase == RERUN and each.family in ATTENTION]
    before, after = sum(each.baseline_time_ps for each in parts), sum(each.optimized_time_ps for each in parts)
    step = diff.delta.baseline_time_ps
    text = (
        f"re-run attention took {before / 1e9:.1f} ms of the baseline's step of {step / 1e9:.1f} ms and takes "
        f"{after / 1e9:.1f} ms: {(before - after) / step:.1%} of that step saved"
    )
    points = [each.mfu_points for each in parts if each.mfu_points is not None]
    return f"{text}, {sum(points):+.2f} points of MFU" if points else text


def recorded_config(recipe: str, plan: Plan) -> Config:
    """The configuration as a run will have it, so that what is wrong with it is said before any run.

    Raises:
        UsageError: it is not possible, or makes no recording.
    """
    config = load(recipe, plan.all_overrides).config
    if not config.profiler:
        raise UsageError("profiler='' makes no recording", file=recipe, remedy="profiler=xplane")
    return config


def _repeats_agree(side: Sequence[Run]) -> bool:
    """Whether all runs of a side have the same loss in every step, to the last bit."""
    losses = [[each["loss"] for each in one.steps] for one in side]
    return all(each == losses[0] for each in losses)
