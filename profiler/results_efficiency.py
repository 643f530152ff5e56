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
