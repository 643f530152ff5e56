"""Memory of a compiled program, from the buffer assignment that the compiler dumps beside its optimized HLO.

Three numbers, which are not the same:

- the peak: arguments, constants and outputs, and the most that temporaries hold at one time. It equals
  ``memory_analysis().peak_memory_in_bytes``, except in programs so small that more of VMEM is held than of HBM:
  libtpu (0.0.42, 0.0.52) then adds the former.
- what is allocated: the same with the temporaries as they were packed, gaps included. This is what the compiler holds
  against the device's memory: a program fits if it is not more.
- host memory: what offloading puts there.

Field numbers are those of xla/service/hlo.proto; ``profiler.hlo.schema`` has the rest of that file.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from distill.aot.names import NOWHERE, Namer, Place
from profiler.hlo import HloModule, shapes
from profiler.xplane.schema import BOOL, BYTES, INT32, INT64, build_messages

HBM, HOST = 0, 5  # memory spaces ("colours") of a TPU program
_ALLOCATE, _FREE, _SHARE = range(3)  # kinds of a heap event

_MESSAGES: dict[str, dict[str, tuple[int, Any]]] = {
    "Assignment": {"buffers": (1, ["Buffer"]), "allocations": (3, ["Allocation"]), "traces": (4, ["Trace"])},
    "Buffer": {"id": (1, INT64), "size": (2, INT64), "defined_at": (3, "Location"), "color": (4, INT64)},
    "Location": {"instruction_name": (2, BYTES), "shape_index": (3, [INT64]), "instruction_id": (4, INT64)},
    "Allocation": {
        "size": (2, INT64),
        "is_thread_local": (3, BOOL),
        "is_parameter": (5, BOOL),
        "maybe_live_out": (7, BOOL),
        "color": (8, INT64),
        "assigned": (9, ["Assigned"]),
        "is_constant": (12, BOOL),
    },
    "Assigned": {"buffer": (1, INT64), "offset": (2, INT64), "size": (3, INT64)},
    "Trace": {"events": (1, ["Event"]), "whole_module": (2, BOOL)},
    "Event": {"kind": (1, INT32), "buffer": (2, INT64), "shared_with": (5, INT64)},
}


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
    """Bytes of one device.

    Attributes:
        peak_bytes: HBM in use at the peak.
        allocated_bytes: HBM as assigned, which must not exceed the capacity.
        argument_bytes: HBM of the step's arguments, part of both.
        host_bytes: host memory as assigned.
        live: what is held at the peak, largest first.
    """

    peak_bytes: int
    allocated_bytes: int
    argument_bytes: int
    host_bytes: int
    live: tuple[LiveBuffer, ...]


def memory(module: HloModule) -> Memory | None:
    """Memory of a program; None without a buffer assignment."""
    if not module.buffer_assignment:
        return None
    assignment = _messages().Assignment.FromString(module.buffer_assignment)
    buffers = {buffer.id: buffer for buffer in assignment.buffers}
    resident = [a for a in assignment.allocations if a.color == HBM and _outlives(a)]
    peak, held = 0, dict[int, set[int]]()
    for trace in assignment.traces:
        if trace.whole_module and trace.events and buffers[trace.events[0].buffer].color == HBM:
            more, groups = _simulate(trace, buffers)
            peak, held = peak + more, held | groups
    for allocation in resident:
        if allocation.assigned:
            first = max(allocation.assigned, key=lambda each: each.size)
            held[first.buffer] = {each.buffer for each in allocation.assigned if not each.offset}
    return Memory(
        peak_bytes=peak + sum(a.size for a in resident),
        # A fusion's own values are thread-local; libtpu 0.0.52 lists them with their sizes, but they are in no HBM.
        allocated_bytes=sum(a.size for a in assignment.allocations if a.color == HBM and not a.is_thread_local),
        argument_bytes=sum(a.size for a in resident if a.is_parameter),
        host_bytes=sum(a.size for a in assignment.allocations if a.color == HOST),
        live=_grouped(module, buffers, held),
    )


def _outlives(allocation: Any) -> bool:
    """Whether an allocation is there for the whole step: arguments, outputs, constants."""
    lasting = allocation.is_parameter or allocation.maybe_live_out or allocation.is_constant
    return lasting and not allocation.is_thread_local


def _simulate(trace: Any, buffers: dict[int, Any]) -> tuple[int, dict[int, set[int]]]:
    """The peak of a heap trace in bytes, and what it holds then: owner → the buffers that share its memory.

    A shared buffer has the memory of its owner, which is free when the last of them is.
    """
    owner: dict[int, int] = {}
    users: dict[int, set[int]] = defaultdict(set)  # of memory that is held
    sharers: dict[int, set[int]] = defaultdict(set)  # all that ever use it
    size = peak = 0
    at_peak: list[int] = []
    grown = False  # since the last look at the peak
    for event in trace.events:
        if event.kind == _FREE:
            if grown and size > peak:
                peak, at_peak = size, list(users)
            grown = False
            root = owner.get(event.buffer, event.buffer)
            users[root].discard(event.buffer)
            if not users[root]:
                del users[root]
                size -= buffers[root].size
            continue
        shared = owner.get(event.shared_with, event.shared_with)
        root = owner[event.buffer] = shared if event.kind == _SHARE else event.buffer
        if root not in users:
            size += buffers[root].size
            grown = True
        users[root].add(event.buffer)
        sharers[root].add(event.buffer)
    return peak, {root: sharers[root] for root in at_peak}


def _grouped(module: HloModule, buffers: dict[int, Any], held: dict[int, set[int]]) -> tuple[LiveBuffer, ...]:
    """The buffers with names, those of one place and shape together, largest first."""
    namer = Namer(module)
    groups: dict[tuple[Place, str], list[tuple[int, str, str]]] = defaultdict(list)
    for root, sharers in held.items():
        named = [_named(module, namer, buffers[buffer]) for buffer in sorted({root} | sharers)]
        where, shape, instruction, op_name = max(named, key=lambda each: each[0].certainty)
        groups[where, shape].append((buffers[root].size, instruction, op_name))
    live = [
        LiveBuffer(where, shape, sum(size for size, *_ in found), len(found), *found[0][1:])
        for (where, shape), found in groups.items()
    ]
    return tuple(sorted((each for each in live if each.bytes), key=lambda each: -each.bytes))


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


@cache
def _messages() -> SimpleNamespace:
    return build_messages("distill.aot.buffers", _MESSAGES)
