"""What the kernels, remat and roofline analyses say; see profiler.results for units and the unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiler.results import KernelRow, Note


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """Calls of one kernel in one phase that do the same work with the same tiles; ``ops`` are their instructions.

    ``shape`` is the work in words. Times are of the calls from start to end.
    """

    kernel: str
    family: str
    phase: str | None
    shape: str | None
    tiles: dict[str, Any]
    calls_per_step: float
    mean_time_ps: float
    time_ps_per_step: float
    flops_per_call: float | None
    flops_source: str | None
    tflops_per_s: float | None
    peak_fraction: float | None
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The custom kernels of one recording, per device and ``unit`` ("step" or "run"); most time first.

    ``kernels`` has one row per kernel and phase, ``variants`` one per shape and tiles of it.
    """

    file: str
    label: str
    kind: str  # "recorded" | "compiled"
    unit: str
    step_time_ps: float
    layers: float | None
    peak_tflops: float | None
    kernels: tuple[KernelRow, ...]
    variants: tuple[KernelVariant, ...]
    warnings: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class RerunRow:
    """Re-run ops of one scope of the model and one family; exclusive time. ``ops`` largest first."""

    scope: str | None
    family: str
    calls_per_step: float
    calls_per_layer: float | None
    time_ps_per_step: float
    fraction: float
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RerunCollective:
    """Communication that rematerialisation runs again; only what compute does not hide takes time here.

    ``needed_by_backward``: the backward pass uses the value itself, so that keeping activations would not save it; None
    where that cannot be told.
    """

    family: str
    scope: str | None
    calls_per_step: float
    exposed_time_ps_per_step: float
    needed_by_backward: bool | None


@dataclass(frozen=True, slots=True)
class KeepOption:
    """What it would cost and save to keep a tensor for the backward pass instead of computing it again.

    ``bytes`` = ``bytes_per_layer`` × ``layers`` per device, without padding. The saved time is the measured time of the
    re-run ops that nothing else needs; ``still_…`` is what makes the tensor and is needed for something else as well,
    so that it would go on running.
    """

    tensor: str
    ops: tuple[str, ...]
    shape: str | None
    layers: float | None
    bytes_per_layer: int | None
    bytes: float | None
    saved_time_ps_per_step: float
    saved_calls_per_step: float
    saved_fraction: float
    still_time_ps_per_step: float
    still_families: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """What a loop over layers stacks up for the backward pass now; ``memory`` is "device" or "host"."""

    tensor: str
    shape: str
    bytes: int
    memory: str


@dataclass(frozen=True, slots=True)
class RematReport:
    """Forward work that the backward pass executes again, per device and ``unit``.

    ``options`` end with what keeping all of them together would do, where there are several. Room is the capacity less
    ``static_allocated_bytes``, which has the gaps of packing too.
    """

    file: str
    label: str
    kind: str  # "recorded" | "compiled"
    unit: str
    step_time_ps: float
    layers: float | None
    rerun_calls_per_step: float
    rerun_time_ps_per_step: float
    fraction: float
    static_peak_bytes: int | None
    static_allocated_bytes: int | None
    capacity_bytes: int | None
    ops: tuple[RerunRow, ...]
    collectives: tuple[RerunCollective, ...]
    options: tuple[KeepOption, ...]
    kept: tuple[KeptTensor, ...]
    warnings: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class RoofOp:
    """One compute op, or several that differ in their numbers only (``instructions``), against its roof.

    ``bound`` is "compute" or "memory"; None where FLOPs, bytes or the roof are unknown, as are then the roof time and
    what is wasted. Times are of calls from start to end.
    """

    op: str
    family: str
    phase: str | None
    instructions: int
    calls_per_step: float
    mean_time_ps: float
    time_ps_per_step: float
    flops_per_call: int | None
    bytes_per_call: int | None
    flops_per_byte: float | None
    tflops_per_s: float | None
    gb_per_s: float | None
    bound: str | None
    roof_time_ps_per_step: float | None
    roof_fraction: float | None
    wasted_time_ps_per_step: float | None
    name_stack: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class RoofFamily:
    """The compute ops of a family in a phase. Fractions are of ``known_time_ps_per_step``, the ops with a roof.

    An op that is faster than its roof counts as being at it, so that the wasted times add up.
    """

    family: str
    phase: str | None
    calls_per_step: float
    time_ps_per_step: float
    known_time_ps_per_step: float
    roof_time_ps_per_step: float | None
    roof_fraction: float | None
    wasted_time_ps_per_step: float | None
    memory_bound_fraction: float | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Exclusive time that has no roof here: communication, transfers, waits, idle."""

    category: str
    time_ps_per_step: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Distance of the compute ops to the chip's roof, per device and ``unit``; most wasted time first.

    ``hfu`` is the FLOPs that ran, re-runs too, over what the peak would do in the step: where ops with FLOPs that
    nobody counted take ``hfu_unknown_time_ps``, it is a lower bound.
    """

    file: str
    label: str
    kind: str  # "recorded" | "compiled"
    unit: str
    step_time_ps: float
    peak_tflops: float | None
    hbm_bytes_per_s: float | None
    ridge_flops_per_byte: float | None
    mfu: float | None
    hfu: float | None
    hfu_unknown_time_ps: float
    families: tuple[RoofFamily, ...]
    ops: tuple[RoofOp, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[Note, ...] = ()
