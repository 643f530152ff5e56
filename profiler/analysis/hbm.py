"""HBM of one recording: three peaks side by side, what fills the static one, and how it comes about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from profiler import hardware
from profiler.analysis.memory import GROUPS, LiveBuffer, memory
from profiler.analysis.places import Namer
from profiler.hlo import HloModule
from profiler.hlo.buffers import Buffers
from profiler.results import (
    AllocatorRow,
    DeviceInfo,
    Memory,
    MemoryCurve,
    MemoryDelta,
    MemoryGroup,
    MemoryGroupDelta,
    MemoryPoint,
    MemoryReport,
    MemoryStack,
    MemoryTensor,
    MemoryTensorDelta,
    MemoryTrack,
    Note,
    ProgramMemory,
)
from profiler.trace import Trace

MOST_POINTS = 200
_CAPACITY_KEY = "hbm_capacity_bytes"  # of the run info


@dataclass(frozen=True)
class Held:
    """What is alive at the static peak of one side: of the program with the largest one."""

    module: HloModule
    plan: Buffers
    namer: Namer
    live: tuple[LiveBuffer, ...]


def held(trace: Trace) -> Held | None:
    """None where no program has a plan."""
    found = _largest(trace)
    if found is None:
        return None
    _, module, plan = found
    namer = _namer(trace, module)
    at_peak = memory(module, namer)
    return Held(module, plan, namer, at_peak.live if at_peak else ())


def peaks(trace: Trace) -> Memory:
    """The three peaks, and the limit."""
    found = _largest(trace)
    plan = found[2] if found else None
    return Memory(
        static_peak_bytes=plan.peak_bytes if plan else None,
        static_allocated_bytes=plan.allocated_bytes if plan else None,
        static_host_bytes=plan.host_bytes if plan else None,
        window_peak_bytes=trace.allocator.window_peak_bytes,
        lifetime_peak_bytes=trace.allocator.lifetime_peak_bytes,
        capacity_bytes=capacity(trace)[0],
    )


def capacity(trace: Trace) -> tuple[int | None, str | None]:
    """What a device can hold, and who says so: the allocator, the compiler, or else the chip's data sheet."""
    if trace.allocator.capacity_bytes:
        return trace.allocator.capacity_bytes, "the allocator's limit"
    stated = (trace.run_info or {}).get(_CAPACITY_KEY)
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        return stated, "the compiler's limit, by the run info"
    chips = {hardware.identify_tpu(each.type) if each.platform == "tpu" else None for each in trace.devices}
    chip = chips.pop() if len(chips) == 1 else None
    if chip is not None and chip.usable_hbm_bytes is not None:
        return chip.usable_hbm_bytes, f"what the compiler can use of a {chip.name} device"
    sizes = [each.hbm_bytes for each in trace.devices if each.hbm_bytes]
    return (min(sizes), "the chip's nominal size") if sizes else (None, None)


def report(trace: Trace) -> MemoryReport:
    """Everything that one recording says about memory."""
    limit, source = capacity(trace)
    found, notes = _largest(trace), list(trace.warnings)
    plan = found[2] if found else None
    namer = _namer(trace, found[1]) if found else None
    held = memory(found[1], namer) if found else None
    live = held.live if held else ()
    if plan is None:
        notes.append(Note("no_buffer_assignment", "no program carries its buffer assignment: no static peak"))
    elif not plan.history:
        notes.append(Note("no_heap_trace", "the largest program has no heap trace: its peak is all that is allocated"))
    if trace.allocator.window_peak_bytes is None:
        notes.append(Note("no_allocator_events", "no allocator events: no peak in the window, no lifetime peak"))
    window = trace.allocator.window_peak_bytes
    return MemoryReport(
        file=", ".join(trace.files),
        label=trace.label,
        kind=trace.kind,
        devices=tuple(
            DeviceInfo(each.name, each.type, each.peak_tflops, each.hbm_bytes, each.host, each.plane)
            for each in trace.devices
        ),
        memory=peaks(trace),
        capacity_source=source,
        fragmentation_bytes=plan.allocated_bytes - plan.peak_bytes if plan else None,
        static_headroom_bytes=limit - plan.allocated_bytes if limit and plan else None,
        window_headroom_bytes=limit - window if limit and window else None,
        program=found[1].name if found else None,
        programs=_programs(trace),
        groups=groups(live),
        stacks=_stacks(live),
        tensors=tuple(_tensor(each) for each in live),
        curve=_curve(found[1], plan, namer) if found and plan and namer else None,
        allocators=tuple(
            AllocatorRow(
                each.name,
                each.host,
                each.on_host,
                each.window_peak_bytes,
                each.reserved_bytes,
                each.allocated_bytes,
                each.lifetime_peak_bytes,
                each.capacity_bytes,
                each.fragmentation,
            )
            for each in trace.allocator.allocators
        ),
        warnings=tuple(dict.fromkeys(notes)),
    )


