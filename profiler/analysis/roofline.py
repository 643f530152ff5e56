"""Roofline: how far each compute op is from what the chip could do, and where the most time would be won.

An op that executes W FLOPs and moves B bytes cannot take less than max(W / peak, B / HBM bandwidth). What it takes
beyond is called wasted. Communication, transfers and waits have other roofs and are left out, and so are the start and
done halves of asynchronous ops, whose own duration is not that of their work.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from profiler.analysis.families import COMPUTE
from profiler.analysis.kernels import KernelFacts, kernel_facts
from profiler.analysis.opfacts import base_name
from profiler.hardware import CHIPS, Chip, identify_tpu
from profiler.results import Note
from profiler.results_efficiency import LeftOut, RoofFamily, Roofline, RoofOp

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

ABOVE_ROOF = 1.02  # of the roof: beyond it the bytes or FLOPs cannot be right; below, clocks and rounding
HALF = re.compile(r"-(start|done|update)(\.|$)")
MOST_BYTES = 1 << 62  # of one call; more is damage
_DIGITS = re.compile(r"\d+")


def roofline(measured: Measured, *, hbm_bytes_per_s: float | None = None) -> Roofline:
    """Distance to the roof of a side's compute ops; ``hbm_bytes_per_s`` is per device, instead of the chip table's."""
    from profiler.analysis.summary import executed_flops, flops_known

    trace, times, summary = measured.trace, measured.times, measured.summary
    table = times.ops.join(trace.ops, on="op_id", how="left", maintain_order="left")
    facts = kernel_facts(trace)
    table = with_bytes(executed_flops(table, facts), facts)
    peak = measured.peak_tflops
    bandwidth = hbm_bytes_per_s or bandwidth_of(measured)
    ops = _ops(_computing(table), peak, bandwidth)
    executed, unknown_ps = flops_known(table)
    hfu = executed / (times.step_ps * peak) if peak and times.step_ps and executed else None  # TFLOP/s is FLOP/ps
    return Roofline(
        file=summary.file,
        label=trace.label,
        kind=trace.kind,
        unit=times.unit,
        step_time_ps=times.step_ps,
        peak_tflops=peak,
        hbm_bytes_per_s=bandwidth,
        ridge_flops_per_byte=peak * 1e12 / bandwidth if peak and bandwidth else None,
        mfu=summary.mfu,
        hfu=hfu,
        hfu_unknown_time_ps=unknown_ps,
        families=_families(ops),
        ops=ops,
        left_out=_left_out(measured),
        warnings=tuple(dict.fromkeys((*summary.warnings, *_notes(measured, ops, peak, bandwidth)))),
    )


def op_roofs(measured: Measured, *, hbm_bytes_per_s: float | None = None) -> pl.DataFrame:
    """Every compute op against its roof, per device and step.

    Columns: ``op_id``, ``span_ps`` (its calls from start to end) and ``roof_ps``, the least that the chip allows for
    them; null where the roof is unknown, see RoofOp.
    """
    from profiler.analysis.summary import executed_flops

    facts = kernel_facts(measured.trace)
    table = measured.times.ops.join(measured.trace.ops, on="op_id", how="left", maintain_order="left")
    table = _computing(with_bytes(executed_flops(table, facts), facts))
    peak, bandwidth = measured.peak_tflops, hbm_bytes_per_s or bandwidth_of(measured)
    moved = pl.when(pl.col("bytes_accessed") > 0).then("bytes_accessed")  # nothing moves 0 bytes: it was not counted
    least = pl.lit(None, pl.Float64)
    if peak and bandwidth:
        # Not max_horizontal alone, which takes the known one of two.
        known = pl.col("flops").is_not_null() & moved.is_not_null()
        least = pl.when(known).then(pl.max_horizontal(pl.col("flops") / peak, moved / bandwidth * 1e12))
    return table.select("op_id", "span_ps", roof_ps=pl.col("calls") * least)


def _computing(table: pl.DataFrame) -> pl.DataFrame:
    """The ops that have a roof here."""
    return table.filter((pl.col("rank") == COMPUTE) & (pl.col("calls") > 0) & ~pl.col("op").str.contains(HALF.pattern))


def with_bytes(table: pl.DataFrame, facts: Mapping[int, KernelFacts]) -> pl.DataFrame:
    """The table with the bytes of kernels that the compiler says move none, where shapes tell them."""
    known = [(op_id, each.bytes) for op_id, each in facts.items() if each.bytes and each.bytes < MOST_BYTES]
    ours = pl.DataFrame(known, {"op_id": pl.Int32, "moved": pl.Int64}, orient="row")
    joined = table.join(ours, on="op_id", how="left", maintain_order="left")
    counted = pl.when(pl.col("bytes_accessed") > 0).then("bytes_accessed")
    return joined.with_columns(bytes_accessed=pl.coalesce(counted, "moved", "bytes_accessed")).drop("moved")


def bandwidth_of(measured: Measured) -> float | None:
    """HBM bytes per second and device; None where the devices differ or are unknown."""
    chips = {_chip(device.type) for device in measured.trace.devices}
    chip = chips.pop() if len(chips) == 1 else None
    return chip.hbm_bytes_per_s if chip else None


def _chip(kind: str | None) -> Chip | None:
    return identify_tpu(kind) or next((chip for chip in CHIPS if chip.name == kind), None)


def _ops(table: pl.DataFrame, peak_tflops: float | None, bandwidth: float | None) -> tuple[RoofOp, ...]:
    """One row per op; ops that differ only in their numbers (one per unrolled layer) are one row."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    columns = ("op", "family", "phase", "kernel", "name_stack", "source", "flops", "bytes_accessed", "calls", "span_ps")
    for row in table.select(columns).iter_rows(named=True):
        stack = _DIGITS.sub("#", row["name_stack"] or "")
        alike = base_name(row["op"]), row["family"], row["phase"], stack, row["flops"], row["bytes_accessed"]
        groups[alike].append(row)
    found = [_op(members, peak_tflops, bandwidth) for members in groups.values()]
    return tuple(sorted(found, key=lambda row: (-(row.wasted_time_ps_per_step or 0.0), -row.time_ps_per_step, row.op)))


