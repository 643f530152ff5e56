"""What fills the device's memory at the static peak, by part of the step and tensor."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from profiler.analysis.places import NOWHERE, Namer, Place
from profiler.hlo import HloModule, shapes


@dataclass(frozen=True)
class LiveBuffer:
    """Memory that is held at the peak: one buffer, or several of one place and shape.

    Attributes:
        place: which part of the step and which tensor it belongs to.
        shape: as HLO prints it, without its layout.
        bytes: of all of them together.
        count: how many.
        instruction: the HLO instruction of the first.
        op_name: its JAX name stack, or the argument's path.
    """

    place: Place
    shape: str
    bytes: int
    count: int
    instruction: str
    op_name: str


@dataclass(frozen=True)
class Memory:
    """Bytes of one device; ``profiler.hlo.buffers.Buffers`` says what each figure is.

    ``live`` is what is held at the peak, largest first; it sums to ``peak_bytes``.
    """

    peak_bytes: int
    allocated_bytes: int
    argument_bytes: int
    host_bytes: int
    live: tuple[LiveBuffer, ...]


def memory(module: HloModule) -> Memory | None:
    """Memory of a program; None without a buffer assignment."""
    found = module.buffers
    if found is None:
        return None
    namer = Namer(module)
    groups: dict[tuple[Place, str], list[tuple[int, str, str]]] = defaultdict(list)
    for root, sharers in found.held.items():
        named = [_named(module, namer, found.buffers[buffer]) for buffer in sorted({root} | sharers)]
        where, shape, instruction, op_name = max(named, key=lambda each: each[0].certainty)
        groups[where, shape].append((found.buffers[root].size, instruction, op_name))
    live = [
        LiveBuffer(where, shape, sum(size for size, *_ in members), len(members), *members[0][1:])
        for (where, shape), members in groups.items()
    ]
    return Memory(
        found.peak_bytes,
        found.allocated_bytes,
        found.argument_bytes,
        found.host_bytes,
        tuple(sorted((each for each in live if each.bytes), key=lambda each: -each.bytes)),
    )


def _named(module: HloModule, namer: Namer, buffer: Any) -> tuple[Place, str, str, str]:
    """(place, shape, instruction, name stack) of a buffer."""
    proto = module.protos.get(buffer.defined_at.instruction_id)
    name = module.name_of(proto) if proto is not None else buffer.defined_at.instruction_name.decode("utf-8", "replace")
    instruction = module.instructions.get(name)
    if instruction is None:
        return NOWHERE, "", name, ""
    shape = instruction.proto.shape
    for index in buffer.defined_at.shape_index:
        if index >= len(shape.tuple_shapes):
            break
        shape = shape.tuple_shapes[index]
    return namer.place(instruction), shapes.text(shape).partition("{")[0], name, instruction.op_name
