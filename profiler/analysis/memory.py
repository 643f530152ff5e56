"""What fills the device's memory at the static peak: by group, stack of layers and tensor."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from profiler.analysis import families
from profiler.analysis.opfacts import OpFacts
from profiler.analysis.places import NOWHERE, Namer, Place
from profiler.hlo import HloModule, shapes
from profiler.hlo.module import Instruction

PARAMETERS, OPTIMIZER, SAVED, GRADIENTS = "parameters", "optimizer state", "saved for backward", "gradients"
TEMPORARIES, COLLECTIVES, INPUTS, ARGUMENTS = "temporaries", "collectives", "inputs", "arguments"
OUTPUTS, CONSTANTS = "outputs", "constants"
GROUPS = (
    PARAMETERS, OPTIMIZER, SAVED, GRADIENTS, TEMPORARIES, COLLECTIVES, INPUTS, ARGUMENTS, OUTPUTS, CONSTANTS
)  # fmt: skip
OPTIMIZER_PHASE = "optimizer"
_FORWARD = frozenset({"forward", "student forward", "teacher"})
_BACKWARD = frozenset({"backward", "student backward", "re-run"})


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
        group: one of GROUPS.
    """

    place: Place
    shape: str
    bytes: int
    count: int
    instruction: str
    op_name: str
    group: str = TEMPORARIES


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


def memory(module: HloModule, namer: Namer | None = None) -> Memory | None:
    """Memory of a program; None without a buffer assignment."""
    found = module.buffers
    if found is None:
        return None
    namer = namer or Namer(module)
    groups: dict[tuple[Place, str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for root, sharers in found.held.items():
        named = [_named(module, namer, found.buffers[buffer]) for buffer in sorted({root} | sharers)]
        best = max(named, key=lambda each: (each.place.certainty, each.size))
        group = _group(namer, named, best, found.roles.get(root))
        groups[best.place, best.shape, group].append((found.buffers[root].size, best.name, best.op_name))
    live = [
        LiveBuffer(where, shape, sum(size for size, *_ in members), len(members), *members[0][1:], group)
        for (where, shape, group), members in groups.items()
    ]
    rest = found.peak_bytes - sum(each.bytes for each in live)
    if rest > 0:  # allocated and assigned to no buffer that could be named
        live.append(LiveBuffer(NOWHERE, "", rest, 1, "", ""))
    return Memory(
        found.peak_bytes,
        found.allocated_bytes,
        found.argument_bytes,
        found.host_bytes,
        tuple(sorted((each for each in live if each.bytes), key=lambda each: -each.bytes)),
    )


@dataclass(frozen=True)
class _Named:
    """A buffer by what makes it."""

    instruction: Instruction | None
    place: Place
    shape: str
    name: str
    op_name: str
    size: int


def _named(module: HloModule, namer: Namer, buffer: Any) -> _Named:
    proto = module.protos.get(buffer.defined_at.instruction_id)
    name = module.name_of(proto) if proto is not None else buffer.defined_at.instruction_name.decode("utf-8", "replace")
    instruction = module.instructions.get(name)
    if instruction is None:
        return _Named(None, NOWHERE, "", name, "", buffer.size)
    shape, index = instruction.proto.shape, list(buffer.defined_at.shape_index)
    for each in index:
        if each >= len(shape.tuple_shapes):
            break
        shape = shape.tuple_shapes[each]
    text = shapes.text(shape).partition("{")[0] if not shape.tuple_shapes else "tuple"
    outer = namer.caller(instruction)
    return _Named(instruction, namer.place(instruction, index), text, name, (outer or instruction).op_name, buffer.size)


def _group(namer: Namer, named: list[_Named], best: _Named, role: str | None) -> str:
    """What a buffer is for, by the first evidence there is.

    A forward value that a backward op reads is saved for it; a backward value that the optimizer reads is a gradient.
    """
    part = best.place.part
    if role == "argument":
        return next((group for group in (PARAMETERS, OPTIMIZER, INPUTS) if part.endswith(group)), ARGUMENTS)
    if any(_is_collective(namer, each.instruction) for each in named if each.instruction is not None):
        return COLLECTIVES
    if part in (SAVED, GRADIENTS):
        return part
    if role is not None:
        return OUTPUTS if role == "output" else CONSTANTS
    if best.instruction is not None and part in _FORWARD | _BACKWARD:
        users = namer.user_phases(best.instruction)
        if part in _FORWARD and not users.isdisjoint(_BACKWARD):
            return SAVED
        if part in _BACKWARD and OPTIMIZER_PHASE in users:
            return GRADIENTS
    return TEMPORARIES


def _is_collective(namer: Namer, instruction: Instruction) -> bool:
    """Whether an instruction is a collective, alone, asynchronous, or fused."""
    made = namer.caller(instruction) or instruction
    if made.opcode in ("parameter", "constant", "while"):
        return False
    facts = OpFacts(made.name, opcode=made.opcode, fused_opcodes=made.fused_opcodes)
    return families.rank(families.family(facts)) == families.COMMUNICATION
