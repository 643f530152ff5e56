"""What the estimates of two compiled profiles can bear: the band of their ratio, and knobs that they cannot see.

Both come from the run info that `distill compile` writes (docs/run-info.md): ``estimates.sensitivity`` has the step
time with each uncertain constant at the fast and at the slow end of its range, the others at their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from profiler.analysis.summary import Measured
from profiler.results import Knob, Note
from profiler.runinfo import number

# What is timed, and the sources that time it, as `distill compile` names them.
_METHODS = {
    "kernels": ("kernel code", "kernel bundles", "kernel model"),
    "other ops": ("compiler cycles", "schedule"),
}
LEAST_SHARE = 0.02  # of the step: what a source tells less of makes no difference
MOST_CONSTANTS = 4


def band(baseline: Measured, optimized: Measured, scale: float) -> tuple[float, float] | None:
    """The range of optimized / baseline time for equal work over the ranges of the estimates' constants.

    A constant is one property of the chip, so both sides take it at the same end; constants are independent of one
    another, so that their effects on the logarithm of the ratio add as squares. None unless both sides are compiled and
    say how sensitive they are.

    Args:
        baseline, optimized: the sides.
        scale: makes optimized times those of the baseline's work.
    """
    before, after = _sensitivity(baseline), _sensitivity(optimized)
    if different(baseline, optimized):
        return None
    step_b, step_o = (number(_estimates(side).get("step_s")) for side in (baseline, optimized))
    if not before or not after or not step_b or not step_o:
        return None
    ratio = step_o / step_b
    down = up = 0.0
    for constant in before.keys() | after.keys():
        # A side that does not name a constant does not depend on it.
        ends = zip(before.get(constant, (step_b, step_b)), after.get(constant, (step_o, step_o)), strict=True)
        changes = [math.log(o / b / ratio) for b, o in ends]
        down += min(0.0, *changes) ** 2
        up += max(0.0, *changes) ** 2
    center = ratio * scale
    return center * math.exp(-math.sqrt(down)), center * math.exp(math.sqrt(up))


def different(baseline: Measured, optimized: Measured) -> tuple[str, ...]:
    """How the estimates of two compiled profiles were made differently, in words: a change may be the method's."""
    sides = baseline, optimized
    if any(side.trace.kind != "compiled" for side in sides):
        return ()
    found = []
    quick = [(side.trace.run_info or {}).get("quick") is True for side in sides]
    if quick[0] != quick[1]:
        found.append("a quick compile against a full one" if quick[0] else "a full compile against a quick one")
    for what, names in _METHODS.items():
        used = [[name for name in names if _weight(side, name) >= LEAST_SHARE] for side in sides]
        if used[0] and used[1] and used[0] != used[1]:
            found.append(f"{what} by {' and '.join(used[0])} against {' and '.join(used[1])}")
    before, after = (_constants(side) for side in sides)
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    if changed:
        more = f" and {len(changed) - MOST_CONSTANTS} more" if len(changed) > MOST_CONSTANTS else ""
        found.append(f"other constants: {', '.join(changed[:MOST_CONSTANTS])}{more}")
    return tuple(found)


def different_notes(reasons: Sequence[str]) -> tuple[Note, ...]:
    """A warning where the two estimates do not compare."""
    if not reasons:
        return ()
    text = f"the two estimates are made differently: {'; '.join(reasons)}. A difference in time may be the method's"
    return (Note("estimates_differ", f"{text}: compile both sides in the same way. Calls and HBM are exact"),)


def unseen(baseline: Measured, optimized: Measured) -> dict[str, str]:
    """Keys whose effect the estimates leave out, with the reason; empty for recordings."""
    return {str(key): str(text) for side in (baseline, optimized) for key, text in _unseen(side).items()}


def unseen_notes(reasons: Mapping[str, str], knobs: Sequence[Knob]) -> tuple[Note, ...]:
    """Knobs that differ and that no estimate sees: that nothing shows does not mean that nothing is."""
    by_reason: dict[str, list[str]] = {}
    for knob in knobs:
        if knob.key in reasons:
            by_reason.setdefault(reasons[knob.key], []).append(knob.key)
    return tuple(
        Note("effect_not_estimated", f"{', '.join(keys)} {'differs' if len(keys) == 1 else 'differ'}: {reason}")
        for reason, keys in by_reason.items()
    )


def _constants(side: Measured) -> dict[str, float | None]:
    """Constant → its value."""
    found = _estimates(side).get("constants")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(name)[:80]: number(each.get("value")) for name, each in pairs if isinstance(each, Mapping)}


def _weight(side: Measured, source: str) -> float:
    """The share of the step that a source of times tells."""
    found = _estimates(side)
    sources, step = found.get("sources"), number(found.get("step_s"))
    each = sources.get(source) if isinstance(sources, Mapping) else None
    time = number(each.get("core_s")) if isinstance(each, Mapping) else None
    return time / step if time and step else 0.0


def _sensitivity(side: Measured) -> dict[str, tuple[float, float]]:
    """Constant → step time in seconds at its (fast, slow) end; empty for a recording."""
    found = _estimates(side).get("sensitivity")
    pairs = found.items() if isinstance(found, Mapping) else ()
    read = {str(name): (number(ends[0]), number(ends[1])) for name, ends in pairs if _is_pair(ends)}
    return {name: (fast, slow) for name, (fast, slow) in read.items() if fast and slow}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _unseen(side: Measured) -> Mapping[str, Any]:
    found = _estimates(side).get("unseen_knobs")
    return found if isinstance(found, Mapping) else {}


def _estimates(side: Measured) -> Mapping[str, Any]:
    found = (side.trace.run_info or {}).get("estimates") if side.trace.kind == "compiled" else None
    return found if isinstance(found, Mapping) else {}
