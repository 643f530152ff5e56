"""Rematerialisation: what runs again in the backward pass, and what keeping a tensor would cost and save.

Names of tensors are MaxText's: ``context`` is what attention gives, ``query_proj``, ``key_proj`` and ``value_proj``
what it takes, ``moe_mlpwi_0`` … what the experts' matmuls give.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from profiler.analysis import kernelcalls, namestack
from profiler.analysis.kernelnames import kernel_family
from profiler.analysis.places import Namer
from profiler.analysis.rerunflow import RERUN, Flow, flows
from profiler.hlo import HloModule, Instruction, shapes
from profiler.results import Note
from profiler.results_efficiency import KeepOption, KeptTensor, RematReport, RerunCollective, RerunRow
from profiler.runinfo import fact

if TYPE_CHECKING:
    from profiler.analysis.summary import Measured

EVERYTHING = "all of these"
VOCABULARY = (
    "context", "query_proj", "key_proj", "value_proj", "out_proj", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo",
)  # fmt: skip
_PLUMBING = namestack.PLUMBING | {"eval_jaxpr", "vmap", "layers", "student", "teacher", "pallas_call"}
_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective (other)")
_ATTENTION_TAKES = ("query_proj", "key_proj", "value_proj")
# Scope of a re-run matmul → the tensor that it makes; the first match counts, on the scope's innermost names.
_MATMULS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(?:^|/)(?:moe\w*|experts?|mlp)/(?:.*/)?(?:moe_)?(?:mlp)?wi_?([01])(?:/|$)", "moe_mlpwi_{}"),
        (r"(?:^|/)moe_(?:mlp)?wi_?([01])(?:/|$)", "moe_mlpwi_{}"),
        (r"(?:^|/)moe\w*/(?:.*/)?(?:moe_)?(?:mlp)?wo(?:/|$)", "moe_mlpwo"),
        (r"(?:^|/)(?:mlp)?wi_?([01])(?:/|$)", "mlpwi_{}"),
        (r"(?:^|/)(?:mlp)?wi(?:/|$)", "mlpwi"),
        (r"(?:^|/)(?:mlp)?wo(?:/|$)", "mlpwo"),
        (r"(?:^|/)(?:out_proj|o_proj|out)(?:/|$)", "out_proj"),
    )
)  # fmt: skip
_MATMUL_FAMILIES = frozenset({"dense matmul", "quantized matmul", "gmm forward", "gmm dlhs"})
_HOST_SPACE = 5


@dataclass
class _Tensor:
    """One tensor of the layers: the ops that make it, by flow, and its bytes."""

    ops: list[tuple[Flow, str]] = field(default_factory=list)
    shape: str | None = None
    bytes_per_layer: int | None = None
    layers: float | None = None
    bytes: float | None = 0.0
    note: str | None = None


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
        options += _options(found, here, {op: families[program, op] for op in here}, times.step_ps, layers)
        kept += _kept(module)
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
        capacity_bytes=summary.memory.capacity_bytes,
        ops=_rows(table, layers, times.step_ps),
        collectives=_collectives(table, needed_anyway, known=bool(options)),
        options=tuple(options),
        kept=tuple(kept),
        warnings=tuple(dict.fromkeys((*summary.warnings, *_notes(measured, options, programs)))),
    )


# --- what runs again -------------------------------------------------------------------------------------------------


def scope_of(name_stack: str | None) -> str:
    """The model's scopes around an op, outermost first: ``self_attention/query_proj``."""
    stack = namestack.parse(name_stack or "")
    names = [
        each.core.strip("_")
        for each in stack.segments[:-1]
        if each.core and not {"jit", "vmap", "jvp", "transpose"} & each.wrappers and each.core not in _PLUMBING
    ]
    kernels = ("splash", "gmm", "tgmm")
    return "/".join(dict.fromkeys(n for n in names if "->" not in n and kernel_family(n) not in kernels))


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


# --- what keeping would change ---------------------------------------------------------------------------------------


