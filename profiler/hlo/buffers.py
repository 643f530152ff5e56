"""The buffer assignment of a compiled program: what lies in which memory, and what is held at the peak.

Field numbers are those of xla/service/hlo.proto; ``profiler.hlo.schema`` has the rest of that file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from profiler.xplane.schema import BOOL, BYTES, INT32, INT64, build_messages

DEVICE, HOST = 0, 5  # memory spaces ("colours"): the device's main memory, and the host's; 1 is VMEM on a TPU
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
class Buffers:
    """Bytes of one device, by three measures that are not the same.

    Attributes:
        peak_bytes: arguments, constants, outputs, and the most that temporaries hold at one time. On TPU it equals
            ``memory_analysis().peak_memory_in_bytes``, except in programs so small that more of VMEM is held than of
            HBM: libtpu (0.0.42, 0.0.52) then adds the former. Without heap traces, what is allocated.
        allocated_bytes: the same with the temporaries as they were packed, gaps included: what the compiler holds
            against the device's memory. A program fits if it is not more.
        argument_bytes: of the arguments, part of both.
        host_bytes: in host memory: what offloading puts there.
        buffers: by id, as the assignment has them.
        held: what is held at the peak: the owner of memory → the buffers that use it in turn.
        roles: of what is held throughout: the owner → "argument", "constant" or "output".
        history: (bytes held, buffer) after each event of the heap trace, in the order of the schedule; what is held
            throughout counts, so that the largest is ``peak_bytes``. Empty without a heap trace.
    """

    peak_bytes: int
    allocated_bytes: int
    argument_bytes: int
    host_bytes: int
    buffers: Mapping[int, Any]
    held: Mapping[int, frozenset[int]]
    roles: Mapping[int, str]
    history: tuple[tuple[int, int], ...]


def read(data: bytes) -> Buffers | None:
    """Reads a ``BufferAssignmentProto``; None for one that is empty or damaged.

    A fusion's own values are thread-local: libtpu 0.0.52 lists them with their sizes, but they lie in no memory of the
    device. Program code is in no assignment.
    """
    assignment = messages().Assignment()
    try:
        assignment.ParseFromString(data)
    except Exception:  # protobuf's DecodeError; its class differs between protobuf implementations
        return None
    allocations = [each for each in assignment.allocations if not each.is_thread_local]
    mine = [each for each in allocations if each.color == DEVICE]
    if not mine:
        return None
    buffers = {each.id: each for each in assignment.buffers}
    resident = [each for each in mine if each.is_parameter or each.maybe_live_out or each.is_constant]
    allocated = sum(each.size for each in mine)
    peak, held = sum(each.size for each in resident), dict[int, frozenset[int]]()
    roles: dict[int, str] = {}
    traces = [_replay(each, buffers) for each in assignment.traces if each.whole_module and _is_devices(each, buffers)]
    for more, groups, _ in traces:
        peak, held = peak + more, held | groups
    most, _, events = max(traces, key=lambda each: each[0], default=(0, {}, []))  # there is one, as a rule
    for allocation in resident:
        assigned = [each for each in allocation.assigned if each.buffer in buffers]  # all, unless it is damaged
        if assigned:
            first = max(assigned, key=lambda each: each.size)
            held[first.buffer] = frozenset(each.buffer for each in assigned if not each.offset)
            roles[first.buffer] = _role(allocation)
    return Buffers(
        peak_bytes=peak if traces else allocated,
        allocated_bytes=allocated,
        argument_bytes=sum(each.size for each in resident if each.is_parameter),
        host_bytes=sum(each.size for each in allocations if each.color == HOST),
        buffers=buffers,
        held=held,
        roles=roles,
        history=tuple((peak - most + size, buffer) for size, buffer in events),
    )


def _role(allocation: Any) -> str:
    """What memory that is held throughout is; a donated argument is an output too, and counts as an argument."""
    return "argument" if allocation.is_parameter else "constant" if allocation.is_constant else "output"


def _is_devices(trace: Any, buffers: Mapping[int, Any]) -> bool:
    first = buffers.get(trace.events[0].buffer) if trace.events else None
    return first is not None and first.color == DEVICE


def _replay(trace: Any, buffers: Mapping[int, Any]) -> tuple[int, dict[int, frozenset[int]], list[tuple[int, int]]]:
    """The peak of a heap trace in bytes, what it holds then (owner → the buffers that share its memory), its history.

    A shared buffer has the memory of its owner, which is free when the last of them is.
    """
    owner: dict[int, int] = {}
    users: dict[int, set[int]] = defaultdict(set)  # of memory that is held
    sharers: dict[int, set[int]] = defaultdict(set)  # all that ever use it
    size = peak = 0
    at_peak: list[int] = []
    history: list[tuple[int, int]] = []
    grown = False  # since the last look at the peak
    for event in trace.events:
        if event.buffer not in buffers:
            continue
        if event.kind == _FREE:
            if grown and size > peak:
                peak, at_peak = size, list(users)
            grown = False
            root = owner.get(event.buffer, event.buffer)
            users[root].discard(event.buffer)
            if not users[root]:
                del users[root]
                size -= buffers[root].size
            history.append((size, event.buffer))
            continue
        shared = owner.get(event.shared_with, event.shared_with)
        root = owner[event.buffer] = shared if event.kind == _SHARE and shared in buffers else event.buffer
        if root not in users:
            size += buffers[root].size
            grown = True
        users[root].add(event.buffer)
        sharers[root].add(event.buffer)
        history.append((size, event.buffer))
    if size > peak:  # nothing is freed after it
        peak, at_peak = size, list(users)
    return peak, {root: frozenset(sharers[root]) for root in at_peak}, history


@cache
def messages() -> SimpleNamespace:
    """The message classes: ``messages().Assignment`` is xla.BufferAssignmentProto."""
    return build_messages("profiler.hlo.buffers", _MESSAGES)
