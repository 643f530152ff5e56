"""How far the figures of one recording can be trusted: what it covers, lacks, lost and assumes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import polars as pl

from profiler.analysis import hbm
from profiler.analysis.commfacts import mesh_of, moved
from profiler.analysis.grades import grades
from profiler.analysis.kernels import kernel_facts
from profiler.analysis.remedies import problems
from profiler.analysis.roofline import HALF, bandwidth_of, with_bytes
from profiler.analysis.summary import FLOP_FAMILIES, MATMUL_OPCODES, Measured, executed_flops
from profiler.hardware import by_name, identify_tpu
from profiler.reduce.steps import ANNOTATIONS, STEPS_LINE
from profiler.results_health import Assumption, Coverage, Health, HealthDevice, HealthFile, Presence
from profiler.runinfo import fact, flat, tokens_per_device
from profiler.trace import Timeline, Trace
from profiler.xplane import scan

ALL = "all ops"
MATMULS, COMPUTE, KERNELS, COLLECTIVES = "matrix work", "compute ops", "custom kernels", "exposed collectives"
CONTROL_FLOW, MOVES, OTHER = "control flow", "copy / layout", "other"
TRACE, RUN_INFO, CONFIG = "trace", "run info", "--config"
TYPED, TABLE, UNKNOWN = "command line", "chip table", "unknown"


def health(measured: Measured) -> Health:
    """What a side covers, lacks, lost and assumes, and what follows for the questions that its figures answer."""
    trace, times, summary = measured.trace, measured.times, measured.summary
    covered = coverage(measured)
    present = _presence(trace)
    assumed = _assumptions(measured)
    return Health(
        file=summary.file,
        label=summary.label,
        kind=summary.kind,
        recordings=trace.recordings,
        files=tuple(
            HealthFile(name, trace.file_bytes[index] if index < len(trace.file_bytes) else None)
            for index, name in enumerate(trace.files)
        ),
        hosts=tuple(dict.fromkeys(each.host for each in (*trace.devices, *trace.idle_devices))),
        devices=tuple(_devices(measured)),
        idle_devices=tuple(each.name for each in trace.idle_devices),
        steps=summary.steps,
        busy_ps=times.step_ps - times.idle_ps,
        programs=len(trace.programs),
        versions=_versions(trace),
        scanner="compiled" if scan.COMPILED else "python",
        grades=grades(measured, covered, present, assumed),
        coverage=covered,
        presence=present,
        assumptions=assumed,
        problems=problems(summary.warnings),
    )


# --- coverage --------------------------------------------------------------------------------------------------------


def coverage(measured: Measured) -> tuple[Coverage, ...]:
    """Of how much of the exclusive time of the steady steps something is known, fact by fact."""
    trace = measured.trace
    facts = kernel_facts(trace)
    table = measured.times.ops.join(trace.ops, on="op_id", how="left", maintain_order="left")
    table = with_bytes(executed_flops(table, facts), facts)
    programs = [program for _, program in trace.programs]
    tiled = [op for op, each in facts.items() if each.tiles]
    grouped = [op for op, each in moved(trace).items() if each.members is not None]
    computes = (pl.col("category") == "compute") & (pl.col("family") != CONTROL_FLOW)
    opcode = pl.col("opcode").fill_null("")
    matmuls = pl.col("family").str.contains_any(list(FLOP_FAMILIES)) & opcode.is_in(["", *MATMUL_OPCODES]) & computes
    # A fusion of 0 FLOPs holds no matmul; the compiler counts 0 for other ops that it cannot look into.
    counted = pl.col("flops").is_not_null() & ((pl.col("flops") > 0) | (opcode == "fusion"))
    anything = pl.lit(True)
    return tuple(
        _row(name, scope, table.filter(inside), known, without)
        for name, scope, inside, known, without in (
            ("HLO op", ALL, anything, pl.col("hlo"), "a kernel goes by its own name, and its family is read off it"),
            (
                "HLO program",
                ALL,
                anything,
                pl.col("hlo") & pl.col("program_id").is_in(programs).fill_null(False),
                "no dataflow: no cost of keeping tensors, no kernels' own estimates, no neighbours' places",
            ),
            (
                "name stack",
                ALL,
                anything,
                pl.col("name_stack").is_not_null(),
                "the place in the model comes from the op's neighbours, if at all",
            ),
            (
                "place in the model",
                ALL,
                anything,
                pl.coalesce("name_stack", "near_stack").is_not_null(),
                "ops of two compiles are matched by kind, shape and instruction name",
            ),
            (
                "phase",
                ALL,
                anything,
                pl.col("phase").is_not_null(),
                "forward, backward and re-run cannot be told apart",
            ),
            ("family", ALL, anything, pl.col("family") != OTHER, 'the time stands under "other"'),
            ("source line", ALL, anything, pl.col("source").is_not_null(), "no line of your code is named"),
            ("FLOPs", MATMULS, matmuls, counted, "no HFU, and no rate and no roof of these ops"),
            ("bytes", COMPUTE, computes & ~pl.col("op").str.contains(HALF.pattern), pl.col("bytes_accessed") > 0,
             "no bandwidth and no roof of these ops"),
            (
                "tiles",
                KERNELS,
                computes & pl.col("kernel").is_not_null() & (pl.col("family") != MOVES),
                pl.col("op_id").is_in(tiled),
                "a change of tiles shows in time per call, but not which one it was",
            ),
            (
                "groups",
                COLLECTIVES,
                pl.col("category") == "communication",
                pl.col("op_id").is_in(grouped),
                "no bytes, no bandwidth and no mesh axis of these collectives",
            ),
        )
    )  # fmt: skip


def _row(name: str, scope: str, rows: pl.DataFrame, known: pl.Expr, without: str) -> Coverage:
    told = rows.select(known.fill_null(False)).to_series()
    covered, uncovered = (math.fsum(rows.filter(mask)["time_ps"]) for mask in (told, ~told))
    ops, covered_ops = (int(each["op_id"].n_unique()) for each in (rows, rows.filter(told)))
    time = covered + uncovered
    return Coverage(
        name=name,
        scope=scope,
        covered_ps=covered,
        uncovered_ps=uncovered,
        fraction=covered / time if time else None,
        covered_ops=covered_ops,
        ops=ops,
        ops_fraction=covered_ops / ops if ops else None,
        without=without,
    )


# --- what is there, and what is taken from where ---------------------------------------------------------------------


def _devices(measured: Measured) -> Iterable[HealthDevice]:
    trace, spans = measured.trace, measured.times.spans
    of_device = {index: sums for (index,), sums in trace.op_sums.partition_by("device", as_dict=True).items()}
    for device, timeline, windows in zip(trace.devices, trace.timelines, trace.windows, strict=True):
        yield HealthDevice(
            name=device.name,
            host=device.host,
            plane=device.plane,
            type=device.type,
            events=len(timeline),
            ops=len(np.unique(timeline.op)),
            steps=len(spans.get(device.index, ())),
            step_source=windows.source,
            clock_ppm=_clock(of_device[device.index], timeline)
            if device.platform == "tpu" and device.index in of_device
            else None,
        )


def _clock(sums: pl.DataFrame, timeline: Timeline) -> float | None:
    """How a device's own clock runs against the common one, by the same ops in both; None where there is one."""
    same = (timeline.lane >= 0) & np.isin(timeline.op, sums["op_id"].to_numpy())
    own, common = int(sums["total_time_ps"].sum()), int(timeline.duration_ps[same].sum())
    if int(same.sum()) != int(sums["occurrences"].sum()) or own == common or not common:
        return None
    return (own / common - 1) * 1e6


