"""What a recording measured: how long each op took on the core, and each transfer beside it.

Times are in the device's own clock. The profiler's common clock jumps in real recordings: of 1,504 ops of a TPU v6e,
90 differ by up to 200 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.aot.timing import Timer
from profiler.hlo import HloModule, Instruction
from profiler.hlo.module import CONTAINERS
from profiler.reduce.tpu import PLANE
from profiler.trace import Trace
from profiler.xplane import scan
from profiler.xplane.read import opened, plane_names

# How exactly the start and the end of a transfer have to be known, as a share of its time.
TOLERANCE = 0.1
_CYCLES = re.compile(rb'("estimated_cycles"\s*:\s*"?)\d+')
_LINE = "XLA Ops"
_CLOCK = ("device_offset_ps", "device_duration_ps")

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One instruction, as measured.

    Attributes:
        instruction: of the recorded program.
        seconds: the median of its calls; in flight for a start op, on the core for others.
        calls: how many of them could be measured.
    """

    instruction: Instruction
    seconds: float
    calls: int


@dataclass(frozen=True)
class _Transfer:
    """From the start op to its done op, ps: when the one began, and the span of the other."""

    instruction: Instruction
    started: int
    done_from: int
    done_to: int


def read_samples(trace: Trace, timer: Timer, wanted: Callable[[int], bool] = lambda device: True) -> list[Sample]:
    """The instructions of a recording with their measured times.

    Args:
        trace: a TPU recording with HLO.
        timer: says what works on an instruction.
        wanted: keeps a device, by its number.
    """
    found: dict[Instruction, list[Seconds]] = {}
    for calls in _planes(trace, wanted):
        for instruction, seconds in _measured(calls, timer).items():
            found.setdefault(instruction, []).append(seconds)
    samples = []
    for instruction, devices in found.items():
        if timer.resource(instruction) == "links" and len({len(each) for each in devices}) == 1:
            # The devices of a collective wait for the last of them, which has the shortest time.
            devices = [np.fmin.reduce(devices)]
        seconds = np.concatenate(devices)
        seconds = seconds[seconds > 0]  # leaves out nan
        if len(seconds):
            samples.append(Sample(instruction, float(np.median(seconds)), len(seconds)))
    return samples


Calls = list[tuple[Instruction, int, int]]  # instruction, start and end in ps, in order of start


def _planes(trace: Trace, wanted: Callable[[int], bool]) -> Iterator[Calls]:
    """The ops of each TensorCore."""
    programs = {program: module for (_, program), module in trace.programs.items()}
    for file in dict.fromkeys(trace.files):
        with opened(Path(file)) as (buffer, _):
            for plane in scan.index(buffer).planes:
                device = PLANE.fullmatch(plane.name)
                if device is None or not wanted(int(device[1])):
                    continue
                names = plane_names(buffer, plane)
                clock = scan.SpanStats(*(names.stat_id(name) for name in _CLOCK))
                for line in plane.lines:
                    if line.name != _LINE:
                        continue
                    spans = scan.events(buffer, line, clock)
                    known: dict[int, Instruction] = {}
                    for key in np.unique(spans.metadata_id).tolist():
                        event = names.event(key)
                        program = event.stats.get("program_id") if event else None
                        module = programs.get(str(program % 2**64)) if isinstance(program, int) else None
                        instruction = module.instructions.get(event.short) if module and event else None
                        if instruction is not None:
                            known[key] = instruction
                    order = np.argsort(spans.start_ps, kind="stable")
                    columns = spans.metadata_id[order], spans.start_ps[order], spans.duration_ps[order]
                    yield [
                        (known[key], start, start + duration)
                        for key, start, duration in zip(*(column.tolist() for column in columns), strict=True)
                        if key in known
                    ]


def _measured(calls: Calls, timer: Timer) -> dict[Instruction, Seconds]:
    """Seconds of every call on one device, nan where a transfer's time cannot be told."""
    found: dict[Instruction, list[float]] = {}
    started: dict[str, tuple[Instruction, int]] = {}
    queues: dict[str, list[_Transfer]] = {}
    for instruction, start, end in calls:
        if instruction.opcode.endswith("-start"):
            started[instruction.name] = instruction, start
        elif instruction.opcode.endswith("-done"):
            name = _start_of(instruction)
            if name in started:
                begun, at = started.pop(name)
                queues.setdefault(timer.resource(begun), []).append(_Transfer(begun, at, start, end))
        elif instruction.opcode not in CONTAINERS and not instruction.opcode.endswith("-update"):
            found.setdefault(instruction, []).append((end - start) / 1e12)
    for transfers in queues.values():
        for instruction, seconds in _served(transfers):
            found.setdefault(instruction, []).append(seconds)
    return {instruction: np.array(seconds) for instruction, seconds in found.items()}


def _served(transfers: list[_Transfer]) -> Iterator[tuple[Instruction, float]]:
    """How long each transfer of one queue took, without the time that it waited for those before it.

    A transfer ends when its done op does, if that had to wait for it, and some time before if not. Where this leaves
    the time uncertain it is nan.
    """
    earliest = latest = -(2**63)  # the end of the transfer before
    for each in sorted(transfers, key=lambda transfer: transfer.started):
        begin = max(each.started, earliest), max(each.started, latest)
        flight = each.done_to - begin[0]
        waited = each.done_to - each.done_from > TOLERANCE * flight
        earliest, latest = each.done_to if waited else begin[0], each.done_to
        unknown = begin[1] - begin[0] + latest - earliest
        yield each.instruction, (flight if unknown <= TOLERANCE * flight else float("nan")) / 1e12


def _start_of(done: Instruction) -> str:
    """The name of the start op behind a done op, updates in between passed through."""
    table, name = done.module.instructions, done.operands[0] if done.operands else ""
    while name in table and table[name].opcode.endswith("-update") and table[name].operands:
        name = table[name].operands[0]
    return name


def without_cycles(module: HloModule) -> HloModule:
    """The program without the compiler's cycles, so that estimates fall back on bytes and FLOPs."""
    proto: Any = type(module.proto)()
    proto.CopyFrom(module.proto)
    proto.payloads[:] = [_CYCLES.sub(rb"\g<1>0", each) for each in proto.payloads]
    for computation in proto.computations:
        for each in computation.instructions:
            each.backend_config = _CYCLES.sub(rb"\g<1>0", each.backend_config)
            if each.backend_config_payload.value:
                each.backend_config_payload.value = _CYCLES.sub(rb"\g<1>0", each.backend_config_payload.value)
    return replace(module, proto=proto)
