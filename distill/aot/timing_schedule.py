"""What the compiler's latency-hiding scheduler thought each instruction takes, found again in the finished program.

Passes that run after the scheduler rename and fuse, so an instruction is found by its name, else by opcode and name
stack.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from distill.aot.dump import Schedule


@dataclass(frozen=True, slots=True)
class ScheduledCycles:
    """Cycles per instruction.

    Attributes:
        by_name: instruction name → cycles.
        by_stack: (opcode, name stack) → median cycles of the instructions that share both.
        cycles_per_us: the clock that the cycles count; None without a schedule.
    """

    by_name: Mapping[str, float] = field(default_factory=dict)
    by_stack: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cycles_per_us: float | None = None

    def find(self, name: str, opcode: str, op_name: str) -> float | None:
        """The cycles of an instruction, None where the schedule has nothing like it."""
        found = self.by_name.get(name)
        return self.by_stack.get((opcode, op_name)) if found is None else found


def cycles_of(schedule: Schedule | None) -> ScheduledCycles:
    """End less start of every instruction of a schedule; nothing without one."""
    if schedule is None:
        return ScheduledCycles()
    by_name: dict[str, float] = {}
    groups: dict[tuple[str, str], list[float]] = {}
    for computation in schedule.computations.values():
        for each in computation.instructions:
            cycles = max(0.0, each.end_cycles - each.start_cycles)
            by_name[each.name] = cycles
            if each.op_name:
                groups.setdefault((each.opcode, each.op_name), []).append(cycles)
    by_stack = {key: statistics.median(values) for key, values in groups.items()}
    return ScheduledCycles(by_name, by_stack, schedule.cycles_per_us or None)