def _op(members: list[dict[str, Any]], peak_tflops: float | None, bandwidth: float | None) -> RoofOp:
    first = max(members, key=lambda each: each["span_ps"])
    calls, time = (sum(each[key] for each in members) for key in ("calls", "span_ps"))
    flops, moved = first["flops"], first["bytes_accessed"] or None  # nothing moves 0 bytes: it was not counted
    roof = bound = None
    if flops is not None and moved and peak_tflops and bandwidth:
        by_arithmetic, by_memory = flops / peak_tflops, moved / bandwidth * 1e12
        roof = calls * max(by_arithmetic, by_memory)
        bound = "compute" if by_arithmetic >= by_memory else "memory"
    return RoofOp(
        op=first["op"],
        family=first["family"],
        phase=first["phase"],
        instructions=len(members),
        calls_per_step=calls,
        mean_time_ps=time / calls,
        time_ps_per_step=time,
        flops_per_call=flops,
        bytes_per_call=moved,
        flops_per_byte=flops / moved if flops is not None and moved else None,
        tflops_per_s=calls * flops / time if flops and time else None,
        gb_per_s=calls * moved / time * 1e3 if moved and time else None,
        bound=bound,
        roof_time_ps_per_step=roof,
        roof_fraction=roof / time if roof is not None and time else None,
        wasted_time_ps_per_step=max(time - roof, 0.0) if roof is not None else None,
        name_stack=first["name_stack"],
        source=first["source"],
    )


def _families(ops: tuple[RoofOp, ...]) -> tuple[RoofFamily, ...]:
    groups: dict[tuple[str, str | None], list[RoofOp]] = defaultdict(list)
    for row in ops:
        groups[row.family, row.phase].append(row)
    rows = []
    for (family, phase), members in groups.items():
        known = [row for row in members if row.roof_time_ps_per_step is not None]
        time, told = (sum(row.time_ps_per_step for row in each) for each in (members, known))
        wasted = sum(row.wasted_time_ps_per_step or 0.0 for row in known)
        memory = sum(row.time_ps_per_step for row in known if row.bound == "memory")
        rows.append(
            RoofFamily(
                family=family,
                phase=phase,
                calls_per_step=sum(row.calls_per_step for row in members),
                time_ps_per_step=time,
                known_time_ps_per_step=told,
                roof_time_ps_per_step=told - wasted if known else None,
                roof_fraction=1 - wasted / told if told else None,
                wasted_time_ps_per_step=wasted if known else None,
                memory_bound_fraction=memory / told if told else None,
            )
        )
    return tuple(
        sorted(rows, key=lambda row: (-(row.wasted_time_ps_per_step or 0.0), -row.time_ps_per_step, row.family))
    )


def _left_out(measured: Measured) -> tuple[LeftOut, ...]:
    found: dict[str, float] = defaultdict(float)
    for row in measured.summary.families:
        if row.category != "compute" or row.family == "control flow":
            found["control flow" if row.family == "control flow" else row.category] += row.time_ps_per_step
    return tuple(LeftOut(*each) for each in sorted(found.items(), key=lambda each: -each[1]) if each[1])


def _why(above: list[RoofOp]) -> str:
    reasons = {
        "memory": "not all of the bytes that the compiler counts are HBM traffic (operands that lie in VMEM or caches, "
        "or are read in part)",
        "compute": "FLOPs beyond the dense bf16 peak cannot be right, unless a kernel computes in 8 or 4 bits",
    }
    return "; ".join(text for bound, text in reasons.items() if any(row.bound == bound for row in above))


def _notes(
    measured: Measured, ops: tuple[RoofOp, ...], peak_tflops: float | None, bandwidth: float | None
) -> list[Note]:
    notes = []
    missing = [
        text
        for value, text in ((peak_tflops, "the peak (--peak-tflops)"), (bandwidth, "HBM bandwidth (--hbm-gb-per-s)"))
        if not value
    ]
    if missing:
        notes.append(Note("no_roof", f"{' and '.join(missing)} of the device unknown: no roof, and no distance to it"))
    if measured.trace.kind == "compiled":
        notes.append(
            Note(
                "roof_of_estimates",
                "compiled: most times are estimates from FLOPs and bytes, so that distances to the roof say what the "
                "estimate assumes",
            )
        )
    above = [row for row in ops if (row.roof_fraction or 0.0) > ABOVE_ROOF]
    if above:
        time = sum(row.time_ps_per_step for row in above)
        share = time / measured.times.step_ps if measured.times.step_ps else 0.0
        notes.append(
            Note(
                "above_roof",
                f"{len(above)} ops ({share:.1%} of the step) take less time than their roof: {_why(above)}",
            )
        )
    return notes
