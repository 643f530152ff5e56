"""What to try next on the optimized side: only what its own figures carry.

Every suggestion has a gain that is an upper bound (the time goes away and nothing takes its place) and, where it costs
memory, what it costs against the room that is left. What cannot be told is not suggested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiler.analysis.summary import Measured
from profiler.compare.phrases import calls, duration, gib
from profiler.results import Finding
from profiler.runinfo import number

LEAST = 0.003  # of the step: a gain below it is not worth a line
EXPOSED = 0.05  # of the step: communication that no compute hides
IDLE = 0.10
_FIXED = ("optimizer", "all-gather", "all-reduce", "reduce-scatter")


def suggestions(side: Measured) -> tuple[Finding, ...]:
    """What to try next, largest gain first."""
    memory = side.summary.memory
    used = memory.static_allocated_bytes or memory.static_peak_bytes
    room = memory.capacity_bytes - used if memory.capacity_bytes and used else None
    found = [*_exposed(side), *_idle(side)]
    if room is not None and room > 0:
        found += [*_keep(side, room), *_batch(side, room, used or 0)]
    return tuple(sorted(found, key=lambda each: each.time_ps or 0.0))


def _gain(side: Measured, time: float) -> float | None:
    """MFU points if ``time`` of the step went away."""
    mfu, step = side.summary.mfu, side.times.step_ps
    return 100 * mfu * time / (step - time) if mfu and step > time else None


def _finding(side: Measured, title: str, time: float, knobs: tuple[str, ...], *evidence: str) -> Finding:
    share = f"at most {duration(time)[0]} of a {side.times.unit} of {duration(side.times.step_ps)[0]}"
    return Finding(title, _gain(side, time), -time, knobs, (share, *evidence), "medium")


def _keep(side: Measured, room: int) -> list[Finding]:
    """Tensors that would fit into the room that is left, and re-runs that nothing would need then."""
    config = _config(side)
    if config.get("remat_policy") is None or not side.summary.remat.rerun_calls_per_step:
        return []
    from profiler.analysis.rerun import remat

    return [
        _finding(
            side,
            f"keep {each.tensor} (remat_policy=custom, {each.tensor}=device): it runs again in the backward pass",
            each.saved_time_ps_per_step,
            ("remat_policy", each.tensor),
            f"takes about {gib(each.bytes)}, and {gib(room)} are left",
            f"with it go {calls(each.saved_calls_per_step)} calls per {side.times.unit}",
        )
        for each in remat(side).options
        if each.tensor.isidentifier()  # not the line of all together
        and each.bytes is not None
        and each.bytes <= room
        and each.saved_time_ps_per_step >= LEAST * side.times.step_ps
    ]


def _batch(side: Measured, room: int, used: int) -> list[Finding]:
    """A bigger batch, where what grows with it fits and something is amortised."""
    batch = number(_config(side).get("per_device_batch_size"))
    arguments = [module.buffers.argument_bytes for module in side.trace.programs.values() if module.buffers]
    if not batch or not arguments:
        return []
    more = (used - max(arguments)) / batch
    fixed = sum(row.time_ps_per_step for row in side.summary.families if row.family in _FIXED)
    saved = fixed / (batch + 1)
    if more > room or saved < LEAST * side.times.step_ps:
        return []
    title = f"per_device_batch_size {batch:g} → {batch + 1:g}: {', '.join(_FIXED)} are amortised"
    return [
        _finding(
            side, title, saved, ("per_device_batch_size",), f"takes at most {gib(more)} more, and {gib(room)} are left"
        )
    ]


def _exposed(side: Measured) -> list[Finding]:
    """Communication and host transfers that no compute hides."""
    step, config = side.times.step_ps, _config(side)
    times: dict[tuple[str, str], float] = {}
    for row in side.summary.families:
        if row.category in ("communication", "transfer") and row.family != "async copy":
            key = row.family, row.category
            times[key] = times.get(key, 0.0) + row.time_ps_per_step
    return [
        _finding(
            side,
            f"hide or shrink {family}: {100 * time / step:.1f} % of the {side.times.unit} waits for it",
            time,
            knobs,
        )
        for (family, category), time in times.items()
        if time >= EXPOSED * step
        for keys in [("decoder_layer_input",) if category == "transfer" else ("ici_fsdp_parallelism", "xla_flags")]
        for knobs in [tuple(key for key in keys if key in config)]
    ]


def _idle(side: Measured) -> list[Finding]:
    idle, step = side.times.idle_ps, side.times.step_ps
    if side.times.unit != "step" or idle < IDLE * step or all(each.platform == "cpu" for each in side.trace.devices):
        return []  # a CPU is its own host: its gaps are the scheduling of its threads
    title = f"shorten idle time: no op runs {100 * idle / step:.1f} % of the step (profiler comm tells the causes)"
    return [_finding(side, title, idle, ())]


def _config(side: Measured) -> Mapping[str, Any]:
    found = (side.trace.run_info or {}).get("config")
    return found if isinstance(found, Mapping) else {}
