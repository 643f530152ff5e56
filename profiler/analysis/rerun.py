"""Rematerialisation: what runs again in the backward pass, and what keeping tensors would change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from profiler.analysis.keeping import EVERYTHING as EVERYTHING
from profiler.analysis.keeping import VOCABULARY, keep_options, kept_tensors, scope_of
from profiler.analysis.rerunflow import RERUN, Flow, flows
from profiler.hlo import Instruction
from profiler.results import Note
from profiler.results_efficiency import KeepOption, KeptTensor, RematReport, RerunCollective, RerunRow
from profiler.runinfo import fact

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective (other)")


def remat(measured: Measured) -> RematReport:
    """What a side runs again, and what keeping tensors would change."""
    trace, times, summary = measured.trace, measured.times, measured.summary
    layers = fact(trace, "layers")
    table = times.ops.join(trace.ops, on="op_id", how="left", maintain_order="left").filter(pl.col("phase") == RERUN)
    spent: dict[tuple[str | None, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    families: dict[tuple[str | None, str], str] = {}
    for program, op, family, calls, time in table.select("program_id", "op", "family", "calls", "time_ps").iter_rows():
        before = spent[program, op]
        spent[program, op] = before[0] + time, before[1] + calls
        families[program, op] = family
    options: list[KeepOption] = []
    kept: list[KeptTensor] = []
    needed_anyway: set[tuple[str | None, str]] = set()
    programs = {program for program, _ in spent}
    for (_, program), module in trace.programs.items():
        if program not in programs:
            continue
        programs.discard(program)
        here = {op: each for (owner, op), each in spent.items() if owner == program}
        found = flows(module)
        options += keep_options(found, here, {op: families[program, op] for op in here}, times.step_ps, layers)
        kept += kept_tensors(module, trace.run_info)
        needed_anyway |= {(program, op) for flow in found for op in _anyway(flow, here)}
    return RematReport(
        file=summary.file,
        label=trace.label,
        kind=trace.kind,
        unit=times.unit,
        step_time_ps=times.step_ps,
        layers=layers,
        rerun_calls_per_step=summary.remat.rerun_calls_per_step,
        rerun_time_ps_per_step=summary.remat.rerun_time_ps_per_step,
        fraction=summary.remat.fraction,
        static_peak_bytes=summary.memory.static_peak_bytes,
        static_allocated_bytes=summary.memory.static_allocated_bytes,
        capacity_bytes=summary.memory.capacity_bytes,
        ops=_rows(table, layers, times.step_ps),
        collectives=_collectives(table, needed_anyway, known=bool(options)),
        options=tuple(options),
        kept=tuple(kept),
        warnings=tuple(dict.fromkeys((*summary.warnings, *_notes(measured, options, kept, programs)))),
    )


# --- what runs again -------------------------------------------------------------------------------------------------


def _rows(table: pl.DataFrame, layers: float | None, step_ps: float) -> tuple[RerunRow, ...]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in table.iter_rows(named=True):
        groups[scope_of(row["name_stack"] or row["near_stack"]), row["family"]].append(row)
    rows = []
    for (scope, family), members in groups.items():
        calls, time = (sum(each[key] for each in members) for key in ("calls", "time_ps"))
        largest = sorted(members, key=lambda each: -each["time_ps"])
        rows.append(
            RerunRow(
                scope=scope or None,
                family=family,
                calls_per_step=calls,
                calls_per_layer=calls / layers if layers else None,
                time_ps_per_step=time,
                fraction=time / step_ps if step_ps else 0.0,
                ops=tuple(dict.fromkeys(each["op"] for each in largest)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.time_ps_per_step, row.scope or "~", row.family)))


def _collectives(
    table: pl.DataFrame, needed_anyway: Collection[tuple[str | None, str]], *, known: bool
) -> tuple[RerunCollective, ...]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in table.filter(pl.col("family").is_in(list(_COLLECTIVES))).iter_rows(named=True):
        groups[row["family"], scope_of(row["name_stack"] or row["near_stack"])].append(row)
    rows = [
        RerunCollective(
            family=family,
            scope=scope or None,
            calls_per_step=sum(each["calls"] for each in members),
            exposed_time_ps_per_step=sum(each["time_ps"] for each in members),
            needed_by_backward=any((each["program_id"], each["op"]) in needed_anyway for each in members)
            if known
            else None,
        )
        for (family, scope), members in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_time_ps_per_step, row.family, row.scope or "~")))


def _anyway(flow: Flow, here: Mapping[str, Any]) -> frozenset[str]:
    """Re-run ops whose value the backward pass uses itself, not only through other re-run computation."""
    computed = {name for name in flow.rerun if name in here and not _is_collective(flow.members[name])}
    direct = flow.needed_without(frozenset(computed))
    return frozenset(inner for name in direct for inner in flow.inside(name))


def _is_collective(instruction: Instruction) -> bool:
    return any(word in instruction.name for word in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all"))


def _notes(
    measured: Measured, options: list[KeepOption], kept: list[KeptTensor], without_hlo: set[str | None]
) -> list[Note]:
    if not measured.summary.remat.rerun_calls_per_step and not measured.summary.remat.rerun_time_ps_per_step:
        named = any(measured.trace.ops["name_stack"].is_not_null())
        if not named:
            return [Note("no_name_stacks", "no op has a name stack: what runs again cannot be told")]
        return [Note("no_reruns", "nothing runs again: rematerialisation is off, or keeps everything")]
    if without_hlo:
        return [Note("no_programs", "the HLO program is missing: what keeping a tensor would save cannot be told")]
    if not options:
        return [Note("no_tensors", "no re-run op makes a tensor with a name of MaxText's vocabulary")]
    seen = {row.tensor for row in options} | {row.tensor for row in kept}
    absent = [name for name in VOCABULARY if name not in seen]
    if not absent:
        return []
    why = "kept, not in the model, or not to be recognised"
    return [Note("tensors_not_seen", f"{', '.join(absent)}: no re-run op makes it ({why}); cost and saving are n/a")]
