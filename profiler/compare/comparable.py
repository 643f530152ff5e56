"""Whether two sides can be compared, before any figure is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from profiler.analysis.summary import Measured
from profiler.compare.align import dominant_program, stable_shape
from profiler.compare.attribute import Work, points_per_ps
from profiler.compare.devicetime import unmarked_and_idle
from profiler.compare.knob_table import MODEL
from profiler.errors import UsageError
from profiler.results import Knob, Note
from profiler.trace import Trace

MOST_KEYS = 3  # keys of a model, kinds of devices: how many are named
MOST_NAME = 80  # characters of a device's name


@dataclass(frozen=True)
class Comparability:
    """``blocking`` are reasons that need --force; ``notes`` are to be kept in mind."""

    blocking: tuple[Note, ...]
    notes: tuple[Note, ...]


def check(baseline: Measured, optimized: Measured, work: Work) -> Comparability:
    """Devices, kind of trace, steps, shapes and units of the two sides."""
    blocking: list[Note] = []
    notes: list[Note] = []
    b, o = baseline.trace, optimized.trace
    if b.kind != o.kind:
        blocking.append(Note("kind_differs", f"one side is {b.kind}, the other {o.kind}: compiled times are estimates"))
    platforms = {each.platform for each in b.devices}, {each.platform for each in o.devices}
    types = {each.type for each in b.devices}, {each.type for each in o.devices}
    if platforms[0] != platforms[1] or (types[0] != types[1] and None not in types[0] | types[1]):
        blocking.append(Note("device_differs", f"the devices differ: {_names(types[0])} against {_names(types[1])}"))
    elif baseline.peak_tflops != optimized.peak_tflops and baseline.peak_tflops and optimized.peak_tflops:
        blocking.append(
            Note("peak_differs", f"the peaks differ: {baseline.peak_tflops:g}, {optimized.peak_tflops:g} TFLOP/s")
        )
    if baseline.times.unit != optimized.times.unit:
        blocking.append(
            Note(
                "unit_differs",
                f"one side is timed per {baseline.times.unit}, the other per {optimized.times.unit}: "
                "only one of them repeats a step (--normalize run compares whole recordings)",
            )
        )
    if len(b.devices) != len(o.devices):
        notes.append(
            Note(
                "devices_differ",
                f"ops were recorded on {_count(b)} in the baseline and on {_count(o)} in the optimized run: all "
                "figures are per device, and sums over devices would mislead",
            )
        )
    notes += _programs(baseline, optimized, work)
    conventions = baseline.summary.mfu_inputs.convention, optimized.summary.mfu_inputs.convention
    if work.unit == "flop" and conventions[0] != conventions[1]:
        notes.append(
            Note(
                "convention_differs", f"model FLOPs are counted by two conventions: {conventions[0]}; {conventions[1]}"
            )
        )
    flops = baseline.model_flops, optimized.model_flops
    if work.unit != "flop" and flops[0] and flops[1] and points_per_ps(baseline, optimized, work) is None:
        notes.append(Note("mfu_not_split", f"normalised per {work.unit}, so the time is split and not the MFU"))
    for side, measured in (("baseline", baseline), ("optimized", optimized)):
        if measured.times.unit == "step" and measured.times.steps < 3 and measured.trace.kind != "compiled":
            notes.append(Note("few_steps", f"the {side} run has only {measured.times.steps} whole step(s)"))
    if unmarked_and_idle(baseline) or unmarked_and_idle(optimized):
        notes.append(
            Note(
                "mostly_idle",
                f"nobody marked steps, and between executions the devices were idle "
                f"{1 - baseline.summary.busy_fraction:.0%} (baseline) and {1 - optimized.summary.busy_fraction:.0%} "
                "(optimized) of the time: that is the host's time, so device time per execution is compared "
                "(jax.profiler.StepTraceAnnotation marks steps)",
            )
        )
    notes += _moved_labels(baseline, optimized)
    versions = {
        key: (b.versions[key], o.versions[key])
        for key in sorted(set(b.versions) & set(o.versions))
        if b.versions[key] != o.versions[key]
    }
    if versions:
        text = ", ".join(f"{key.removesuffix('_version')} {old} → {new}" for key, (old, new) in versions.items())
        notes.append(Note("versions_differ", f"the software differs: {text}"))
    return Comparability(tuple(blocking), tuple(notes))


def model_notes(knobs: Sequence[Knob]) -> tuple[Note, ...]:
    """Two models: no part of the change is that of any other knob alone."""
    keys = [knob.key for knob in knobs if knob.group == MODEL]
    if not keys:
        return ()
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    text = f"the models differ ({', '.join(keys[:MOST_KEYS])}{more}): every time may come from that"
    return (Note("model_differs", f"{text}, and what another knob did cannot be told apart"),)


def _moved_labels(baseline: Measured, optimized: Measured) -> list[Note]:
    """Re-runs that differ while the compiler counts equal FLOPs: it merged ops, and only names tell of re-runs."""
    flops = [side.summary.compiler_tflops_per_step for side in (baseline, optimized)]
    reruns = [side.summary.remat.rerun_time_ps_per_step for side in (baseline, optimized)]
    step = min(baseline.times.step_ps, optimized.times.step_ps)
    if None in flops or abs(reruns[0] - reruns[1]) < 0.02 * step:
        return []
    before, after = (value or 0.0 for value in flops)
    if abs(before - after) > 0.001 * max(before, after):
        return []
    return [
        Note(
            "rerun_names_moved",
            "re-runs differ by name, but the compiler counts the same FLOPs on both sides: it may have merged re-run "
            "and forward ops, so that no work was saved",
        )
    ]


def work_of(baseline: Measured, optimized: Measured, normalize: str) -> Work:
    """What the two sides are compared per.

    "auto" takes model FLOPs where both sides have them, else tokens, else the step as it is.

    Raises:
        UsageError: ``normalize`` asks for what is not known.
    """
    flops, tokens = (baseline.model_flops, optimized.model_flops), (baseline.tokens, optimized.tokens)
    if normalize in ("auto", "flop") and flops[0] and flops[1]:
        return Work("flop", flops[0], flops[1])
    if normalize == "flop":
        raise UsageError("--normalize flop needs both sides' model FLOPs", remedy="give --model-tflops or --config")
    if normalize in ("auto", "token") and tokens[0] and tokens[1]:
        return Work("token", tokens[0], tokens[1])
    if normalize == "token":
        raise UsageError("--normalize token needs both sides' tokens", remedy="give --tokens-per-step or --config")
    if normalize == "step" and "run" in (baseline.times.unit, optimized.times.unit):
        raise UsageError("--normalize step: no step repeats in one of the recordings", remedy="use --normalize run")
    return Work(baseline.times.unit, 1.0, 1.0)


def same_work(baseline: Measured, optimized: Measured) -> bool:
    """Whether the step's program takes arguments of the same shapes, so that a step does the same work."""
    shapes = _step_shapes(baseline), _step_shapes(optimized)
    return bool(shapes[0]) and shapes[0] == shapes[1]


