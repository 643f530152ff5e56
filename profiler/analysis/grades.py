"""Plain answers to what a user asks of a recording, by the rules of docs/commands/health.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from profiler.results_health import Assumption, Coverage, Grade, Presence

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

YES, CARE, NO, NOTHING = "yes", "with care", "no", "nothing to tell"
MOST, SOME, NEARLY_ALL = 0.95, 0.5, 0.999  # of the time
FEW_STEPS = 3
WIDE = 0.2  # of the median step, from the 10th to the 90th percentile

TIMES, MATCHED, SPLIT = "Can the times be trusted?", "Can ops be matched?", "Can MFU be told and split?"
RATES, MEMORY = "Are FLOPs and rates known?", "Is memory known?"
COLLECTIVES, CAUSES = "Is communication told by axis?", "Can a change be tied to a knob?"

# Codes of warnings: what makes times of two things one, and what takes parts of the recording away.
MIXED = {"files_of_different_runs": "files of different runs are mixed", "file_twice": "a file counts twice"}
DAMAGE = {
    "truncated": "the file is cut",
    "gzip_damaged": "the gzip file is damaged",
    "damaged": "parts of the file are malformed",
    "damaged_events": "device events are malformed",
    "recorder_error": "the recorder reports errors",
}
UNSTEADY = {
    "slow_first_step": "the first step is slower than all others",
    "uneven_steps": "some steps are unlike the others",
    "devices_without_steps": "some devices repeat no step and are left out",
}
_MARK = "wrap each step in jax.profiler.StepTraceAnnotation, and record several"


def grades(
    measured: Measured, coverage: Sequence[Coverage], presence: Sequence[Presence], assumptions: Sequence[Assumption]
) -> tuple[Grade, ...]:
    """One grade per question, always in the same order."""
    covered = {each.name: each for each in coverage}
    present = {each.name: each.present for each in presence}
    value = {each.name: each.value for each in assumptions}
    return (
        _times(measured),
        _matched(covered),
        _split(measured, covered, value),
        _rates(covered, value),
        _memory(present, value["HBM capacity"]),
        _collectives(covered["groups"], present["mesh"]),
        _causes(present["knobs"], present["software versions"]),
    )


def share(row: Coverage) -> float:
    """The covered share of the time; of the ops where they take none, and all of nothing."""
    known = row.fraction if row.fraction is not None else row.ops_fraction
    return 1.0 if known is None else known


def _times(measured: Measured) -> Grade:
    steps, codes = measured.summary.steps, {note.code for note in measured.summary.warnings}
    mixed = [text for code, text in MIXED.items() if code in codes]
    if mixed or not measured.summary.busy_fraction:
        return Grade(TIMES, NO, "; ".join(mixed) or "nothing ran in the steps", "name each file of one run once")
    if measured.trace.kind == "compiled":
        reason = "compiled, not recorded: times are estimates; calls, bytes and memory are the compiler's"
        return Grade(TIMES, CARE, reason, "record the run for measured times")
    doubts = [text for code, text in (DAMAGE | UNSTEADY).items() if code in codes]
    remedy = None
    if steps.unit == "run":
        doubts.append("no step repeats: times are of the whole recording, start and end included")
        remedy = _MARK
    elif steps.count < FEW_STEPS:
        doubts.append(f"only {_count(steps.count, 'whole step')}: the noise is unknown")
        remedy = "record three steps or more"
    elif steps.median_ps and (steps.p90_ps - steps.p10_ps) / steps.median_ps > WIDE:
        width = (steps.p90_ps - steps.p10_ps) / steps.median_ps
        doubts.append(f"steps differ: the middle 80 % of them span {_percent(width)} of the median")
    if not remedy and any(code in codes for code in ("slow_first_step", "uneven_steps")):
        remedy = "--skip-first N or --steps A:B leaves odd steps out"
    if not remedy and any(code in codes for code in DAMAGE):
        remedy = "copy the original again, or record again"
    if doubts:
        return Grade(TIMES, CARE, "; ".join(doubts), remedy)
    return Grade(TIMES, YES, f"{_count(steps.count, 'steady step')}, by {steps.source}; nothing of the file is lost")


def _matched(covered: dict[str, Coverage]) -> Grade:
    placed, named = share(covered["place in the model"]), share(covered["HLO op"])
    lacking = share(covered["HLO program"]) < SOME
    remedy = "record with the HLO programs: JAX writes name stacks there" if lacking else None
    reason = f"{_percent(placed)} of busy time is in ops whose place in the model is told"
    if placed >= MOST:
        return Grade(MATCHED, YES, reason)
    if placed >= SOME or named >= MOST:
        return Grade(MATCHED, CARE, f"{reason}; the rest is matched by kind, shape and instruction name", remedy)
    return Grade(MATCHED, NO, f"{reason}, and {_percent(named)} names its HLO op: kernel names alone match", remedy)


def _split(measured: Measured, covered: dict[str, Coverage], value: dict[str, float | None]) -> Grade:
    codes = {note.code for note in measured.summary.warnings}
    missing = [
        (what, how)
        for known, what, how in (
            (value["model FLOPs per step"], "model FLOPs", "--model-tflops, or --config of the run"),
            (value["peak (dense bf16)"], "the peak of the device", "--peak-tflops"),
        )
        if not known
    ]
    if missing:
        text = " and ".join(what for what, _ in missing)
        verb = "are" if len(missing) > 1 or missing[0][0] == "model FLOPs" else "is"
        reason = f"{text} {verb} unknown: the time is split instead"
        return Grade(SPLIT, NO, reason, "; ".join(how for _, how in missing))
    if "mfu_impossible" in codes:
        return Grade(SPLIT, NO, "the MFU is above 100 %: model FLOPs, step time or peak cannot be right", None)
    family, phase = share(covered["family"]), share(covered["phase"])
    reason = f"model FLOPs and peak are known; {_percent(family)} of busy time has a family, {_percent(phase)} a phase"
    doubts = [f"{_percent(1 - known)} has no {what}" for known, what in ((family, "family"), (phase, "phase"))
              if known < MOST]  # fmt: skip
    if "flops_per_run" in codes:
        doubts.append("the FLOPs given are taken as those of the whole recording")
    if "peak_differs" in codes:
        doubts.append("the trace states another peak")
    if measured.trace.kind == "compiled":
        doubts.append("the times are estimates")
    return Grade(SPLIT, CARE, f"{reason}; but {', '.join(doubts)}") if doubts else Grade(SPLIT, YES, reason)


def _rates(covered: dict[str, Coverage], value: dict[str, float | None]) -> Grade:
    work, moved = covered["FLOPs"], covered["bytes"]
    if not work.ops and not moved.ops:
        return Grade(RATES, NOTHING, "no op computes")
    flops, size = share(work), share(moved)
    roof = value["peak (dense bf16)"] and value["HBM bandwidth"]
    texts = (
        [f"FLOPs are known of {_percent(flops)} of matrix work"]
        if work.ops
        else ["no op is known to multiply matrices"]
    )
    texts.append(f"bytes of {_percent(size)} of compute")
    if not roof:
        texts.append("no roof without the device's peak and bandwidth")
    remedy = None if roof else "--peak-tflops; roofline takes --hbm-gb-per-s"
    if flops >= NEARLY_ALL and size >= MOST:
        return Grade(RATES, YES if roof else CARE, "; ".join(texts), remedy)
    if max(flops if work.ops else 0.0, size) >= SOME:
        return Grade(RATES, CARE, "; ".join(texts), remedy)
    return Grade(RATES, NO, "; ".join(texts), remedy)


def _memory(present: dict[str, bool], capacity: float | None) -> Grade:
    known = [
        text
        for name, text in (
            ("memory plan", "the compiler's plan says what fills HBM"),
            ("allocator events", "allocator events give the measured peak"),
        )
        if present[name]
    ]
    if not known:
        remedy = "record the host too, with the HLO programs"
        return Grade(MEMORY, NO, "neither a memory plan nor allocator events", remedy)
    doubts = [] if capacity else ["the capacity of the device is unknown: no headroom"]
    if not present["memory plan"]:
        doubts.append("no plan: nothing of what fills it")
    elif not present["heap trace"]:
        doubts.append("no heap trace: the peak is all that is allocated")
    return Grade(MEMORY, CARE if doubts else YES, "; ".join([*known, *doubts]))


def _collectives(groups: Coverage, mesh: bool) -> Grade:
    if not groups.ops:
        return Grade(COLLECTIVES, NOTHING, "no collective takes time of its own in the steps")
    known = share(groups)
    reason = f"the groups of {_percent(known)} of exposed communication are known"
    if known < SOME:
        return Grade(COLLECTIVES, NO, reason, "record with the HLO programs")
    if not mesh:
        return Grade(COLLECTIVES, CARE, f"{reason}; no mesh names the axes", "--config with mesh names the axes")
    return Grade(COLLECTIVES, YES if known >= MOST else CARE, f"{reason}, and the mesh names the axes")


def _causes(knobs: bool, versions: bool) -> Grade:
    if knobs:
        text = "the run's configuration is known"
        return Grade(CAUSES, YES if versions else CARE, text + ("" if versions else "; software versions are not"))
    return Grade(CAUSES, NO, "no configuration of the run", "--config with the YAML of the run")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _percent(fraction: float) -> str:
    """A share that is "100 %" or "0 %" only where it is all or nothing."""
    if fraction in (0.0, 1.0):
        return f"{fraction:.0%}".replace("%", " %")
    text = f"{fraction:.1%}".replace("%", " %")
    return {"100.0 %": "over 99.9 %", "0.0 %": "under 0.1 %"}.get(text, text)