def _options(
    found: list[Flow],
    here: Mapping[str, tuple[float, float]],
    families: Mapping[str, str],
    step_ps: float,
    layers: float | None,
) -> list[KeepOption]:
    tensors: dict[str, _Tensor] = {}
    for flow in found:
        for name, op, array_bytes, shape, note in _tensors(flow, here, families):
            tensor = tensors.setdefault(name, _Tensor())
            runs = flow.module.executions(op) or layers
            tensor.ops.append((flow, op))
            tensor.shape, tensor.bytes_per_layer, tensor.note = shape, array_bytes, note
            tensor.layers = (tensor.layers or 0.0) + runs if runs else None
            known = array_bytes is not None and runs is not None and tensor.bytes is not None
            tensor.bytes = tensor.bytes + array_bytes * runs if known else None  # type: ignore[operator]
    rows = [_option(name, tensor, here, families, step_ps) for name, tensor in tensors.items()]
    rows.sort(key=lambda row: (-row.saved_time_ps_per_step, row.tensor))
    if len(rows) > 1:
        everything = _Tensor(ops=[each for tensor in tensors.values() for each in tensor.ops])
        sizes = [tensor.bytes for tensor in tensors.values()]
        everything.bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        rows.append(_option(EVERYTHING, everything, here, families, step_ps))
    return rows


def _option(
    name: str,
    tensor: _Tensor,
    here: Mapping[str, tuple[float, float]],
    families: Mapping[str, str],
    step_ps: float,
) -> KeepOption:
    gone: set[str] = set()
    still: set[str] = set()
    for flow in dict.fromkeys(flow for flow, _ in tensor.ops):
        ops = [op for owner, op in tensor.ops if owner is flow]
        vanishing = flow.vanishing(ops)
        gone |= {inner for op in vanishing for inner in flow.inside(op) if inner in here}
        # What makes the tensor, and is needed for something else as well.
        feeding = (flow.upstream(ops) | set(ops)) & flow.needed
        still |= {inner for op in feeding - vanishing for inner in flow.inside(op) if inner in here}
    saved = sum(here[op][0] for op in gone)
    largest = sorted(still - gone, key=lambda op: -here[op][0])
    return KeepOption(
        tensor=name,
        ops=tuple(dict.fromkeys(op for _, op in tensor.ops)),
        shape=tensor.shape,
        layers=tensor.layers,
        bytes_per_layer=tensor.bytes_per_layer,
        bytes=tensor.bytes,
        saved_time_ps_per_step=saved,
        saved_calls_per_step=sum(here[op][1] for op in gone),
        saved_fraction=saved / step_ps if step_ps else 0.0,
        still_time_ps_per_step=sum(here[op][0] for op in still - gone),
        still_families=tuple(dict.fromkeys(families[op] for op in largest)),
        note=tensor.note,
    )


def _tensors(
    flow: Flow, here: Mapping[str, Any], families: Mapping[str, str]
) -> Iterable[tuple[str, str, int | None, str | None, str | None]]:
    """(tensor, op that makes it, bytes per execution, shape, note) of what runs again and has a name."""
    attention = [name for name in flow.members if _is_splash(flow.members[name])]
    for name in attention:
        if name in flow.rerun and name in here:
            yield ("context", name, *_context(flow.members[name]))
    seen: set[tuple[str, str]] = set()
    for name in attention:
        for tensor, operand in zip(_ATTENTION_TAKES, _values(flow, name), strict=False):
            source = flow.source(operand)
            made_again = flow.rerun & {source} | flow.upstream([source])
            if made_again & flow.needed and (tensor, source) not in seen:
                seen.add((tensor, source))
                yield (tensor, source, *_array(flow.members[source]))
    for name in sorted(flow.rerun & set(here)):
        if families.get(name) not in _MATMUL_FAMILIES or name not in flow.needed:
            continue
        made = _matmul_tensor(scope_of(flow.members[name].op_name or _inside_name(flow.members[name])))
        if made:
            yield (made, name, *_array(flow.members[name]))


