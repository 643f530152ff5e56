"""The host plane: ops of JAX on the CPU, step annotations, allocator events."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.analysis import families
from profiler.reduce.catalog import Catalog, Entry, instruction_entry
from profiler.reduce.columns import DOUBLE, distinct, factorize, integers, labels, sums_by
from profiler.reduce.part import DevicePart, Programs, sums_frame, timeline
from profiler.trace import Allocator, AllocatorPeaks, Marks
from profiler.xplane import scan
from profiler.xplane.read import PlaneNames, double_bits

PLANE = re.compile(r"/host:CPU")
_OP_STATS = ("hlo_op", "program_id", "device_ordinal", "hlo_module", "run_id")
_MEMORY_EVENTS = {b"MemoryAllocation", b"MemoryDeallocation"}
_MEMORY_STATS = (
    "allocator_name",
    "index_on_host",
    "device_ordinal",
    "bytes_reserved",
    "bytes_allocated",
    "bytes_available",
    "peak_bytes_in_use",
    "fragmentation",
)
_HOST_ALLOCATOR = re.compile(r"host|cpu", re.IGNORECASE)


def cpu_parts(
    buffer: Any, plane: scan.Plane, names: PlaneNames, catalog: Catalog, programs: Programs, origin_ns: int
) -> list[DevicePart]:
    """One part per simulated CPU device: events with an ``hlo_op``, each thread a lane.

    The ``end: NAME`` twin of every op carries no ``hlo_op`` and so never counts.
    """
    wanted = [names.stat_id(name) for name in _OP_STATS]
    if wanted[0] < 0:
        return []
    found = []
    for lane, line in enumerate(plane.lines):
        if not line.name.startswith("tf_XLA") or not line.events:
            continue
        events = scan.events(buffer, line, scan.SpanStats(), wanted, origin_ns, require=0)
        if not len(events.start_ps):
            continue
        hlo_ops, hlo_op = labels(buffer, events.stats[0], names.stat_names)
        modules, module = labels(buffer, events.stats[3], names.stat_names)
        rows, code = factorize(hlo_op, integers(events.stats[1]), module)
        op_ids = np.array(
            [_op_id(catalog, programs, hlo_ops[op], program, modules[name]) for op, program, name in rows], np.int64
        )
        device = integers(events.stats[2], missing=0)
        found.append((lane, events, op_ids[code], device, integers(events.stats[4])))
    threads = [line.name for line in plane.lines]
    parts = []
    for ordinal in sorted({int(number) for *_, device, _ in found for number in distinct(device)[0]}):
        sums: list[tuple[int, int, int, int]] = []
        start, duration, op, counted, run, lanes = [], [], [], [], [], []
        for lane, events, op_id, device, run_id in found:
            mine = device == ordinal
            begin, length, number = events.start_ps[mine], events.duration_ps[mine], op_id[mine]
            own = _self_times(begin, length, number)
            sums += [
                (each, count, total, own[each])
                for each, count, total in sums_by(number, events.occurrences[mine], length)
            ]
            start.append(begin)
            duration.append(length)
            op.append(number)
            counted.append(np.ones(len(number), np.bool_))
            run.append(run_id[mine])
            lanes.append(lane)
        parts.append(
            DevicePart(
                name=f"CPU:{ordinal}",
                plane=plane.name,
                platform="cpu",
                stats=names.stats,
                timeline=timeline(start, duration, op, lanes, counted, run, names=threads),
                sums=sums_frame(sums),
            )
        )
    return parts


def _op_id(catalog: Catalog, programs: Programs, name: str | None, program: int, module_name: str | None) -> int:
    op, program_id = name or "", str(program % 2**64)

    def entry() -> Entry:
        module = programs.find(program_id)
        instruction = module.instructions.get(op) if module else None
        if module and instruction:
            return instruction_entry(module, program_id, instruction, hlo=True)
        return Entry(module_name, program_id, op, hlo=True, facts=families.OpFacts(name=op))

    return catalog.op_id((program_id, op), entry)


def _self_times(start: Any, duration: Any, op: Any) -> dict[int, int]:
    """Self time per op on one thread, ps: the time in which one of its spans is the innermost."""
    if not len(start):
        return {}
    ops, key = distinct(op)
    end = start + duration
    whole = np.array([[start.min(), end.max()]], np.int64)
    none = np.zeros(len(start), np.int32)
    time = scan.sweep(
        start, end, key.astype(np.int32), none.astype(np.uint8), none, whole, none[:1], n_rows=1, n_keys=len(ops)
    )
    return {int(each): round(value) for each, value in zip(ops, time[0], strict=False)}


def step_marks(buffer: Any, planes: Iterable[tuple[scan.Plane, PlaneNames]], origin_ns: int) -> Marks | None:
    """Host annotations with a ``step_num`` (jax.profiler.StepTraceAnnotation): of several names the most frequent."""
    groups: dict[str, list[tuple[int, int, str]]] = {}
    for plane, names in planes:
        step_num = names.stat_id("step_num")
        if step_num < 0:
            continue
        for line in plane.lines:
            events = scan.events(buffer, line, scan.SpanStats(), [step_num], origin_ns, require=0)
            for key, begin, length, number in zip(
                events.metadata_id.tolist(),
                events.start_ps.tolist(),
                events.duration_ps.tolist(),
                integers(events.stats[0]).tolist(),
                strict=True,
            ):
                event = names.event(key)
                group = event.name if event else str(key)
                groups.setdefault(group, []).append((begin, begin + length, str(number)))
    if not groups:
        return None
    spans = sorted(groups[max(groups, key=lambda name: len(groups[name]))])
    begins, ends, numbers = zip(*spans, strict=True)
    return Marks(np.array(begins, np.int64), np.array(ends, np.int64), tuple(numbers))


def allocator_peaks(buffer: Any, planes: Iterable[tuple[scan.Plane, PlaneNames]]) -> AllocatorPeaks:
    """Peaks of the device allocators from their events, the largest over the devices.

    The window peak is max(reserved + allocated), as XProf's memory profile has it; the lifetime peak is the largest
    ``peak_bytes_in_use``, which leaves out reserved bytes. Allocators of host memory do not count in the three figures.
    """
    found: dict[str, list[tuple[NDArray[np.int64], ...]]] = {}
    for plane, names in planes:
        only = np.array(sorted(names.ids_by_name(_MEMORY_EVENTS)), np.int64)
        if not len(only):
            continue
        wanted = [names.stat_id(name) for name in _MEMORY_STATS]
        for line in plane.lines:
            events = scan.events(buffer, line, scan.SpanStats(), wanted, only=only)
            if not len(events.start_ps):
                continue
            allocators, allocator = labels(buffer, events.stats[0], names.stat_names)
            figures = [np.maximum(integers(column, missing=0), 0) for column in events.stats[3:7]]
            index, ordinal = (integers(column) for column in events.stats[1:3])
            rows, code = factorize(allocator, np.where(index >= 0, index, ordinal))
            bits = np.where(events.stats[7].kind == DOUBLE, events.stats[7].value, -1)
            for row, (name, number) in enumerate(rows):
                mine = code == row
                key = allocators[name] or (f"device {number}" if number >= 0 else "device")
                found.setdefault(key, []).append((*(each[mine] for each in figures), bits[mine]))
    every = tuple(_allocator(name, found[name]) for name in sorted(found))
    device = [each for each in every if not each.on_host]
    return AllocatorPeaks(
        max((each.window_peak_bytes for each in device), default=0) or None,
        max((each.lifetime_peak_bytes for each in device), default=0) or None,
        max((each.capacity_bytes for each in device), default=0) or None,
        every,
    )


def _allocator(name: str, parts: list[tuple[NDArray[np.int64], ...]]) -> Allocator:
    """One allocator's events, summed up."""
    reserved, allocated, available, peak, bits = (np.concatenate(column) for column in zip(*parts, strict=True))
    at = int((reserved + allocated).argmax())
    return Allocator(
        name=name,
        on_host=_HOST_ALLOCATOR.search(name) is not None,
        window_peak_bytes=int((reserved + allocated)[at]),
        reserved_bytes=int(reserved[at]),
        allocated_bytes=int(allocated[at]),
        lifetime_peak_bytes=int(peak.max()),
        capacity_bytes=int((reserved + allocated + available).max()),
        fragmentation=double_bits(int(bits[at])) if bits[at] != -1 else None,
        events=len(reserved),
    )
