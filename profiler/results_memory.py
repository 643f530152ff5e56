"""What the memory analysis says; part of ``profiler.results``, which has the house rules.

Bytes are of one device. Three peaks are never mixed: static (the compiler's plan for one program), window and lifetime
(the allocator's account of everything that the process holds).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.results import DeviceInfo, Memory, Note


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """What a part of the static peak is for; ``fraction`` of the peak. The groups sum to the peak exactly.

    ``group`` is one of profiler.analysis.memory.GROUPS.
    """

    group: str
    bytes: int
    fraction: float


@dataclass(frozen=True, slots=True)
class MemoryStack:
    """What a stack of layers holds at the static peak; None is what lies in no stack, or cannot be told."""

    stack: str | None
    bytes: int
    fraction: float


@dataclass(frozen=True, slots=True)
class MemoryTensor:
    """Buffers of one group, place and shape that are held at the static peak; ``bytes`` of all ``count`` together.

    ``part`` is finer than ``group``: "teacher parameters", the phase that computes it, "copy of …". ``tensor`` is the
    parameter's path, or the model's scopes. ``instruction`` is the HLO instruction of the first.
    """

    group: str
    part: str | None
    stack: str | None
    tensor: str | None
    shape: str | None
    bytes: int
    count: int
    instruction: str | None
    name_stack: str | None


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Bytes held after an event of the heap trace, counted from 0, and what the event allocates or frees."""

    event: int
    bytes: int
    phase: str | None
    op: str | None = None
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes held over one execution, in the order of the schedule, which is no time axis.

    ``points`` are at most 200, each the highest of its stretch of ``events``, so that the peak is among them;
    ``highest`` is the highest point of each phase, the peak first.
    """

    events: int
    points: tuple[MemoryPoint, ...]
    highest: tuple[MemoryPoint, ...]


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """One program's plan. Allocated − peak is what packing loses; arguments and host memory are as in ``Memory``."""

    program: str
    program_id: str
    static_peak_bytes: int
    static_allocated_bytes: int
    argument_bytes: int
    static_host_bytes: int


@dataclass(frozen=True, slots=True)
class AllocatorRow:
    """One allocator's account: at the window's peak, ``reserved_bytes`` (programs) + ``allocated_bytes`` (arrays)."""

    name: str
    host: str | None
    on_host: bool
    window_peak_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    lifetime_peak_bytes: int
    capacity_bytes: int
    fragmentation: float | None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """HBM of one recording.

    ``program`` is the program with the largest static peak; groups, stacks, tensors and the curve are of it.
    ``capacity_source`` says where ``memory.capacity_bytes`` comes from. ``fragmentation_bytes`` = allocated − peak, of
    the plan; ``static_headroom_bytes`` = capacity − allocated, ``window_headroom_bytes`` = capacity − window peak.
    """

    file: str
    label: str
    kind: str
    devices: tuple[DeviceInfo, ...]
    memory: Memory
    capacity_source: str | None
    fragmentation_bytes: int | None
    static_headroom_bytes: int | None
    window_headroom_bytes: int | None
    program: str | None
    programs: tuple[ProgramMemory, ...]
    groups: tuple[MemoryGroup, ...]
    stacks: tuple[MemoryStack, ...]
    tensors: tuple[MemoryTensor, ...]
    curve: MemoryCurve | None
    allocators: tuple[AllocatorRow, ...]
    warnings: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class MemoryGroupDelta:
    """One group at both static peaks; 0 for a side that has none of it."""

    group: str
    baseline_bytes: int
    optimized_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryTensorDelta:
    """Tensors of one group and place that differ. ``change``: "came", "went", "grew" or "shrank"."""

    change: str
    group: str
    part: str | None
    stack: str | None
    tensor: str | None
    baseline_shape: str | None
    optimized_shape: str | None
    baseline_bytes: int
    optimized_bytes: int
    baseline_count: int
    optimized_count: int


@dataclass(frozen=True, slots=True)
class MemoryTrack:
    """A ``MemoryCurve`` without its names: at most 200 points, ``bytes`` held after event ``at`` of all ``events``."""

    events: int
    at: tuple[int, ...]
    bytes: tuple[int, ...]
    phases: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class MemoryDelta:
    """HBM at the static peaks of both sides: the groups' deltas sum to the peak's, and so do the tensors'.

    The other figures of both sides are in their summaries. ``…_curve`` is None where the program has no heap trace.
    """

    baseline_program: str
    optimized_program: str
    groups: tuple[MemoryGroupDelta, ...]
    tensors: tuple[MemoryTensorDelta, ...]
    baseline_fragmentation_bytes: int
    optimized_fragmentation_bytes: int
    baseline_headroom_bytes: int | None
    optimized_headroom_bytes: int | None
    baseline_curve: MemoryTrack | None = None
    optimized_curve: MemoryTrack | None = None
