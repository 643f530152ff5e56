"""Custom kernels: how often, how long, how fast against the chip's peak, and with which tiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from profiler.analysis import kernelcalls
from profiler.analysis.kernelcalls import Call, Tiles
from profiler.analysis.kernelflops import UNKNOWN, Work, work_of
from profiler.results import KernelRow, Note
from profiler.results_efficiency import Kernels, KernelVariant
from profiler.runinfo import fact
from profiler.trace import Trace

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

ABOVE_PEAK = "above_peak"
_MOVES = "copy / layout"  # custom calls that only rename or lay out memory
# Kernels whose work is matrix work: without FLOPs their rates are missed.
_ARITHMETIC = ("splash", "gmm", "tgmm", "attention", "matmul")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What is known of one custom kernel: its work, its tiles, and for matmuls the bytes of all arrays."""

    work: Work
    tiles: Tiles
    bytes: int | None = None


def kernel_facts(trace: Trace) -> dict[int, KernelFacts]:
    """Work and tiles of every op with a kernel, by ``op_id``."""
    modules = {program: module for (_, program), module in trace.programs.items()}
    columns = ("op_id", "op", "program_id", "family", "flops", "hlo_text")
    found = {}
    for op_id, op, program, family, counted, text in (
        trace.ops.filter(pl.col("kernel").is_not_null()).select(columns).iter_rows()
    ):
        module = modules.get(program) if program is not None else None
        instruction = module.instructions.get(op) if module is not None else None
        call: Call | None = None
        estimate = None
        if instruction is not None and instruction.opcode == "custom-call":
            call = kernelcalls.of_instruction(instruction)
            estimate = instruction.cost_estimate.flops if instruction.cost_estimate else None
        elif text:
            call = kernelcalls.of_text(op, text)
        tiles = call.tiles(family) if call else kernelcalls.Call(op, (), (), {}).tiles(family)
        work = work_of(call, family, estimate, counted)
        is_matmul = call is not None and work.shape is not None and "splash" not in family
        moved = sum(each.bytes for each in (*call.operands, *call.outputs)) if call and is_matmul else None
        found[op_id] = KernelFacts(work, tiles, moved)
    return found


def kernel_rows(
    table: pl.DataFrame, facts: dict[int, KernelFacts], layers: float | None, peak_tflops: float | None
) -> tuple[KernelRow, ...]:
    """One row per kernel and phase, most time first. Times are spans, so that a mean is that of one call.

    Args:
        table: StepTimes.ops joined with Trace.ops.
        facts: of kernel_facts.
        layers: of the model, for calls per layer.
        peak_tflops: dense bf16 peak per device.
    """
    rows = []
    for (kernel, phase), members in _grouped(table, ("kernel", "phase")):
        calls, span, flops = _sums(members, facts)
        rate = _rate(flops, span)
        works = [facts[each["op_id"]].work for each in members]
        tiles = {str(facts[each["op_id"]].tiles): facts[each["op_id"]].tiles for each in members}
        families = dict.fromkeys(each["family"] for each in members)
        rows.append(
            KernelRow(
                kernel=kernel,
                phase=phase,
                calls_per_step=calls,
                calls_per_layer=calls / layers if layers else None,
                mean_time_ps=span / calls,
                time_ps_per_step=span,
                tflops_per_s=rate,
                family=" / ".join(families),
                flops_per_call=flops / calls if flops else None,
                flops_sources=tuple(dict.fromkeys(work.source for work in works if work.source)) if flops else (),
                peak_fraction=rate / peak_tflops if rate and peak_tflops else None,
                tiles=tuple(each for each in tiles.values() if each),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.time_ps_per_step, row.kernel, row.phase or "~")))


def kernels(measured: Measured) -> Kernels:
    """The custom kernels of a side."""
    trace, times = measured.trace, measured.times
    table = times.ops.join(trace.ops, on="op_id", how="left", maintain_order="left").filter(pl.col("family") != _MOVES)
    facts, layers, peak = kernel_facts(trace), fact(trace, "layers"), measured.peak_tflops
    rows = kernel_rows(table, facts, layers, peak)
    return Kernels(
        file=measured.summary.file,
        label=trace.label,
        kind=trace.kind,
        unit=times.unit,
        step_time_ps=times.step_ps,
        layers=layers,
        peak_tflops=peak,
        kernels=rows,
        variants=_variants(table, facts, peak),
        warnings=tuple(dict.fromkeys((*measured.summary.warnings, *_notes(rows, trace, peak)))),
    )


