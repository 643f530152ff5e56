"""How often each computation runs: the call graph, weighted with trip counts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from profiler.hlo.trips import trip_count

if TYPE_CHECKING:
    from profiler.hlo.module import HloModule, Instruction

# Callers that run the computation once each time they run. ``async-update`` and ``async-done`` name the same
# computation as their start and are not calls.
ONCE = frozenset({"fusion", "call", "async-start"})


def executions(module: HloModule) -> dict[str, float | None]:
    """Runs of every computation per run of the entry; None is unknown (see ``HloModule.executions``).

    Computations on a call cycle, which no valid program has, stay unknown.
    """
    calls: dict[str, list[tuple[str, float | None]]] = defaultdict(list)  # caller -> (callee, runs per caller run)
    waiting: dict[str, int] = defaultdict(int)  # callee -> call sites not yet resolved
    for computation in module.computations.values():
        for instruction in computation.instructions:
            for callee, times in _calls(instruction):
                calls[computation.name].append((callee, times))
                waiting[callee] += 1

    runs: dict[str, float | None] = {module.entry: 1.0}  # of computations that the entry reaches
    ready = [name for name in module.computations if not waiting[name]]
    while ready:
        name = ready.pop()
        for callee, times in calls[name]:
            if name in runs:
                runs[callee] = _add(runs.get(callee, 0.0), runs[name], times)
            waiting[callee] -= 1
            if not waiting[callee]:
                ready.append(callee)
    # What still waits lies on a cycle or behind one: its sum is not complete.
    return {name: None if waiting[name] else runs.get(name) for name in module.computations}


def _add(total: float | None, caller_runs: float | None, times: float | None) -> float | None:
    """total + caller_runs × times, where a caller that never runs adds nothing whatever ``times`` is."""
    if caller_runs == 0.0:
        return total
    return None if total is None or caller_runs is None or times is None else total + caller_runs * times


def _calls(instruction: Instruction) -> list[tuple[str, float | None]]:
    """The computations that an instruction runs, each with its runs per run of the instruction."""
    called = instruction.called
    if not called or instruction.opcode in ("async-update", "async-done"):
        return []
    if instruction.opcode == "while" and len(called) == 2:
        trips = trip_count(instruction)
        body, condition = called  # in this order in the proto
        return [(body, trips), (condition, None if trips is None else trips + 1)]
    return [(callee, 1.0 if instruction.opcode in ONCE else None) for callee in called]