def _programs(baseline: Measured, optimized: Measured, work: Work) -> list[Note]:
    notes = []
    names = _step_program(baseline), _step_program(optimized)
    if names[0] and names[1] and names[0] != names[1]:
        notes.append(
            Note("program_differs", f"the programs that take the most time differ: {names[0]} against {names[1]}")
        )
    shapes = _step_shapes(baseline), _step_shapes(optimized)
    if work.unit in ("step", "run") and shapes[0] and shapes[1] and shapes[0] != shapes[1]:
        notes.append(
            Note(
                "shapes_differ",
                "the arguments of the step differ in shape, so a step may not do the same work: give "
                "--tokens-per-step or --model-tflops to compare like with like",
            )
        )
    return notes


def _dominant(measured: Measured) -> tuple[str, str] | None:
    """(file, program id) of the program that takes the most time."""
    table = measured.times.ops.join(measured.trace.ops, on="op_id", how="left")
    program_id = dominant_program(table)
    if program_id is None:
        return None
    return next((key for key in measured.trace.programs if key[1] == program_id), (measured.trace.files[0], program_id))


def _step_program(measured: Measured) -> str | None:
    key = _dominant(measured)
    if key is None:
        return None
    names = measured.trace.ops.filter(pl.col("program_id") == key[1])["program"].drop_nulls()
    return str(names[0]) if len(names) else None


def _step_shapes(measured: Measured) -> tuple[str, ...]:
    key = _dominant(measured)
    module = measured.trace.programs.get(key) if key else None
    if module is None:
        return ()
    entry = module.computations.get(module.entry)
    if entry is None:
        return ()
    return tuple(stable_shape(each.shape) for each in entry.instructions if each.opcode == "parameter")


def _names(types: set[str | None]) -> str:
    named = sorted((name or "an unnamed device")[:MOST_NAME] for name in types)
    more = [f"{len(named) - MOST_KEYS} more"] if len(named) > MOST_KEYS else []
    return " and ".join([*named[:MOST_KEYS], *more]) or "no device"


def _count(trace: Trace) -> str:
    fleet = trace.run_fleet or trace
    count = len(fleet.devices)
    total = count + len(fleet.idle_devices)
    noun = "device" if total == 1 else "devices"
    return f"{count} of {total} {noun}" if total > count else f"{count} {noun}"
