"""What the analyses say: frozen values that every renderer takes and none computes.

Field names are the JSON contract (docs/json.md). Times are picoseconds, per device and per normalisation unit (a
step, or the whole run where no step repeats). None means unknown and prints "n/a".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiler.results_check import Check as Check
from profiler.results_check import CheckRow as CheckRow
from profiler.results_comm import CommDelta as CommDelta
from profiler.results_comm import CommDeltaRow as CommDeltaRow
from profiler.results_comm import CommReport as CommReport
from profiler.results_comm import CommRow as CommRow
from profiler.results_comm import CommTotal as CommTotal
from profiler.results_comm import WaitRow as WaitRow
from profiler.results_comm import WholeRecording as WholeRecording
from profiler.results_comm import WholeRow as WholeRow
from profiler.results_config import ConfigDelta as ConfigDelta
from profiler.results_config import Knob as Knob
from profiler.results_config import KnobEffect as KnobEffect
from profiler.results_config import LossDelta as LossDelta
from profiler.results_fleet import FleetHost as FleetHost
from profiler.results_fleet import FleetSummary as FleetSummary
from profiler.results_memory import AllocatorRow as AllocatorRow
from profiler.results_memory import MemoryCurve as MemoryCurve
from profiler.results_memory import MemoryDelta as MemoryDelta
from profiler.results_memory import MemoryGroup as MemoryGroup
from profiler.results_memory import MemoryGroupDelta as MemoryGroupDelta
from profiler.results_memory import MemoryPoint as MemoryPoint
from profiler.results_memory import MemoryReport as MemoryReport
from profiler.results_memory import MemoryStack as MemoryStack
from profiler.results_memory import MemoryTensor as MemoryTensor
from profiler.results_memory import MemoryTensorDelta as MemoryTensorDelta
from profiler.results_memory import MemoryTrack as MemoryTrack
from profiler.results_memory import ProgramMemory as ProgramMemory

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Note:
    """A warning that travels with a result: something missing, assumed or damaged.

    ``host`` are the hosts that the message names, where it is about some of several; where it names none, JSON has no
    such field.
    """

    code: str
    message: str
    host: tuple[str, ...] = field(default=(), metadata={"optional": True})


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that recorded ops. ``peak_tflops`` is the dense bf16 peak per JAX device."""

    name: str
    type: str | None
    peak_tflops: float | None
    hbm_bytes: int | None
    host: str | None = None
    plane: str | None = None


@dataclass(frozen=True, slots=True)
class StepStats:
    """The steady steps. ``source`` says how steps were found; ``unit`` is "step", or "run" where nothing repeats."""

    source: str
    count: int
    mean_ps: float
    median_ps: float
    p10_ps: float
    p90_ps: float
    unit: str = "step"


@dataclass(frozen=True, slots=True)
class MfuInputs:
    """MFU = model_tflops_per_device_per_step / (step_time × peak). ``step_time_ps`` is the mean."""

    model_tflops_per_device_per_step: float | None
    step_time_ps: float | None
    peak_tflops: float | None
    convention: str | None


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """Sweep time of one family in one phase: the rows and idle sum to the step exactly.

    ``category`` is "compute", "communication", "transfer", "wait" or "idle".
    """

    category: str
    family: str
    phase: str | None
    calls_per_step: float | None
    time_ps_per_step: float
    fraction: float


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Sweep time of one phase; None holds the ops whose phase cannot be told. Phases and idle sum to the step."""

    phase: str | None
    time_ps_per_step: float
    fraction: float


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel (splash, gmm, other custom kernels) in one phase; times are of its calls from start to end.

    ``flops_per_call`` is the mean; ``flops_sources`` say where it comes from (profiler.analysis.kernelflops.SOURCES).
    ``peak_fraction`` is of the dense bf16 peak per device. ``tiles`` are the distinct tile sizes and layouts of its
    calls, empty where nothing says.
    """

    kernel: str
    phase: str | None
    calls_per_step: float
    calls_per_layer: float | None
    mean_time_ps: float
    time_ps_per_step: float
    tflops_per_s: float | None
    family: str | None = None
    flops_per_call: float | None = None
    flops_sources: tuple[str, ...] = ()
    peak_fraction: float | None = None
    tiles: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class RematFamily:
    """Re-run work of one family."""

    family: str
    calls_per_step: float
    time_ps_per_step: float


