"""Findings: causes of the change by size, each with its evidence, its price and the knobs that explain it.

Contributions that one group of knobs moves in the same way are one cause (gmm forward, gmm dlhs and tgmm that new tiles
made cheaper); so are the phases of a family. Regressions come first among equals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from profiler.analysis.summary import Measured
from profiler.compare.effects import RERUN, Group, Part, cluster_text, knobs_text
from profiler.compare.evidence import (
    Cause,
    Context,
    confidence_of,
    counts,
    halved,
    ops_texts,
    own_test,
    phases,
    split_text,
)
from profiler.compare.knob_table import CALLS, TIME
from profiler.compare.phrases import arrow, calls, duration, gib
from profiler.compare.price import REMAT, price_text
from profiler.results import Contribution, Finding

SMALL = 0.005  # a change below this share of the step is no finding
MAX_FINDINGS = 12
MOST_FAMILIES = 3
MOST_GROUPS = 2  # that may be behind one cause: what a title names
MOST_PHASES = 2  # that the verdict names
MEMORY_SHARE = 0.02  # of the capacity: a change of the peak below it is no finding
PRICE = "HBM"
IDLE = "idle time"


@dataclass(frozen=True)
class _Cluster:
    """Contributions of one cause; ``groups`` move them at first hand. ``part`` is the larger of calls and time."""

    groups: tuple[Group, ...]
    part: str
    members: tuple[Contribution, ...]

    @property
    def time_ps(self) -> float:
        return sum(each.time_ps for each in self.members)

    @property
    def mfu_points(self) -> float | None:
        values = [each.mfu_points for each in self.members]
        return None if None in values else sum(value or 0.0 for value in values)


def causes(contributions: Sequence[Contribution], context: Context, baseline: Measured) -> tuple[Cause, ...]:
    """Causes by size, each with the ops that carry the change."""
    found = [*_replacements(context)]
    replaced = context.alignment.ops.filter(pl.col("match") == "replaced")
    for cluster in _clusters(contributions, context):
        # What a replacement explains is told once, as one cause.
        told = sum(
            _replaced_time(replaced, each, "optimized") - _replaced_time(replaced, each, "baseline")
            for each in cluster.members
        )
        if abs(cluster.time_ps - told) >= SMALL * context.reference_ps:
            found.append(_cause(cluster, contributions, context))
    found += [
        Cause("another peak", Finding("peak: the chips differ", each.mfu_points, None))
        for each in contributions
        if each.category == "peak"
    ]
    found.sort(key=lambda each: _order(each.finding, context.reference_ps))
    found = _with_price(found[:MAX_FINDINGS], context)
    memory = _memory(context, baseline)
    if memory is not None:
        paid = (i for i, each in enumerate(found, 1) if set(each.finding.knobs) & set(memory.knobs))
        found.insert(next(paid, len(found)), Cause(PRICE, memory))
    return tuple(found)


def counted_flops(baseline: Measured, optimized: Measured, growth: float) -> tuple[Finding, ...]:
    """XLA counts no FLOPs for custom calls: a collapse there is no loss of work.

    ``growth``: how much more work the optimized step does.
    """
    before, after = baseline.summary.compiler_tflops_per_step, optimized.summary.compiler_tflops_per_step
    if not before or not after or 0.8 < after / before / growth < 1.25:
        return ()
    return (
        Finding(
            f"FLOPs counted by the compiler {before:.2f} → {after:.2f} TFLOP: not a change in MFU",
            None,
            None,
            (),
            ("XLA counts 0 FLOPs for custom calls such as Pallas kernels; MFU uses the model's FLOPs",),
            "high",
        ),
    )


def _order(finding: Finding, reference_ps: float) -> tuple[float, bool, float, str]:
    """By size in tenths of a per cent of the step; among equals what costs comes first."""
    time = finding.time_ps or 0.0
    size = abs(finding.mfu_points or 0.0) if finding.time_ps is None else 100 * abs(time) / reference_ps
    return -round(size, 1), time <= 0, -size, finding.title


def _clusters(contributions: Iterable[Contribution], context: Context) -> list[_Cluster]:
    owners: dict[tuple[int, str], tuple[str, ...]] = {}
    by_name = {group.name: group for group in context.groups}
    for half in context.parts:
        owners[id(half.of), half.kind] = half.owners if half.sure else ()
    found: dict[tuple[tuple[str, ...], str, str, bool], _Cluster] = {}
    for each in contributions:
        if each.category == "peak" or not each.time_ps:
            continue
        part = CALLS if abs(each.calls_time_ps) > abs(each.per_call_time_ps) else TIME
        names = owners.get((id(each), part), ())
        # Time per call is one cause over all families of a group; how often something runs is a cause by itself.
        family = "" if names and part == TIME else each.family
        rerun = RERUN if part == CALLS and each.phase == RERUN else ""
        key = (names, family, rerun or part, each.time_ps > 0)
        before = found.get(key, _Cluster(tuple(by_name[name] for name in names), part, ()))
        found[key] = replace(before, members=(*before.members, each))
    return list(found.values())


def _cause(cluster: _Cluster, contributions: Sequence[Contribution], context: Context) -> Cause:
    groups, members = cluster.groups, cluster.members
    through = f" through {' or '.join(knobs_text(group.knobs) for group in groups[:MOST_GROUPS])}" if groups else ""
    families = list(dict.fromkeys(each.family for each in members))
    more = len(families) - MOST_FAMILIES
    shown = ", ".join(families[:MOST_FAMILIES]) + (f" and {more} more families" if more > 0 else "")
    evidence: list[str] = []
    if groups and cluster.part == TIME:
        if len(groups) == 1 and all(groups[0].amortises(each) for each in members):
            verb = f"{'less ' if cluster.time_ps > 0 else ''}amortised{through.replace(' through ', ' by ', 1)}"
        else:
            verb = f"{'dearer' if cluster.time_ps > 0 else 'cheaper'} per call{through}"
        label = what = f"{shown} {verb}"
        for family in families:
            own = [each for each in members if each.family == family]
            text = cluster_text(family, TIME, False, [_part(each) for each in own], context.per)
            evidence.append(f"{text}{phases(own)}")
        if context.per.equal_work and not any(group.amortises(each) for group in groups for each in members):
            evidence.append("the sides do different amounts of work per step: some of it may come from that")
    elif cluster.part == CALLS and members[0].phase == RERUN:
        parts = [_part(each) for each in members]
        label = what = f"{cluster_text(shown, CALLS, True, parts, context.per)}{through}"
        evidence += halved(members[0], contributions, context)
        evidence += split_text(members)
    elif cluster.members[0].category == "idle":
        label = what = f"{'more' if cluster.time_ps > 0 else 'less'} {IDLE}"
    else:
        what = f"{shown}{phases(members)}{through}"
        label = what if len({each.phase for each in members}) <= MOST_PHASES else f"{shown}{through}"
        evidence += counts(members, context)
    if not groups:
        may = next((part.owners for part in context.parts if part.of is members[0] and not part.sure), ())
        evidence += [f"no knob moves it at first hand; may come from {' or '.join(may)}"] if may else []
    evidence += ops_texts(members, context.alignment)
    before, after = (sum(getattr(each, f"{side}_time_ps") for each in members) for side in ("baseline", "optimized"))
    finding = Finding(
        f"{what}: {' → '.join(duration(before, after))}",
        cluster.mfu_points,
        cluster.time_ps,
        tuple(knob.key for group in groups for knob in group.knobs),
        tuple(evidence),
        context.sure(confidence_of(cluster.time_ps, context.noise_ps, own=own_test(members)), cluster.part == CALLS),
    )
    return Cause(label, finding)


def _with_price(found: list[Cause], context: Context) -> list[Cause]:
    """The largest change by rematerialisation says what it costs."""
    keys = tuple(knob.key for group in context.groups if group.name == REMAT for knob in group.knobs)
    text = price_text(context.price, REMAT, keys)[1] if keys else ""
    place = next((index for index, each in enumerate(found) if each.finding.knobs == keys), None)
    if place is None or not text:
        return found
    finding = found[place].finding
    finding = replace(finding, evidence=(f"price: {text}", *finding.evidence))
    return [*found[:place], Cause(found[place].label, finding), *found[place + 1 :]]


def _part(each: Contribution) -> Part:
    return Part(each, "", each.time_ps, each.mfu_points, (), False)


def _memory(context: Context, baseline: Measured) -> Finding | None:
    """The price in HBM, where it is one."""
    price, capacity = context.price, baseline.summary.memory.capacity_bytes
    change = price.change
    if price.peak is None or change is None or not capacity or abs(change) < MEMORY_SHARE * capacity:
        return None
    evidence = [f"the device holds {gib(capacity)}"]
    if price.allocated:
        evidence.append(f"allocated, gaps counted: {arrow(*(gib(each) for each in price.allocated))}")
    if price.new:
        cost, text = price_text(price, REMAT, ())
        evidence += [text.removeprefix("HBM ")] if cost else []
    knobs = tuple(knob.key for group in context.groups if group.memory for knob in group.knobs)
    title = f"HBM at the peak {arrow(*(gib(each) for each in price.peak))} ({gib(change, True)})"
    return Finding(title, None, None, knobs, tuple(evidence), "high")


def _replaced_time(replaced: pl.DataFrame, each: Contribution, side: str) -> float:
    """The part of a contribution's time on one side that replacements account for, ps."""
    phase = pl.col("phase").is_null() if each.phase is None else pl.col("phase") == each.phase
    family = "baseline_family" if side == "baseline" else "family"
    return float(replaced.filter((pl.col(family) == each.family) & phase)[f"{side}_time_ps"].sum())


