"""What one side says: steps, MFU, families by phase, kernels, re-runs, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from profiler.analysis import comm
from profiler.analysis.hbm import peaks
from profiler.analysis.kernels import KernelFacts, kernel_facts, kernel_rows
from profiler.analysis.spread import spread
from profiler.analysis.times import StepTimes, step_times
from profiler.results import (
    DeviceInfo,
    FamilyRow,
    MfuInputs,
    Note,
    PhaseRow,
    Remat,
    RematFamily,
    StepStats,
    Summary,
)
from profiler.runinfo import fact, fact_notes, tokens_per_device
from profiler.trace import Trace

if TYPE_CHECKING:
    from profiler.api import Options

RERUN = "re-run"
PEAK_TOLERANCE = 0.02
SKEW_TOLERANCE = 0.05
# Families whose work is FLOPs: where one of them has an unknown count, the sum over the step is unknown too.
FLOP_FAMILIES = ("splash", "gmm", "tgmm", "matmul", "attention", "convolution", "router", "loss")
MATMUL_OPCODES = ("custom-call", "convolution", "dot", "fusion")  # ops of these families that may hold a matmul


@dataclass(frozen=True)
class Measured:
    """A side with its times: what comparisons start from. ``tokens`` are per device and step."""

    trace: Trace
    times: StepTimes
    summary: Summary
    tokens: float | None
    peak_tflops: float | None

    @property
    def model_flops(self) -> float | None:
        """Model FLOPs per device and step."""
        tflops = self.summary.mfu_inputs.model_tflops_per_device_per_step
        return tflops * 1e12 if tflops is not None else None


def measure(trace: Trace, options: Options) -> Measured:
    """Times the steady steps of a trace and sums them up."""
    whole = options.normalize == "run"
    times = step_times(trace, steps=options.steps, skip_first=options.skip_first or 0, whole=whole)
    notes = [*trace.warnings, *times.notes, *fact_notes(trace)]
    table = times.ops.join(trace.ops, on="op_id", how="left", maintain_order="left")
    facts = kernel_facts(trace)
    peak = _peak(trace, options, notes)
    tflops = options.model_tflops or fact(trace, "model_tflops_per_device_per_step")
    tokens = options.tokens_per_step or tokens_per_device(trace)
    if whole and (tokens or tflops):
        tokens = tflops = None
        notes.append(Note("work_per_step", "model FLOPs and tokens are per step and do not apply to a whole recording"))
    if times.unit == "run" and tflops is not None:
        notes.append(
            Note("flops_per_run", "no step repeats: the model FLOPs given are taken as those of the whole recording")
        )
    mfu = tflops * 1e12 / (times.step_ps * 1e-12 * peak * 1e12) if tflops and peak and times.step_ps else None
    if mfu is not None and mfu > 1:
        notes.append(
            Note("mfu_impossible", f"an MFU of {mfu:.0%} is impossible: model FLOPs, step time or peak cannot be right")
        )
    counted, _ = _flops(table)
    executed, complete = _flops(executed_flops(table, facts))
    hfu = executed / (times.step_ps * 1e-12 * peak * 1e12) if peak and complete and mfu is not None else None
    mean, median = times.step_ps, float(np.median(times.lengths_ps))
    if times.unit == "step" and abs(mean - median) > SKEW_TOLERANCE * median:
        notes.append(
            Note(
                "uneven_steps",
                f"mean and median step differ by {abs(mean / median - 1):.0%}: some steps are unlike the others "
                "(--skip-first N or --steps A:B leaves them out)",
            )
        )
    if times.unit == "run" and not whole:
        notes.append(Note("no_steps", "no step repeats in the recording: times are of the whole recording, per device"))
    convention = "given on the command line" if options.model_tflops else (trace.run_info or {}).get("convention")
    summary = Summary(
        file=", ".join(trace.files),
        label=trace.label,
        kind=trace.kind,
        devices=tuple(
            DeviceInfo(
                each.name, each.type, options.peak_tflops or each.peak_tflops, each.hbm_bytes, each.host, each.plane
            )
            for each in trace.devices
        ),
        steps=StepStats(
            times.source,
            times.steps,
            mean,
            median,
            float(np.percentile(times.lengths_ps, 10)),
            float(np.percentile(times.lengths_ps, 90)),
            times.unit,
        ),
        busy_fraction=1 - times.idle_ps / times.step_ps if times.step_ps else 0.0,
        mfu=mfu,
        hfu=hfu,
        mfu_inputs=MfuInputs(tflops, times.step_ps, peak, str(convention) if convention else None),
        families=families(table, times),
        kernels=kernel_rows(table, facts, fact(trace, "layers"), peak),
        remat=remat(table, times),
        memory=peaks(trace),
        run_info=trace.run_info,
        warnings=tuple(dict.fromkeys(notes)),
        compiler_tflops_per_step=counted / 1e12 if counted else None,
        tokens_per_s=tokens / (mean * 1e-12) if tokens and mean else None,
        phases=phases(table, times),
        whole=comm.whole(trace, times),
        fleet=spread(trace, options.steps, options.skip_first or 0),
    )
    return Measured(trace, times, summary, tokens, peak)


def families(table: pl.DataFrame, times: StepTimes) -> tuple[FamilyRow, ...]:
    """Exclusive time by category, family and phase, largest first, idle last."""
    grouped = (
        table.group_by("category", "family", "phase", maintain_order=True)
        .agg(pl.col("calls").sum(), pl.col("time_ps").sum())
        .sort(["time_ps", "family", "phase"], descending=[True, False, False], nulls_last=True)
    )
    rows = [
        FamilyRow(category, family, phase, calls, time, time / times.step_ps if times.step_ps else 0.0)
        for category, family, phase, calls, time in grouped.iter_rows()
    ]
    idle = FamilyRow("idle", "idle", None, None, times.idle_ps, times.idle_ps / times.step_ps if times.step_ps else 0.0)
    return (*rows, idle)


def phases(table: pl.DataFrame, times: StepTimes) -> tuple[PhaseRow, ...]:
    """Exclusive time by phase, largest first; empty where no phase can be told."""
    grouped = (
        table.group_by("phase", maintain_order=True)
        .agg(pl.col("time_ps").sum())
        .sort(["time_ps", "phase"], descending=[True, False], nulls_last=True)
    )
    if not times.step_ps or not grouped["phase"].drop_nulls().len():
        return ()
    return tuple(PhaseRow(phase, time, time / times.step_ps) for phase, time in grouped.iter_rows())


def remat(table: pl.DataFrame, times: StepTimes) -> Remat:
    """Forward work executed again in the backward pass."""
    rerun = (
        table.filter(pl.col("phase") == RERUN)
        .group_by("family", maintain_order=True)
        .agg(pl.col("calls").sum(), pl.col("time_ps").sum())
        .sort(["time_ps", "family"], descending=[True, False])
    )
    time = float(rerun["time_ps"].sum())
    return Remat(
        rerun_calls_per_step=float(rerun["calls"].sum()),
        rerun_time_ps_per_step=time,
        fraction=time / times.step_ps if times.step_ps else 0.0,
        by_family=tuple(RematFamily(*row) for row in rerun.iter_rows()),
    )


def executed_flops(table: pl.DataFrame, facts: Mapping[int, KernelFacts]) -> pl.DataFrame:
    """The table with the FLOPs that custom kernels execute in place of the compiler's count or their own estimate."""
    known = [(op_id, int(each.work.flops)) for op_id, each in facts.items() if each.work.flops]
    ours = pl.DataFrame(known, {"op_id": pl.Int32, "executed": pl.Int64}, orient="row")
    joined = table.join(ours, on="op_id", how="left", maintain_order="left")
    return joined.with_columns(flops=pl.coalesce("executed", "flops")).drop("executed")