@dataclass(frozen=True, slots=True)
class Remat:
    """Forward work executed again in the backward pass; sweep time, as a share of the step."""

    rerun_calls_per_step: float
    rerun_time_ps_per_step: float
    fraction: float
    by_family: tuple[RematFamily, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Three peaks that are never mixed: static (buffer assignment), window and lifetime (allocator events).

    ``static_allocated_bytes`` is the static peak with the gaps of packing, which has to fit; ``static_host_bytes`` what
    the program puts into host memory.
    """

    static_peak_bytes: int | None = None
    window_peak_bytes: int | None = None
    lifetime_peak_bytes: int | None = None
    capacity_bytes: int | None = None
    static_allocated_bytes: int | None = None
    static_host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What one recording (or several of one side) says."""

    file: str
    label: str
    kind: str  # "recorded" | "compiled"
    devices: tuple[DeviceInfo, ...]
    steps: StepStats
    busy_fraction: float
    mfu: float | None
    hfu: float | None
    mfu_inputs: MfuInputs
    families: tuple[FamilyRow, ...]
    kernels: tuple[KernelRow, ...]
    remat: Remat
    memory: Memory
    run_info: dict[str, Any] | None
    warnings: tuple[Note, ...]
    compiler_tflops_per_step: float | None = None  # what XLA counted; custom calls may count 0
    tokens_per_s: float | None = None  # per device, by the mean step
    phases: tuple[PhaseRow, ...] = ()
    whole: WholeRecording | None = None  # None for a compiled profile
    # Of a run of several hosts; where there is one, JSON has no such field.
    fleet: FleetSummary | None = field(default=None, metadata={"optional": True})


@dataclass(frozen=True, slots=True)
class Delta:
    """The change in one line. Ratios are optimized / baseline per normalisation unit.

    ``throughput_ratio`` is None where no model FLOPs or tokens are known and the unit of work may differ.
    ``significant`` and ``interval`` (of the step-time ratio) are None where noise is unknown. ``band`` is the range of
    the same ratio over the ranges of the constants that estimates rest on; None for recordings.
    """

    mfu_points: float | None
    throughput_ratio: float | None
    step_time_ratio: float
    significant: bool | None
    interval: tuple[float, float] | None
    baseline_time_ps: float
    optimized_time_ps: float
    band: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """One exclusive category's part of the change.

    ``mfu_points`` = ``calls_points`` + ``per_call_points``; over all contributions they sum to the delta's
    ``mfu_points`` (percentage points). Where MFU is unknown the points are None, and ``time_ps`` (optimized − baseline)
    = ``calls_time_ps`` + ``per_call_time_ps`` sums to the time delta instead. ``interval_…`` is the 95 % interval of
    the change, from the category's time in every step; ``significant`` says whether it leaves out 0. None where noise
    is unknown.
    """

    category: str
    family: str
    phase: str | None
    mfu_points: float | None
    baseline_time_ps: float
    optimized_time_ps: float
    baseline_calls: float | None
    optimized_calls: float | None
    calls_points: float | None
    per_call_points: float | None
    time_ps: float = 0.0
    calls_time_ps: float = 0.0
    per_call_time_ps: float = 0.0
    significant: bool | None = None
    interval_time_ps: tuple[float, float] | None = None
    interval_points: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, with evidence. ``time_ps`` is its part of the time delta (negative is faster)."""

    title: str
    mfu_points: float | None
    time_ps: float | None
    knobs: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    confidence: str = "high"  # "high" | "medium" | "low"


@dataclass(frozen=True, slots=True)
class StepLengths:
    """Steady steps of both sides in their order, the mean over the devices of a recording; not scaled to equal work.

    At most 200 a side, evenly spread over the ``…_count`` that there are.
    """

    baseline_ps: tuple[float, ...]
    optimized_ps: tuple[float, ...]
    baseline_count: int
    optimized_count: int


@dataclass(frozen=True, slots=True)
class Diff:
    """Baseline against optimized.

    ``ops`` columns: ``baseline_op``, ``optimized_op`` (null when added / removed), ``family``, ``phase``, ``match``
    ("same" | "changed" | "replaced" | "added" | "removed"), ``confidence`` (0 to 1), ``evidence`` (what matched),
    ``baseline_time_ps``, ``optimized_time_ps`` (exclusive), ``delta_time_ps``, ``baseline_calls``,
    ``optimized_calls``, ``baseline_mean_ps``, ``optimized_mean_ps`` (a call from start to end, so that ops which
    overlap count fully), ``calls_time_ps``, ``per_call_time_ps``,
    ``baseline_instructions``, ``optimized_instructions`` (HLO instructions in the row), ``program``, ``name_stack``,
    ``source``; largest change first. A row is a group of instructions that do the same thing (one per unrolled layer).
    """

    comparable: bool
    normalization: str  # "step" | "run" | "token" | "flop"
    verdict: str
    baseline: Summary
    optimized: Summary
    delta: Delta
    contributions: tuple[Contribution, ...]
    matched_time_fraction: float
    baseline_matched_fraction: float
    optimized_matched_fraction: float
    ops: pl.DataFrame
    knobs: tuple[Knob, ...] = ()
    findings: tuple[Finding, ...] = ()
    warnings: tuple[Note, ...] = field(default=())
    memory: MemoryDelta | None = None
    communication: CommDelta | None = None
    effects: tuple[KnobEffect, ...] = ()
    loss: LossDelta | None = None
    suggestions: tuple[Finding, ...] = ()  # what to try next on the optimized side; points and times are upper bounds
    steps: StepLengths | None = None  # None where no step repeats


@dataclass(frozen=True, slots=True)
class Rung:
    """One run of a ladder against the one before; ``from_first`` is its change against the first run.

    Times of ``contributions`` are for the work of one step of the first run.
    """

    label: str
    verdict: str
    delta: Delta
    from_first: Delta
    contributions: tuple[Contribution, ...]
    knobs: tuple[Knob, ...] = ()
    effects: tuple[KnobEffect, ...] = ()
    findings: tuple[Finding, ...] = ()
    comparable: bool = True
    warnings: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class LadderRow:
    """One category over all rungs; the ``total`` of all rows is the change from first to last. Points may be None."""

    category: str
    family: str
    phase: str | None
    mfu_points: tuple[float, ...] | None
    time_ps: tuple[float, ...]
    total_mfu_points: float | None
    total_time_ps: float


@dataclass(frozen=True, slots=True)
class Ladder:
    """A chain of runs: ``rungs[i]`` leads from ``runs[i]`` to ``runs[i + 1]``, ``delta`` from the first to the last.

    Σ rows.total_mfu_points = Σ rungs.delta.mfu_points = delta.mfu_points.
    """

    normalization: str  # "step" | "run" | "token" | "flop"; of all runs
    verdict: str
    runs: tuple[Summary, ...]
    rungs: tuple[Rung, ...]
    rows: tuple[LadderRow, ...]
    delta: Delta
    comparable: bool = True
    warnings: tuple[Note, ...] = ()