def _variants(
    table: pl.DataFrame, facts: dict[int, KernelFacts], peak_tflops: float | None
) -> tuple[KernelVariant, ...]:
    """The rows by shape and tiles."""
    found = []
    for (kernel, phase), members in _grouped(table, ("kernel", "phase")):
        alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for each in members:
            alike[str(facts[each["op_id"]])].append(each)
        for group in alike.values():
            calls, span, flops = _sums(group, facts)
            one, rate = facts[group[0]["op_id"]], _rate(flops, span)
            found.append(
                KernelVariant(
                    kernel=kernel,
                    family=group[0]["family"],
                    phase=phase,
                    shape=one.work.shape,
                    tiles=one.tiles,
                    calls_per_step=calls,
                    mean_time_ps=span / calls,
                    time_ps_per_step=span,
                    flops_per_call=one.work.flops,
                    flops_source=one.work.source,
                    tflops_per_s=rate,
                    peak_fraction=rate / peak_tflops if rate and peak_tflops else None,
                    ops=tuple(dict.fromkeys(each["op"] for each in group)),
                )
            )
    return tuple(sorted(found, key=lambda row: (-row.time_ps_per_step, row.kernel, row.phase or "~", row.ops)))


def _grouped(table: pl.DataFrame, keys: Sequence[str]) -> Iterable[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Called kernels by key, in order of appearance."""
    called = table.filter(pl.col("kernel").is_not_null() & (pl.col("calls") > 0))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in called.select(*keys, "op_id", "op", "family", "calls", "span_ps").iter_rows(named=True):
        groups[tuple(row[key] for key in keys)].append(row)
    return groups.items()


def _sums(members: list[dict[str, Any]], facts: dict[int, KernelFacts]) -> tuple[float, float, float | None]:
    """(calls, time, FLOPs); a sum with an unknown part is unknown."""
    works = [(each["calls"], facts.get(each["op_id"], KernelFacts(UNKNOWN, {})).work.flops) for each in members]
    flops = sum(calls * (work or 0.0) for calls, work in works) if all(work for _, work in works) else None
    return sum(each["calls"] for each in members), sum(each["span_ps"] for each in members), flops


def _rate(flops: float | None, span_ps: float) -> float | None:
    return flops / span_ps if flops and span_ps else None  # FLOP per ps is TFLOP per s


def _notes(rows: tuple[KernelRow, ...], trace: Trace, peak_tflops: float | None) -> list[Note]:
    notes = []
    if not rows:
        notes.append(Note("no_kernels", "no custom kernel ran: XLA compiled everything itself (`summary`, `ops`)"))
    above = [_named(row) for row in rows if row.peak_fraction is not None and row.peak_fraction > 1]
    if above:
        notes.append(
            Note(
                ABOVE_PEAK,
                f"{', '.join(above)}: above the dense bf16 peak of {peak_tflops:g} TFLOP/s, so the FLOPs, the times or "
                "the peak cannot be right (or the kernel computes in 8 or 4 bits)",
            )
        )
    unknown = [
        _named(row)
        for row in rows
        if row.flops_per_call is None and row.family and any(word in row.family for word in _ARITHMETIC)
    ]
    if unknown:
        why = "" if trace.programs else "; the recording has no HLO programs, whose cost estimates might tell"
        notes.append(Note("kernel_flops_unknown", f"FLOPs unknown of {', '.join(unknown)}{why}"))
    if any("causal" in row.flops_sources for row in rows):
        notes.append(
            Note(
                "causal_assumed",
                "splash FLOPs are half of the square of queries and keys where nothing says which blocks run: a causal "
                "mask is assumed",
            )
        )
    return notes


def _named(row: KernelRow) -> str:
    return f"{row.kernel} ({row.phase})" if row.phase else row.kernel