def flops_known(table: pl.DataFrame) -> tuple[float, float]:
    """FLOPs per step, and the exclusive time of ops that do FLOPs nobody counted."""
    counted = float((table["flops"].fill_null(0).cast(pl.Float64) * table["calls"]).sum())
    unknown = table.filter(
        # A fusion of 0 FLOPs holds no matmul: a softmax, a mask. Everything else here is one.
        (pl.col("flops").is_null() | ((pl.col("flops") == 0) & (pl.col("opcode") != "fusion")))
        & pl.col("family").str.contains_any(list(FLOP_FAMILIES))
        & pl.col("opcode").is_in(MATMUL_OPCODES)
        & (pl.col("time_ps") > 0)
    )
    return counted, float(unknown["time_ps"].sum())


def _flops(table: pl.DataFrame) -> tuple[float, bool]:
    """FLOPs per step, and whether every op that does FLOPs has a count."""
    counted, unknown_ps = flops_known(table)
    return counted, counted > 0 and unknown_ps <= 0.001 * float(table["time_ps"].sum())


def _peak(trace: Trace, options: Options, notes: list[Note]) -> float | None:
    """The dense bf16 peak per device; None where the devices differ or are unknown."""
    if options.peak_tflops:
        return options.peak_tflops
    peaks = {each.peak_tflops for each in trace.devices}
    stated = {each.trace_peak_tflops for each in trace.devices if each.trace_peak_tflops}
    if len(peaks) != 1:
        notes.append(Note("mixed_devices", "the devices have different peaks: MFU needs --device or --peak-tflops"))
        return None
    (peak,) = peaks
    notes += [
        Note("peak_differs", f"the trace states a peak of {value:g} TFLOP/s, the chip table {peak:g}, which is used")
        for value in sorted(stated)
        if peak and abs(value / peak - 1) > PEAK_TOLERANCE
    ]
    return peak
