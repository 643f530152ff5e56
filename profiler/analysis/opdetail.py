"""One row of a diff's ops in full: instructions, HLO text and the time of every call, both sides beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiler.analysis.calls import Calls, calls, histograms, summarize
from profiler.analysis.kernels import kernel_facts
from profiler.analysis.summary import Measured
from profiler.compare.align import Members, align
from profiler.compare.comparable import work_of
from profiler.hlo import HloModule, Instruction
from profiler.hlo import text as hlo_text
from profiler.results import Diff
from profiler.results_ops import Histogram, OpDetail, OpFacts

MOST_NAMES = 50  # instructions of a row that are named


def members(baseline: Measured, optimized: Measured, diff: Diff) -> tuple[Members, ...]:
    """The ops of every row of ``diff.ops``, found again from the sides that it compares; keep it for many rows."""
    return align(baseline, optimized, scale_of(baseline, optimized, diff)).members


def scale_of(baseline: Measured, optimized: Measured, diff: Diff) -> float:
    """What the optimized times of a diff are multiplied by, see attribute.Work."""
    if diff.normalization not in ("flop", "token"):
        return 1.0
    return work_of(baseline, optimized, diff.normalization).scale


def op_detail(
    baseline: Measured, optimized: Measured, diff: Diff, row: int, rows: Sequence[Members] | None = None
) -> OpDetail:
    """What is known of one row of ``diff.ops``.

    Args:
        baseline, optimized: the sides that the diff compares.
        diff: of these sides; text in it may be redacted, what is taken from the sides is not.
        row: of ``diff.ops``, from 0.
        rows: ``members`` of the diff, where the caller keeps them.

    Raises:
        IndexError: there is no such row.
    """
    if not 0 <= row < diff.ops.height:
        raise IndexError(f"the diff has {diff.ops.height} rows of ops, no row {row}")
    held = (members(baseline, optimized, diff) if rows is None else rows)[row]
    record = diff.ops.row(row, named=True)
    scale = scale_of(baseline, optimized, diff)
    found = calls(baseline, held.baseline), calls(optimized, held.optimized)
    bars = histograms(found, (1.0, scale))
    return OpDetail(
        row=row,
        match=record["match"],
        confidence=record["confidence"],
        evidence=record["evidence"],
        normalization=diff.normalization,
        scale=scale,
        baseline_kind=baseline.trace.kind,
        optimized_kind=optimized.trace.kind,
        baseline=_facts(baseline, held.baseline, 1.0, found[0], bars[0]),
        optimized=_facts(optimized, held.optimized, scale, found[1], bars[1]),
    )


def _facts(
    measured: Measured, op_ids: tuple[int, ...], scale: float, found: Calls, bars: Histogram | None
) -> OpFacts | None:
    if not op_ids:
        return None
    trace = measured.trace
    ops = trace.ops[list(op_ids)]
    first = ops.row(0, named=True)
    mine = measured.times.ops.filter(measured.times.ops["op_id"].is_in(list(op_ids)))
    names = ops["op"].unique(maintain_order=True)
    instruction = _instruction(trace.programs, first["program_id"], first["op"])
    text, source = _text(first["hlo_text"], instruction)
    kernel = kernel_facts(replace(trace, ops=ops.head(1))).get(first["op_id"])
    return OpFacts(
        instructions=tuple(names.head(MOST_NAMES)),
        instruction_count=ops.select("program_id", "op").n_unique(),
        programs=tuple(ops["program"].drop_nulls().unique(maintain_order=True)),
        family=first["family"],
        phase=first["phase"],
        category=first["category"],
        opcode=first["opcode"],
        kernel=first["kernel"],
        shape=first["shape"],
        hlo_text=text,
        hlo_source=source,
        source=first["source"],
        name_stack=first["name_stack"] or first["near_stack"],
        name_stack_is_near=not first["name_stack"] and bool(first["near_stack"]),
        flops=int(kernel.work.flops) if kernel and kernel.work.flops else first["flops"],
        bytes_accessed=first["bytes_accessed"] or (kernel.bytes if kernel else None),
        calls_per_step=float(mine["calls"].sum()),
        time_ps_per_step=float(mine["time_ps"].sum()) * scale,
        calls=summarize(found, scale),
        histogram=bars,
    )


def _instruction(
    programs: Mapping[tuple[str, str], HloModule], program_id: str | None, name: str
) -> Instruction | None:
    """The instruction in a program of that id; hosts of one run hold the same."""
    for (_, known), module in programs.items():
        if known == program_id and (instruction := module.instructions.get(name)) is not None:
            return instruction
    return None


def _text(recorded: str | None, instruction: Instruction | None) -> tuple[str | None, str | None]:
    """(HLO text, where it comes from): what the recording spells, unless the program says more than that."""
    if instruction is None:
        return (hlo_text.bounded(recorded), "recording") if recorded else (None, None)
    written = hlo_text.line(instruction, operand_shapes=True)
    source = "recording" if recorded and len(recorded) >= len(written) else "program"
    parts = [recorded if recorded and source == "recording" else written, *hlo_text.notes(instruction)]
    below = hlo_text.bodies(instruction)
    return hlo_text.bounded(", ".join(parts)) + (f"\n\n{below}" if below else ""), source
