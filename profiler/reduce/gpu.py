"""GPU planes: kernels on ``Stream #…`` lines, joined to the HLO op that launched them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from profiler.analysis import families
from profiler.hlo import kernel_to_instruction
from profiler.reduce.catalog import Catalog, Entry, instruction_entry
from profiler.reduce.columns import factorize, integers, labels, sums_by
from profiler.reduce.part import DevicePart, Programs, sums_frame, timeline
from profiler.reduce.tpu import marks
from profiler.xplane import scan
from profiler.xplane.read import PlaneNames

PLANE = re.compile(r"/device:GPU:(\d+)")
_STREAM = "Stream #"
_COPY = re.compile(r"memcpy|memset|^Copy\w+To\w+|copyBuffer|fillBuffer", re.IGNORECASE)
_STATS = ("hlo_op", "program_id", "hlo_module", "name", "run_id")


def device_part(
    buffer: Any, plane: scan.Plane, names: PlaneNames, catalog: Catalog, programs: Programs, origin_ns: int
) -> DevicePart:
    """Reduces one GPU: each stream is a lane; a kernel is one occurrence of its op, as XProf counts it.

    A kernel without an HLO op (launched from a command buffer, or by the runtime) is described by its own name, and by
    the instruction it was named after where one program has such a kernel; it gets no row in the op table.
    """
    sums: list[tuple[int, int, int, int]] = []
    start, duration, op, counted, run = [], [], [], [], []
    lanes: list[int] = []
    streams: list[str] = []
    damaged = 0
    wanted = [names.stat_id(name) for name in _STATS]
    for line in plane.lines:
        if not line.name.startswith(_STREAM) or not line.events:
            continue
        events = scan.events(buffer, line, scan.SpanStats(), wanted, origin_ns)
        damaged += events.damaged
        hlo_ops, hlo_op = labels(buffer, events.stats[0], names.stat_names)
        stacks, stack = labels(buffer, events.stats[3], names.stat_names)
        program = integers(events.stats[1])
        rows, code = factorize(events.metadata_id, hlo_op, program, stack)
        op_ids = np.empty(len(rows), np.int64)
        for index, (metadata_id, op_code, program_id, stack_code) in enumerate(rows):
            event = names.event(metadata_id)
            kernel = event.name if event else f"kernel {metadata_id}"
            op_ids[index] = _op_id(catalog, programs, kernel, hlo_ops[op_code], program_id, stacks[stack_code])
        op_id = op_ids[code] if rows else code
        sums += [
            (number, count, total, total)
            for number, count, total in sums_by(op_id, events.occurrences, events.duration_ps)
        ]
        start.append(events.start_ps)
        duration.append(events.duration_ps)
        op.append(op_id)
        counted.append(np.ones(len(op_id), np.bool_))
        run.append(integers(events.stats[4]))
        lanes.append(len(lanes))
        streams.append(line.name)
    number = PLANE.match(plane.name)
    return DevicePart(
        name=f"GPU:{number[1]}" if number else plane.name,
        plane=plane.name,
        platform="gpu",
        stats=names.stats,
        timeline=timeline(start, duration, op, lanes, counted, run, names=streams),
        sums=sums_frame(sums),
        steps=marks(buffer, plane, names, "Steps", origin_ns),
        damaged=damaged,
    )


def _op_id(
    catalog: Catalog, programs: Programs, kernel: str, hlo_op: str | None, program: int, stack: str | None
) -> int:
    program_id = str(program % 2**64) if program != -1 or hlo_op else None
    if hlo_op:
        return catalog.op_id((program_id, hlo_op), lambda: _entry(programs, kernel, hlo_op, program_id, stack))
    return catalog.op_id((None, kernel), lambda: _loose_entry(programs, kernel, stack))


def _entry(programs: Programs, kernel: str, hlo_op: str, program_id: str | None, stack: str | None) -> Entry:
    module = programs.find(program_id)
    instruction = module.instructions.get(hlo_op) if module else None
    if module and instruction and program_id is not None:
        return instruction_entry(module, program_id, instruction, hlo=True, kernel=kernel)
    facts = families.OpFacts(name=hlo_op, kernel=kernel, name_stack=stack)
    return Entry(module.name if module else None, program_id, hlo_op, hlo=True, facts=facts)


def _loose_entry(programs: Programs, kernel: str, stack: str | None) -> Entry:
    found = []
    if not is_copy(kernel):
        for program_id in programs:
            module = programs.find(program_id)
            name = kernel_to_instruction(module, kernel) if module else None
            if module and name:
                found.append((module, program_id, module.instructions[name]))
    if len(found) == 1:
        return instruction_entry(*found[0], hlo=False, kernel=kernel, op=kernel)
    return Entry(None, None, kernel, hlo=False, facts=families.OpFacts(name=kernel, kernel=kernel, name_stack=stack))


def is_copy(kernel: str) -> bool:
    """Whether a device event is a copy or a fill by the runtime: a device with nothing else recorded no ops."""
    return _COPY.search(kernel) is not None