def _presence(trace: Trace) -> tuple[Presence, ...]:
    info = trace.run_info or {}
    plans = [plan for module in trace.programs.values() if (plan := module.buffers) is not None]
    sources = [each.source for each in trace.windows if each.source.startswith((STEPS_LINE, ANNOTATIONS))]
    events = sum(each.events for each in trace.allocator.allocators)
    knobs = flat(info.get("config"))
    mesh = " × ".join(f"{axis} {size}" for axis, size in mesh_of(trace).items())
    metrics = info.get("metrics")
    versions = ", ".join(f"{key} {value}" for key, value in _versions(trace).items())

    def row(name: str, found: object, detail: str, without: str) -> Presence:
        return Presence(name, bool(found), detail if found else None, without)

    return (
        row("marked steps", sources, next(iter(sources), ""), "steps are repeats of a program, or the whole recording"),
        row(
            "program executions",
            any(trace.modules),
            "XLA Modules line",
            "idle time between programs may look like that within one",
        ),
        row(
            "HLO programs",
            trace.programs,
            f"{len(trace.programs)} of them",
            "no dataflow, no memory plan, fewer shapes",
        ),
        row(
            "memory plan",
            plans,
            f"of {len(plans)} program{'s' if len(plans) > 1 else ''}",
            "no static peak, and nothing of what fills HBM",
        ),
        row(
            "heap trace",
            any(plan.history for plan in plans),
            "HBM over the schedule",
            "the static peak is all that is allocated",
        ),
        row("allocator events", events, f"{events:,} of them", "no measured peak, and none of the process's life"),
        row("run info", info, _config_or_trace(trace), "no model FLOPs and tokens but those on the command line"),
        row("knobs", knobs, f"{len(knobs)} keys", "a change cannot be tied to the key that made it"),
        row("mesh", mesh, mesh, "collectives have no axis"),
        row(
            "metrics per step",
            isinstance(metrics, list) and metrics,
            f"{len(metrics) if isinstance(metrics, list) else 0} steps",
            "no loss: whether two runs compute the same cannot be told",
        ),
        row("software versions", versions, versions, "a change of JAX or XLA goes unseen"),
    )


