"""Name stacks for instructions that lost theirs.

Some XLA passes make new instructions without metadata (XLA:CPU's batched dots, copies, broadcasts). What such an
instruction belongs to can be read off the dataflow: the instructions that use its result, else those that feed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.hlo.module import HloModule, Instruction

MAX_DEPTH = 4  # unnamed instructions passed on the way to a named one


def near_op_name(instruction: Instruction) -> str | None:
    """The name stack of the nearest named neighbour within the computation: users before operands; None without any.

    Of several at equal distance the most frequent name counts, ties by name. The last segment, the neighbour's own
    primitive, is left out.
    """
    users = _users(instruction.module, instruction.computation)
    operands = {each.name: each.operands for each in _members(instruction)}
    for edges in (users, operands):
        found = _nearest(instruction, edges)
        if found:
            return found.rpartition("/")[0] or None
    return None


def _nearest(start: Instruction, edges: Mapping[str, tuple[str, ...]]) -> str | None:
    table = start.module.instructions
    level, seen = [start.name], {start.name}
    for _ in range(MAX_DEPTH):
        level = [name for each in level for name in dict.fromkeys(edges.get(each, ())) if name not in seen]
        seen.update(level)
        names = Counter(_own_name(table[name]) for name in level if name in table)
        names.pop("", None)
        if names:
            most = max(names.values())
            return min(name for name, count in names.items() if count == most)
    return None


def _own_name(instruction: Instruction) -> str:
    """The name stack of an instruction, or of what a fusion holds when that is one thing."""
    inside = instruction.fused_op_names
    return instruction.op_name or (inside[0] if len(inside) == 1 else "")


def _members(instruction: Instruction) -> tuple[Instruction, ...]:
    computation = instruction.module.computations.get(instruction.computation)
    return computation.instructions if computation else ()


@lru_cache(maxsize=256)
def _users(module: HloModule, computation: str) -> Mapping[str, tuple[str, ...]]:
    """Instruction → the instructions of its computation that use its result."""
    found: dict[str, list[str]] = {}
    for each in module.computations[computation].instructions:
        for operand in each.operands:
            found.setdefault(operand, []).append(each.name)
    return {name: tuple(users) for name, users in found.items()}
