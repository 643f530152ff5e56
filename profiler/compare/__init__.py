"""Baseline against optimized: comparability, alignment, exact attribution, words."""

from __future__ import annotations

from profiler.analysis import comm, hbm
from profiler.analysis.summary import Measured
from profiler.compare.advice import suggestions
from profiler.compare.align import align
from profiler.compare.attribute import Work, contributions, points_per_ps
from profiler.compare.comparable import check, model_notes, same_work, work_of
from profiler.compare.devicetime import unmarked_and_idle, without_idle
from profiler.compare.effects import Per, effects, groups_of, parts_of, with_effects
from profiler.compare.estimates import band, different, different_notes, unseen, unseen_notes
from profiler.compare.evidence import ALIKE, DIFFERENT, Context, layers, noise_of
from profiler.compare.findings import causes, counted_flops
from profiler.compare.knobs import config_delta
from profiler.compare.loss import loss_delta, loss_notes
from profiler.compare.noise import interval, lengths, significant, with_noise
from profiler.compare.price import price
from profiler.compare.stragglers import straggler_notes
from profiler.compare.words import busy_ps, verdict
from profiler.errors import NotComparableError
from profiler.results import Delta, Diff

SAME_WORK = 0.005  # amounts of work that differ by less are one


def compare(baseline: Measured, optimized: Measured, *, normalize: str = "auto", force: bool = False) -> Diff:
    """Explains the change between two measured sides.

    Raises:
        NotComparableError: they differ in kind, device or unit, and ``force`` is not set.
        UsageError: ``normalize`` asks for what is not known.
    """
    work = work_of(baseline, optimized, normalize)
    comparability = check(baseline, optimized, work)
    if comparability.blocking and not force:
        raise NotComparableError(
            "; ".join(note.message for note in comparability.blocking),
            file=f"{baseline.trace.label} against {optimized.trace.label}",
            remedy="--force compares all the same",
        )
    device_time = unmarked_and_idle(baseline) or unmarked_and_idle(optimized)
    if device_time:
        baseline, optimized = without_idle(baseline), without_idle(optimized)
    rate = points_per_ps(baseline, optimized, work)
    parts = with_noise(contributions(baseline, optimized, work), baseline, optimized, work.scale, rate)
    alignment = align(baseline, optimized, work.scale)
    delta = delta_of(baseline, optimized, work)
    config = config_delta(baseline.trace.run_info or {}, optimized.trace.run_info or {})
    losses = loss_delta(baseline.trace.run_info or {}, optimized.trace.run_info or {}, config.knobs)
    reasons = unseen(baseline, optimized)
    groups = groups_of(config.knobs, reasons)
    at_peak = hbm.held(baseline.trace), hbm.held(optimized.trace)
    cost = price(baseline, optimized, tuple(group.name for group in groups if group.memory), at_peak)
    per = Per(baseline.times.unit, abs(work.scale - 1) > SAME_WORK)
    reference = max(busy_ps(baseline), busy_ps(optimized) * work.scale, 1.0)
    methods = different(baseline, optimized)
    estimates = (DIFFERENT if methods else ALIKE) if baseline.trace.kind == optimized.trace.kind == "compiled" else None
    halves = parts_of(parts, groups)
    seen = effects(groups, halves, cost, reference, per)
    noise = noise_of(delta)
    context = Context(alignment, groups, halves, cost, per, reference, noise, rate, layers(baseline), estimates)
    found = causes(parts, context, baseline)
    return Diff(
        comparable=not comparability.blocking,
        normalization=work.unit,
        verdict=verdict(baseline, optimized, delta, work, found, device_time=device_time, methods=methods),
        baseline=baseline.summary,
        optimized=optimized.summary,
        delta=delta,
        contributions=parts,
        matched_time_fraction=alignment.matched_fraction,
        baseline_matched_fraction=alignment.baseline_fraction,
        optimized_matched_fraction=alignment.optimized_fraction,
        ops=alignment.ops,
        knobs=with_effects(config.knobs, seen),
        findings=(
            *(cause.finding for cause in found),
            *counted_flops(baseline, optimized, work.optimized / work.baseline),
        ),
        warnings=(
            *comparability.blocking,
            *comparability.notes,
            *different_notes(methods),
            *model_notes(config.knobs),
            *unseen_notes(reasons, config.knobs),
            *config.warnings,
            *loss_notes(losses),
            *straggler_notes(baseline, optimized),
        ),
        effects=seen,
        suggestions=suggestions(optimized),
        loss=losses,
        steps=lengths(baseline, optimized),
        memory=hbm.delta(*at_peak, (hbm.capacity(baseline.trace)[0], hbm.capacity(optimized.trace)[0])),
        communication=comm.delta(baseline, optimized, work.scale),
    )


def delta_of(baseline: Measured, optimized: Measured, work: Work) -> Delta:
    """The change in one line."""
    step_b, step_o = baseline.times.step_ps, optimized.times.step_ps
    mfu_b, mfu_o = baseline.summary.mfu, optimized.summary.mfu
    known = work.unit in ("flop", "token") or same_work(baseline, optimized)
    bounds = interval(baseline, optimized, work.scale)
    return Delta(
        mfu_points=None if mfu_b is None or mfu_o is None else 100 * (mfu_o - mfu_b),
        throughput_ratio=step_b / (step_o * work.scale) if known and step_o else None,
        step_time_ratio=step_o / step_b if step_b else 1.0,
        significant=significant(bounds),
        interval=bounds,
        band=band(baseline, optimized, work.scale),
        baseline_time_ps=step_b,
        optimized_time_ps=step_o * work.scale,
    )
