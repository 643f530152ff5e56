"""Hand-made programs with a buffer assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from profiler.hlo import HloModule, buffers, parse
from profiler.hlo.schema import hlo

MIB = 1 << 20
_KINDS = ("allocate", "free", "share")


def planned(
    instructions: Iterable[tuple[Any, ...]],
    events: Iterable[tuple[str, int] | tuple[str, int, int]] = (),
    *,
    resident: Mapping[int, str] | None = None,
    sizes: Mapping[int, int] | None = None,
    packed: int = 0,
    host: int = 0,
) -> bytes:
    """An HloProto of one computation, and its plan.

    Args:
        instructions: (id, opcode, name stack or path, operand ids…); named ``opcode.id``, f32[256,1024], 1 MiB.
        events: the heap trace: ("allocate" | "free", buffer) or ("share", buffer, owner); a buffer has the number of
            the instruction that makes it.
        resident: buffer → "argument" | "output" | "constant".
        sizes: bytes of buffers that are not 1 MiB.
        packed: bytes of the allocation that the buffers of the heap trace were packed into.
        host: bytes in host memory.
    """
    proto = hlo().HloProto()
    module = proto.hlo_module
    module.name, module.entry_computation_name = b"jit_train_step", b"main"
    computation = module.computations.add(name=b"main", id=1)
    for number, opcode, op_name, *operands in instructions:
        each = computation.instructions.add(id=number, name=f"{opcode}.{number}".encode(), opcode=opcode.encode())
        each.metadata.op_name = op_name.encode()
        each.operand_ids.extend(operands)
        each.shape.element_type = 11
        each.shape.dimensions.extend([256, 1024])
    assignment = buffers.messages().Assignment()
    resident, sizes, events = resident or {}, sizes or {}, list(events)
    for number in sorted({*resident, *(event[1] for event in events)}):
        buffer = assignment.buffers.add(id=number, size=sizes.get(number, MIB))
        buffer.defined_at.instruction_id = number
    for number, role in resident.items():
        size = sizes.get(number, MIB)
        allocation = assignment.allocations.add(
            size=size, is_parameter=role == "argument", maybe_live_out=role == "output", is_constant=role == "constant"
        )
        allocation.assigned.add(buffer=number, size=size)
    trace = assignment.traces.add(whole_module=True)
    for kind, number, *owner in events:
        trace.events.add(kind=_KINDS.index(kind), buffer=number, shared_with=owner[0] if owner else 0)
    assignment.allocations.add(size=packed)
    assignment.allocations.add(size=host, color=buffers.HOST)
    proto.buffer_assignment = assignment.SerializeToString()
    return bytes(proto.SerializeToString())


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., bytes]:
    """Makes an HloProto with a buffer assignment; see ``planned``."""
    return planned


@pytest.fixture(scope="session")
def make_module() -> Callable[..., HloModule]:
    """The same, parsed."""
    return lambda *args, **kwargs: parse(planned(*args, **kwargs))
