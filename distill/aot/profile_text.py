"""Ops of a compiled profile as a TPU recording describes them: HLO text, category and the stats of their metadata."""

from __future__ import annotations

import re

from distill.aot.profile_program import portable
from distill.aot.timing import payload
from distill.aot.timing_traffic import traffic
from profiler.analysis.opfacts import ELEMENTWISE
from profiler.hlo import Instruction, shapes
from profiler.xplane.write import Ref, Stat

_LONGEST_SHAPE = 160  # characters; a loop's tuple has hundreds of parts
_MOST_OPERANDS = 12
_FUSIONS = {
    "kLoop": "loop fusion",
    "kInput": "input fusion",
    "kOutput": "output fusion",
    "kCustom": "custom fusion",
}
_FORMATTING = frozenset({"copy", "transpose", "reshape", "bitcast", "bitcast-convert"})
_BYSTANDERS = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "fusion", "bitcast"})


def hlo_text(instruction: Instruction) -> str:
    """``%name = shape opcode(shape %operand, …), attributes``, cut where it gets long."""
    module, proto = instruction.module, instruction.proto
    operands = [
        f"{_short(shapes.text(each.shape))} %{module.name_of(each)}"
        for each in instruction.operand_protos[:_MOST_OPERANDS]
    ]
    if len(proto.operand_ids) > _MOST_OPERANDS:
        operands.append("…")
    head = f"%{instruction.name} = {_short(instruction.shape)} {instruction.opcode}({', '.join(operands)})"
    return ", ".join([head, *_attributes(instruction)])


def category(instruction: Instruction) -> str:
    """``hlo_category`` as XLA names it (HloInstruction::ToCategory, and the TPU compiler for its fusions)."""
    opcode, inside = instruction.opcode, instruction.fused_opcodes
    if opcode == "fusion":
        if inside & {"dot", "convolution"}:
            return "convolution fusion"
        if inside and inside <= _FORMATTING | _BYSTANDERS and inside & _FORMATTING - {"bitcast"}:
            return "data formatting"
        return _FUSIONS.get(instruction.fusion_kind, "fusion")
    if opcode in ("copy", "transpose", "reshape"):
        return "data formatting"
    return "non-fusion elementwise" if opcode in ELEMENTWISE else opcode


def stats(instruction: Instruction, program_id: int, symbol_id: int, source: str) -> dict[str, Stat]:
    """Stats of the op's metadata; ``source`` is the key of its estimate (distill.aot.timing.SOURCES)."""
    flops = _count(instruction.flops)
    cost = instruction.cost_estimate
    moved = _count(cost.bytes_accessed) if cost and cost.bytes_accessed is not None else _moved(instruction)
    found: dict[str, Stat] = {
        "hlo_category": Ref(category(instruction)),
        "flops": flops,
        "model_flops": flops,
        "bytes_accessed": moved,
        "raw_bytes_accessed": moved,
        "shape_with_layout": _short(instruction.shape),
        "program_id": program_id,
        "symbol_id": symbol_id,
        "estimate_source": Ref(source),
    }
    op_name = instruction.op_name or payload(instruction).op_name
    if op_name:
        found["tf_op"] = Ref(op_name + ":")
    if instruction.source:
        found["source"] = Ref(portable(instruction.source))
    return found


def _moved(instruction: Instruction) -> int:
    """Bytes of an op that moves something itself: 0 for containers, and for done ops, whose start has them."""
    if instruction.opcode in ("while", "conditional", "call") or instruction.opcode.endswith("-done"):
        return 0
    return traffic(payload(instruction)).total


def _attributes(instruction: Instruction) -> list[str]:
    called, opcode = instruction.called, instruction.opcode
    if opcode == "fusion":
        return [f"kind={instruction.fusion_kind}", *(f"calls=%{name}" for name in called)]
    if opcode == "while" and len(called) == 2:
        return [f"condition=%{called[1]}", f"body=%{called[0]}"]
    if opcode == "custom-call":
        return [f'custom_call_target="{instruction.custom_call_target}"']
    if opcode == "dot":
        numbers = instruction.proto.dot_dimension_numbers
        return [
            f"{side}_{kind}_dims={{{','.join(map(str, dims))}}}"
            for side, kind, dims in (
                ("lhs", "batch", numbers.lhs_batch_dimensions),
                ("lhs", "contracting", numbers.lhs_contracting_dimensions),
                ("rhs", "batch", numbers.rhs_batch_dimensions),
                ("rhs", "contracting", numbers.rhs_contracting_dimensions),
            )
            if dims
        ]
    return [f"calls=%{name}" for name in called[:1]] if opcode.startswith("async-") else []


def _short(shape: str) -> str:
    """A shape, of long tuples the first parts."""
    if len(shape) <= _LONGEST_SHAPE:
        return shape
    return re.sub(r",? ?[^ ]*$", "", shape[:_LONGEST_SHAPE]) + ", …)"


def _count(value: float | None) -> int:
    """XLA writes 0 where it does not know."""
    return int(value) if value is not None and 0 <= value < 2**62 else 0
