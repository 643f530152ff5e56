"""What one row of a diff's ops says in full: both sides' instructions, HLO text, and how long each call took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallSummary:
    """How long calls took from start to end; the percentiles are of single calls.

    ``mean_ps`` counts every device equally, as a diff does: with unlike numbers of steps it is not the plain mean.
    """

    count: int
    min_ps: float
    p10_ps: float
    median_ps: float
    mean_ps: float
    p90_ps: float
    max_ps: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Calls per bin. ``edges_ps`` are one more than the bins; both sides have the same. ``shares`` sum to 1."""

    edges_ps: tuple[float, ...]
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    logarithmic: bool


@dataclass(frozen=True, slots=True)
class OpFacts:
    """One side of a row: the instructions that it holds, the one that takes the most time first.

    ``instructions`` are the first names of ``instruction_count``. What a single instruction says (``program``, from
    ``opcode`` to ``name_stack``, and FLOPs and bytes of a call) is of the first. ``hlo_text`` ends with the
    computations that it calls; ``hlo_source`` is "recording" where the recording spells the instruction, "program"
    where it is written out of the program that the recording holds. ``name_stack_is_near``: the op has none, and this
    is that of its nearest neighbour in the dataflow. ``calls`` and ``histogram`` are None where the row holds no call:
    the halves of asynchronous ops that wait.
    """

    instructions: tuple[str, ...]
    instruction_count: int
    programs: tuple[str, ...]
    family: str
    phase: str | None
    category: str | None
    opcode: str | None
    kernel: str | None
    shape: str | None
    hlo_text: str | None
    hlo_source: str | None
    source: str | None
    name_stack: str | None
    name_stack_is_near: bool
    flops: int | None
    bytes_accessed: int | None
    calls_per_step: float
    time_ps_per_step: float
    calls: CallSummary | None
    histogram: Histogram | None


@dataclass(frozen=True, slots=True)
class OpDetail:
    """One row of a diff's ops. A side is None where the row has no op of it.

    Times of the optimized side are multiplied by ``scale``, as in the diff: they are for the work of one baseline
    step. The kinds are "recorded" or "compiled"; times of a compiled side are estimates.
    """

    row: int
    match: str
    confidence: float
    evidence: str
    normalization: str
    scale: float
    baseline_kind: str
    optimized_kind: str
    baseline: OpFacts | None
    optimized: OpFacts | None


@dataclass(frozen=True, slots=True)
class OpTotals:
    """What some rows of a diff's ops add up to; exclusive time per device, for the work of one baseline step.

    ``share_of_change`` is of the change of the step, idle time included: it can be beyond 1 or below 0, and is None
    where the step did not change. ``wasted_time_ps`` is of the rows whose roof is known, None where none is.
    """

    rows: int
    baseline_time_ps: float
    optimized_time_ps: float
    delta_time_ps: float
    share_of_change: float | None
    wasted_time_ps: float | None
