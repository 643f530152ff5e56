"""The program that a compiled profile carries: its HLO proto without what nobody reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from profiler.analysis.kernelcalls import TILES_ATTRIBUTE
from profiler.hlo import buffers
from profiler.hlo.schema import hlo

# What is read of a backend config: trip counts, kernels' cost estimates, and the compiler's cycles.
_KEPT = re.compile(
    rb'"(?:known_trip_count"\s*:\s*\{[^{}]*\}|cost_estimate"\s*:\s*\{[^{}]*\}|estimated_cycles"\s*:\s*"?\d+"?)'
)
_LONGEST_LITERAL = 64  # bytes; scalars stay, since trip counts come from them
_LIBRARIES, _PACKAGE = ("site-packages", "dist-packages"), "distill"


def stripped(
    data: bytes, static_peak_bytes: int | None, host_bytes: int | None, tiles: Mapping[int, Mapping[str, int]]
) -> bytes:
    """An ``HloProto`` without kernel byte code, array literals and compiler settings, with its memory totals.

    Args:
        data: serialized ``HloProto`` or ``HloModuleProto``.
        static_peak_bytes: device memory that the program occupies, arguments included; None if not known.
        host_bytes: memory that it occupies on the host.
        tiles: instruction id → what its kernel's code said of its tiles, to be noted beside the call.
    """
    wrapped = hlo().HloProto()
    try:
        wrapped.ParseFromString(data)
        bare = not wrapped.hlo_module.computations
    except Exception:  # protobuf's DecodeError; its class differs between protobuf implementations
        bare = True
    if bare:
        wrapped = hlo().HloProto()
        wrapped.hlo_module.ParseFromString(data)
    payloads = list(wrapped.hlo_module.payloads)
    for computation in wrapped.hlo_module.computations:
        for instruction in computation.instructions:
            if instruction.metadata.source_file:
                instruction.metadata.source_file = _portable(instruction.metadata.source_file)
            if len(instruction.literal) > _LONGEST_LITERAL:
                instruction.literal = b""
            payload = instruction.backend_config_payload
            config = instruction.backend_config or payload.value
            if not config and 0 <= payload.id < len(payloads) and instruction.HasField("backend_config_payload"):
                config = payloads[payload.id]
            instruction.backend_config = _kept(config)
            instruction.ClearField("backend_config_payload")
            if instruction.id in tiles:
                note = json.dumps(tiles[instruction.id]).encode()
                instruction.frontend_attributes.map.add(key=TILES_ATTRIBUTE.encode(), value=note)
    del wrapped.hlo_module.payloads[:]
    names = wrapped.hlo_module.stack_frame_index.file_names
    names[:] = [_portable(name) for name in names]
    if wrapped.buffer_assignment:
        wrapped.buffer_assignment = _without_names(wrapped.buffer_assignment)
    elif static_peak_bytes:
        wrapped.buffer_assignment = _assignment(static_peak_bytes, host_bytes or 0)
    result: bytes = wrapped.SerializeToString()
    return result


def fingerprint(data: bytes) -> int:
    """A number for the program that changes with its text: 63 bits, as ``program_id``."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") >> 1


def _kept(config: bytes) -> bytes:
    """The parts of a backend config that something reads, as JSON; nothing if there are none."""
    parts = _KEPT.findall(config)
    return b"{" + b",".join(parts) + b"}" if parts else b""


def portable(source: str) -> str:
    """A source file without the folders of the machine that compiled: from its package on, else its name alone.

    The compile may come from a cache that another checkout has filled, so that ours is told by its name.
    """
    for root in _LIBRARIES:
        _, found, rest = source.rpartition(f"{root}/")
        if found:
            return rest
    _, found, rest = source.rpartition(f"/{_PACKAGE}/")
    if found:
        return f"{_PACKAGE}/{rest}"
    return source.rpartition("/")[2] if source.startswith("/") else source


def _portable(source: bytes) -> bytes:
    return portable(source.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _without_names(assignment: bytes) -> bytes:
    """A buffer assignment whose heap events do not repeat the names of their instructions: half of its size."""
    found = buffers.messages().Assignment.FromString(assignment)
    for trace in found.traces:
        for event in trace.events:
            event.DiscardUnknownFields()
    data: bytes = found.SerializeToString()
    return data


def _assignment(device_bytes: int, host_bytes: int) -> bytes:
    """A ``BufferAssignmentProto`` of one allocation per memory: libtpu gives none, only totals."""
    found = buffers.messages().Assignment()
    found.allocations.add(size=device_bytes, color=buffers.DEVICE)
    if host_bytes:
        found.allocations.add(size=host_bytes, color=buffers.HOST)
    data: bytes = found.SerializeToString()
    return data