def _config_or_trace(trace: Trace) -> str:
    return "of --config" if trace.configured else "in the trace"


def _versions(trace: Trace) -> dict[str, str]:
    """Of the trace and of its run info, under one spelling."""
    stated = (trace.run_info or {}).get("versions")
    found = {str(key): str(value) for key, value in stated.items()} if isinstance(stated, dict) else {}
    carried = {key.removesuffix("_version"): value for key, value in sorted(trace.versions.items())}
    return found | {key: value for key, value in carried.items() if value != key}  # "cpu" of "cpu" says nothing


def _assumptions(measured: Measured) -> tuple[Assumption, ...]:
    trace, inputs = measured.trace, measured.summary.mfu_inputs
    capacity, by_whom = hbm.capacity(trace)
    known_chip = all(identify_tpu(each.type) or by_name(each.type) for each in trace.devices)
    bandwidth = bandwidth_of(measured)
    flops, tokens = inputs.model_tflops_per_device_per_step, measured.tokens
    layers = fact(trace, "layers")
    return (
        Assumption("peak (dense bf16)", measured.peak_tflops, "TFLOP/s", *_peak(measured)),
        Assumption(
            "HBM capacity",
            capacity,
            "bytes",
            UNKNOWN
            if capacity is None
            else TRACE
            if trace.allocator.capacity_bytes or not known_chip
            else RUN_INFO
            if by_whom and "run info" in by_whom
            else TABLE,
            by_whom,
        ),
        Assumption("HBM bandwidth", bandwidth, "bytes/s", TABLE if bandwidth else UNKNOWN),
        Assumption(
            "model FLOPs per step",
            flops,
            "TFLOP",
            _stated(trace, "model_tflops_per_device_per_step", flops, fact(trace, "model_tflops_per_device_per_step")),
            inputs.convention,
        ),
        Assumption(
            "tokens per step",
            tokens,
            "tokens",
            _stated(trace, "tokens_per_device_per_step", tokens, tokens_per_device(trace), "tokens_per_step"),
            "those of all devices, shared out evenly"
            if tokens and tokens == tokens_per_device(trace) != fact(trace, "tokens_per_device_per_step")
            else None,
        ),
        Assumption("layers", layers, "layers", _stated(trace, "layers", layers, layers)),
    )


def _peak(measured: Measured) -> tuple[str, str | None]:
    """Who says what the peak is, and what the trace says where it says something else."""
    trace, peak = measured.trace, measured.peak_tflops
    if peak is None:
        return UNKNOWN, None
    stated = sorted({each.trace_peak_tflops for each in trace.devices if each.trace_peak_tflops})
    detail = f"the trace states {', '.join(f'{each:g}' for each in stated)}" if stated and stated != [peak] else None
    chips = {each.peak_tflops for each in trace.devices}
    if chips != {peak}:
        return TYPED, detail
    kinds = ", ".join(dict.fromkeys(each.type or "" for each in trace.devices))
    return TABLE, detail or kinds


def _stated(trace: Trace, key: str, value: float | None, by_run_info: float | None, *others: str) -> str:
    """Who says a fact of the run: the command line wins over a configuration file, and that over the trace."""
    if value is None:
        return UNKNOWN
    if value != by_run_info:
        return TYPED
    return CONFIG if trace.configured & {key, *others} else RUN_INFO
