"""What keeping a tensor for the backward pass would cost and save, and what is kept now.

Names of tensors are MaxText's: ``context`` is what attention gives, ``query_proj``, ``key_proj`` and ``value_proj``
what it takes, ``moe_mlpwi_0`` … what the experts' matmuls give.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from profiler.analysis import kernelcalls, namestack
from profiler.analysis.kernelnames import kernel_family
from profiler.analysis.places import Namer
from profiler.analysis.rerunflow import Flow
from profiler.hlo import HloModule, Instruction, shapes
from profiler.results_efficiency import KeepOption, KeptTensor
from profiler.runinfo import flat

EVERYTHING = "all of these"
VOCABULARY = (
    "context", "query_proj", "key_proj", "value_proj", "out_proj", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo",
)  # fmt: skip
_PLUMBING = namestack.PLUMBING | {"eval_jaxpr", "vmap", "layers", "student", "teacher", "pallas_call"}
_ATTENTION_TAKES = ("query_proj", "key_proj", "value_proj")
# Scope of a re-run matmul → the tensor that it makes; the first match counts, on the scope's innermost names.
_MATMULS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(?:^|/)(?:moe\w*|experts?)/(?:.*/)?(?:moe_)?(?:mlp)?wi_?([01])(?:/|$)", "moe_mlpwi_{}"),
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
_FORWARD = frozenset({"forward", "student forward", "teacher", "loss"})


@dataclass
class _Tensor:
    """One tensor of the layers: the ops that make it, by flow, and its bytes."""

    ops: list[tuple[Flow, str]] = field(default_factory=list)
    shape: str | None = None
    bytes_per_layer: int | None = None
    layers: float | None = None
    bytes: float | None = 0.0
    note: str | None = None


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


def keep_options(
    found: list[Flow],
    here: Mapping[str, tuple[float, float]],
    families: Mapping[str, str],
    step_ps: float,
    layers: float | None,
) -> list[KeepOption]:
    """What keeping each tensor that runs again would change, most time saved first; then all of them together.

    Args:
        found: the layers' backward passes.
        here: (exclusive time, calls) per step of the re-run ops.
        families: of the same ops.
        step_ps: the step.
        layers: of the model, where the program does not say how often an op runs.
    """
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


def kept_tensors(module: HloModule, run_info: Mapping[str, Any] | None) -> list[KeptTensor]:
    """What the loops over layers stack up for the backward pass, one row per tensor and memory.

    Left out are stacks that no backward pass of the layers reads: a teacher's, and a student's features for the loss;
    and the entry computation: an iteration that was peeled off a loop writes into the same stack.
    """
    namer = Namer(module)
    found: dict[tuple[str, str, str], int] = {}
    for computation in module.computations.values():
        if computation.is_fusion or computation.name == module.entry:
            continue
        for each in computation.instructions:
            shape = each.proto.shape
            if not _stacks(each) or shape.tuple_shapes:
                continue
            text, size = shapes.text(shape).partition("{")[0], shapes.size_bytes(shape) or 0
            if shape.layout.memory_space == _HOST_SPACE:
                found[_offloaded(run_info), text, "host"] = size
                continue
            place = namer.place(each)
            if place.part == "saved for backward" and not _only_read_forward(namer, each):
                tensor = "context" if "splash" in place.tensor else place.tensor or "not known"
                key = tensor, text, "device"
                found[key] = found.get(key, 0) + size
    rows = [KeptTensor(tensor, shape, size, memory) for (tensor, shape, memory), size in found.items()]
    return sorted(rows, key=lambda row: (-row.bytes, row.tensor))


def _only_read_forward(namer: Namer, instruction: Instruction) -> bool:
    """Whether all that reads a stack runs before the backward pass; no other loop may take it, nor add to it."""
    readers = namer.readers_after_loop(instruction)
    return bool(readers) and all(
        namer.phase(each) in _FORWARD and each.opcode != "while" and not _stacks(each) for each in readers
    )


def _stacks(instruction: Instruction) -> bool:
    """Whether an instruction writes one layer's part of a stack; where that is asynchronous, its done counts."""
    if instruction.opcode == "async-done":
        return instruction.name.startswith("dynamic-update-slice")
    return "dynamic-update-slice" in instruction.fused_opcodes | {instruction.opcode}


def _offloaded(run_info: Mapping[str, Any] | None) -> str:
    """The tensor that the configuration offloads, where it is one."""
    names = [key for key, value in flat((run_info or {}).get("config")).items() if value == "offload"]
    return names[0] if len(names) == 1 else "offloaded"