def delta(before: Held | None, after: Held | None, limits: tuple[int | None, int | None]) -> MemoryDelta | None:
    """What is held at each side's static peak, against the other; None unless both sides have one.

    Args:
        before, after: the sides.
        limits: what a device of each side can hold, in bytes.
    """
    if before is None or after is None:
        return None
    limit_b, limit_o = limits
    live = (before.live, after.live)
    curves = [_track(_curve(side.module, side.plan, side.namer)) for side in (before, after)]
    amounts = [{each.group: each.bytes for each in groups(each)} for each in live]
    plans = (before.plan, after.plan)
    return MemoryDelta(
        baseline_program=before.module.name,
        optimized_program=after.module.name,
        groups=tuple(
            MemoryGroupDelta(group, *(amount.get(group, 0) for amount in amounts))
            for group in GROUPS
            if any(group in amount for amount in amounts)
        ),
        tensors=_changed(*live),
        baseline_fragmentation_bytes=plans[0].allocated_bytes - plans[0].peak_bytes,
        optimized_fragmentation_bytes=plans[1].allocated_bytes - plans[1].peak_bytes,
        baseline_headroom_bytes=limit_b - plans[0].allocated_bytes if limit_b else None,
        optimized_headroom_bytes=limit_o - plans[1].allocated_bytes if limit_o else None,
        baseline_curve=curves[0],
        optimized_curve=curves[1],
    )


def _track(curve: MemoryCurve | None) -> MemoryTrack | None:
    """A curve without its names."""
    if curve is None:
        return None
    points = curve.points
    return MemoryTrack(
        curve.events,
        tuple(point.event for point in points),
        tuple(point.bytes for point in points),
        tuple(point.phase for point in points),
    )


def groups(live: Iterable[LiveBuffer]) -> tuple[MemoryGroup, ...]:
    """What is held by group, in the order of GROUPS; sums to what is held."""
    amounts: dict[str, int] = defaultdict(int)
    for each in live:
        amounts[each.group] += each.bytes
    total = sum(amounts.values()) or 1
    return tuple(MemoryGroup(each, amounts[each], amounts[each] / total) for each in GROUPS if amounts.get(each))


def _stacks(live: Iterable[LiveBuffer]) -> tuple[MemoryStack, ...]:
    amounts: dict[str, int] = defaultdict(int)
    for each in live:
        amounts[each.place.stack] += each.bytes
    total = sum(amounts.values()) or 1
    ordered = sorted(amounts, key=lambda stack: (not stack, -amounts[stack]))
    return tuple(MemoryStack(each or None, amounts[each], amounts[each] / total) for each in ordered)


def _tensor(each: LiveBuffer) -> MemoryTensor:
    place = each.place
    return MemoryTensor(
        each.group,
        place.part or None,
        place.stack or None,
        place.tensor or None,
        each.shape or None,
        each.bytes,
        each.count,
        each.instruction or None,
        each.op_name or None,
    )


