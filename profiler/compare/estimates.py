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
