"""The compiler's schedule dump (``*.schedule.txt``): what its latency-hiding scheduler thought each instruction takes.

A text proto of an ``xla.ScheduleProto``: the module as it was then, and per computation the start and end of every
instruction in cycles. Later passes rename and fuse, so an instruction of the final program is found by name, else by
opcode and name stack.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cycles per instruction.

    Attributes:
        by_name: instruction name → cycles.
        by_stack: (opcode, name stack) → median cycles of the instructions that share both.
        cycles_per_us: the clock that the cycles count; None where the dump does not say.
    """

    by_name: Mapping[str, float] = field(default_factory=dict)
    by_stack: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cycles_per_us: float | None = None

    def cycles(self, name: str, opcode: str, op_name: str) -> float | None:
        """The cycles of an instruction, None where the schedule has nothing like it."""
        found = self.by_name.get(name)
        return found if found is not None else self.by_stack.get((opcode, op_name)) if op_name else None


def parse(text: str) -> Schedule:
    """Reads a dump. What it does not know it skips, so that a newer dump still gives what it can."""
    reader = _Reader()
    for line in text.splitlines():
        reader.feed(line.strip())
    return reader.schedule()


@dataclass
class _Reader:
    """State of one pass over the lines; the dump has a field per line and no blocks on one line."""

    path: list[str] = field(default_factory=list)
    instruction: dict[str, str] = field(default_factory=dict)
    named: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # id → name, opcode, op_name
    spans: list[tuple[str, float]] = field(default_factory=list)  # id, cycles
    cycles_per_us: float | None = None

    def feed(self, line: str) -> None:
        if line.endswith("{"):
            self.path.append(line[:-1].rstrip(" :"))
            if self.path[-1] == "instructions":
                self.instruction = {}
        elif line == "}":
            self._close()
        else:
            key, _, value = line.partition(": ")
            if key == "cycles_per_microsecond":
                self.cycles_per_us = _number(value) or self.cycles_per_us
            elif self.path[-1:] == ["instructions"]:
                self.instruction.setdefault(key, value.strip('"'))
            elif key == "op_name" and self.path[-2:] == ["instructions", "metadata"]:
                self.instruction["op_name"] = value.strip('"')

    def schedule(self) -> Schedule:
        by_name: dict[str, float] = {}
        groups: dict[tuple[str, str], list[float]] = {}
        for number, cycles in self.spans:
            name, opcode, op_name = self.named.get(number, ("", "", ""))
            by_name[name] = cycles
            groups.setdefault((opcode, op_name), []).append(cycles)
        by_name.pop("", None)
        by_stack = {key: statistics.median(values) for key, values in groups.items() if key[1]}
        return Schedule(by_name, by_stack, self.cycles_per_us)

    def _close(self) -> None:
        closed = self.path.pop() if self.path else ""
        if closed != "instructions":
            return
        found, number = self.instruction, self.instruction.get("id", "")
        if self.path[-1:] == ["computation_schedules"]:
            start, end = (
                _number(found.get("start_timestamp_cycles", "0")),
                _number(found.get("end_timestamp_cycles", "")),
            )
            if start is not None and end is not None and end >= start:
                self.spans.append((number, end - start))
        else:
            self.named[number] = (found.get("name", ""), found.get("opcode", ""), found.get("op_name", ""))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