def _changed(before: tuple[LiveBuffer, ...], after: tuple[LiveBuffer, ...]) -> tuple[MemoryTensorDelta, ...]:
    """Tensors by place whose bytes differ, the largest change first; shapes change with the batch, places do not."""
    found: dict[tuple[str, str, str, str], tuple[list[LiveBuffer], list[LiveBuffer]]] = {}
    for side, live in enumerate((before, after)):
        for each in live:
            key = (each.group, each.place.part, each.place.stack, each.place.tensor)
            found.setdefault(key, ([], []))[side].append(each)
    rows = []
    for (group, part, stack, tensor), sides in found.items():
        bytes_b, bytes_o = (sum(each.bytes for each in side) for side in sides)
        if bytes_b == bytes_o:
            continue
        change = "came" if not bytes_b else "went" if not bytes_o else "grew" if bytes_o > bytes_b else "shrank"
        shape_b, shape_o = (", ".join(dict.fromkeys(each.shape for each in side if each.shape)) for side in sides)
        count_b, count_o = (sum(each.count for each in side) for side in sides)
        place = (part or None, stack or None, tensor or None, shape_b or None, shape_o or None)
        rows.append(MemoryTensorDelta(change, group, *place, bytes_b, bytes_o, count_b, count_o))
    return tuple(sorted(rows, key=lambda row: -abs(row.optimized_bytes - row.baseline_bytes)))


def _largest(trace: Trace) -> tuple[str, HloModule, Buffers] | None:
    """(program id, program, plan) of the program with the largest static peak."""
    planned = [(name, module, module.buffers) for (_, name), module in trace.programs.items()]
    known = [(name, module, plan) for name, module, plan in planned if plan is not None]
    return max(known, key=lambda each: each[2].peak_bytes, default=None)


def _programs(trace: Trace) -> tuple[ProgramMemory, ...]:
    rows = {
        (name, module.name): ProgramMemory(
            module.name, name, plan.peak_bytes, plan.allocated_bytes, plan.argument_bytes, plan.host_bytes
        )
        for (_, name), module in trace.programs.items()
        if (plan := module.buffers) is not None
    }
    return tuple(sorted(rows.values(), key=lambda row: (-row.static_peak_bytes, row.program_id)))


def _namer(trace: Trace, module: HloModule) -> Namer:
    return Namer(module, distillation=bool((trace.run_info or {}).get("distillation")))


def _curve(module: HloModule, plan: Buffers, namer: Namer) -> MemoryCurve | None:
    """The heap trace as a curve. An event without a phase of its own belongs to the phase around it."""
    if not plan.history:
        return None
    points: list[MemoryPoint] = []
    made: dict[int, tuple[str | None, str, str | None]] = {}
    phase: str | None = None
    for event, (size, buffer) in enumerate(plan.history):
        if buffer not in made:
            proto = module.protos.get(plan.buffers[buffer].defined_at.instruction_id)
            instruction = module.instructions.get(module.name_of(proto)) if proto is not None else None
            if instruction is None:
                made[buffer] = (None, "", None)
            else:
                outer = namer.caller(instruction) or instruction
                made[buffer] = (namer.phase(outer), outer.name, namer.place(instruction).tensor or None)
        own, op, tensor = made[buffer]
        if event == 0 or size > points[-1].bytes:  # what is freed says little of where the program is
            phase = own or phase
        points.append(MemoryPoint(event, size, phase, op or None, tensor))
    count = min(MOST_POINTS, len(points))
    edges = [index * len(points) // count for index in range(count + 1)]
    shown = [max(points[a:b], key=lambda each: each.bytes) for a, b in pairwise(edges)]
    best: dict[str | None, MemoryPoint] = {}
    for each in points:
        if each.phase not in best or each.bytes > best[each.phase].bytes:
            best[each.phase] = each
    return MemoryCurve(len(points), tuple(shown), tuple(sorted(best.values(), key=lambda each: -each.bytes)))