def _inside_name(instruction: Instruction) -> str:
    return next(iter(instruction.fused_op_names), "")


def _matmul_tensor(scope: str) -> str | None:
    matches = ((pattern.search(scope), name) for pattern, name in _MATMULS)
    return next((name.format(*match.groups()) for match, name in matches if match), None)


def _is_splash(instruction: Instruction) -> bool:
    return (
        instruction.opcode == "custom-call"
        and "splash" in f"{instruction.name}/{instruction.op_name}".lower()
        and (instruction.custom_call_target == "tpu_custom_call")
    )


def _values(flow: Flow, name: str) -> list[str]:
    """q, k and v of an attention kernel: its first three operands of values."""
    call = kernelcalls.of_instruction(flow.members[name])
    operands = zip(flow.members[name].operands, call.operands, strict=False)
    return [operand for operand, array in operands if not array.is_integer and len(array.dims) >= 3][:3]


def _context(instruction: Instruction) -> tuple[int | None, str | None, str | None]:
    """What attention gives, with the log-sum-exp that its backward pass needs beside it: one f32 per query and head."""
    shape = instruction.proto.shape
    output = shape.tuple_shapes[0] if shape.tuple_shapes else shape
    size, rows = shapes.size_bytes(output), math.prod(output.dimensions[:-1])
    total = size + 4 * rows if size is not None else None
    return total, shapes.text(output).partition("{")[0], "with the log-sum-exp, f32 per query and head"


def _array(instruction: Instruction) -> tuple[int | None, str | None, str | None]:
    """Bytes and shape of a value; of a fusion with several results the largest, which the note says."""
    shape = instruction.proto.shape
    parts = [(size, part) for part in shape.tuple_shapes or [shape] if (size := shapes.size_bytes(part)) is not None]
    size, part = max(parts, key=lambda each: each[0], default=(None, None))
    note = "the largest of the results that one fusion makes" if len(shape.tuple_shapes) > 1 else None
    return size, None if part is None else shapes.text(part).partition("{")[0], note


# --- what is kept now ------------------------------------------------------------------------------------------------


def _kept(module: HloModule) -> list[KeptTensor]:
    """What the loops over layers stack up for the backward pass, one row per tensor and memory."""
    namer = Namer(module)
    found: dict[tuple[str, str, bool], int] = {}
    for computation in module.computations.values():
        if computation.is_fusion:
            continue
        for each in computation.instructions:
            if "dynamic-update-slice" not in each.fused_opcodes | {each.opcode} or each.proto.shape.tuple_shapes:
                continue
            place = namer.place(each)
            if place.part == "saved for backward":
                host = each.proto.shape.layout.memory_space == _HOST_SPACE
                key = place.tensor or "?", shapes.text(each.proto.shape).partition("{")[0], host
                found[key] = found.get(key, 0) + (shapes.size_bytes(each.proto.shape) or 0)
    rows = [
        KeptTensor(tensor, shape, size, "host" if host else "device") for (tensor, shape, host), size in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.tensor))


def _notes(measured: Measured, options: list[KeepOption], without_hlo: set[str | None]) -> list[Note]:
    if not measured.summary.remat.rerun_calls_per_step and not measured.summary.remat.rerun_time_ps_per_step:
        named = any(measured.trace.ops["name_stack"].is_not_null())
        if not named:
            return [Note("no_name_stacks", "no op has a name stack: what runs again cannot be told")]
        return [Note("no_reruns", "nothing runs again: rematerialisation is off, or keeps everything")]
    if without_hlo:
        return [Note("no_programs", "the HLO program is missing: what keeping a tensor would save cannot be told")]
    if not options:
        return [Note("no_tensors", "no re-run op makes a tensor with a name of MaxText's vocabulary")]
    absent = [name for name in VOCABULARY if name not in {row.tensor for row in options}]
    if not absent:
        return []
    why = "kept already, not in the model, or not to be recognised"
    return [Note("tensors_not_seen", f"{', '.join(absent)}: no re-run op makes it ({why}); cost and saving are n/a")]