def _replacements(context: Context) -> list[Cause]:
    """Families that took another's place, as one cause each."""
    rows = (
        context.alignment.ops.filter(pl.col("match") == "replaced")
        .group_by("baseline_family", "family", maintain_order=True)
        .agg(
            *(pl.col(f"{side}_{what}").sum() for side in ("baseline", "optimized") for what in ("time_ps", "calls")),
            pl.col("confidence").min(),
            pl.col("baseline_op").first(),
            pl.col("optimized_op").first(),
        )
    )
    found = []
    for row in rows.iter_rows(named=True):
        change = row["optimized_time_ps"] - row["baseline_time_ps"]
        if max(row["baseline_time_ps"], row["optimized_time_ps"]) < SMALL * context.reference_ps:
            continue
        before, after = duration(row["baseline_time_ps"], row["optimized_time_ps"])
        finding = Finding(
            f"{row['baseline_family']} replaced by {row['family']}: {before} → {after}",
            None if context.points_per_ps is None else -context.points_per_ps * change,
            change,
            (),
            (
                f"{row['baseline_op']} → {row['optimized_op']}",
                f"calls {arrow(calls(row['baseline_calls']), calls(row['optimized_calls']))} per {context.per.unit}",
            ),
            context.sure(confidence_of(change, context.noise_ps, row["confidence"])),
        )
        found.append(Cause(f"{row['baseline_family']} → {row['family']}", finding))
    return found
