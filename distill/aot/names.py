"""Where memory belongs: from an instruction's name stack, or an argument's path, to a part of the step and a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiler.analysis import namestack
from profiler.hlo.module import Instruction

_KEY = re.compile(r"\['?([^'\]]+)'?\]|\.(\w+)")
# Arguments of the step by the start of their path, see distill.step.
_ARGUMENTS = (
    ("state.params", "student parameters"),
    ("state.opt_state", "optimizer state"),
    ("state", "state"),
    ("teacher", "teacher parameters"),
    ("batch", "batch"),
)
_PROGRAM = namestack.ProgramFacts(named=True, differentiated=True, teacher=True, student=True)
# Scopes that say how something is computed, not what.
_IDLE = namestack.PLUMBING | {"vmap", "layers", "train_step", "pallas_call", "teacher", "student"}

_LAYOUT = frozenset({"bitcast", "copy", "copy-start", "copy-done", "get-tuple-element"})
_HANDED_ON = _LAYOUT | {"reshape", "transpose", "convert", "broadcast"}
_MOST_STEPS = 8


@dataclass(frozen=True)
class Place:
    """Where a buffer belongs.

    Attributes:
        part: "student parameters", "teacher parameters", "optimizer state", "batch", or the phase that computes it:
            "student forward", "re-run", …; "saved for backward" for what a scan keeps of every layer.
        tensor: model scopes, innermost last, or the parameter's path: ``moe_block/moe_wi_0``; "" if unknown.
        detail: how much is known, to choose among instructions that share one buffer.
    """

    part: str
    tensor: str
    detail: int


def place(instruction: Instruction) -> Place:
    """Where the output of an instruction belongs."""
    op_name = instruction.op_name
    if instruction.opcode == "parameter" and "/" not in op_name:
        for start, part in _ARGUMENTS:
            if op_name.startswith(start):
                keys = [a or b for a, b in _KEY.findall(op_name.removeprefix(start))]
                return Place(part, "/".join(key for key in keys if not key.isdigit()) or op_name, 9)
    stored = _stored(instruction)
    if stored is not None:
        loop_input = stored.opcode in ("parameter", "get-tuple-element")
        return Place("saved for backward", "decoder_layer_input" if loop_input else _tensor(stored.op_name), 8)
    source = _source(instruction)
    if source.opcode in ("parameter", "get-tuple-element", "while", "tuple") or "/" not in source.op_name:
        return Place("", "", 0)
    stack = namestack.parse(source.op_name)
    tensor = _tensor(source.op_name)
    phase = namestack.phase_of(stack, source.name, _PROGRAM)
    return Place(phase or "", tensor or stack.leaf, 2 + bool(tensor) if phase else 1)


def _tensor(op_name: str) -> str:
    """The model's scopes of a name stack; the kernel's name where it has one."""
    scopes: list[str] = []
    for segment in namestack.parse(op_name).segments[:-1]:
        core = segment.core.removeprefix("_")
        if core and core not in _IDLE and "->" not in core and core not in scopes:
            scopes.append(core)
    return "/".join(scopes)


def _stored(instruction: Instruction) -> Instruction | None:
    """What a scan's dynamic-update-slice writes into the array of all layers; None if it is something else."""
    body_of_scan = "dynamic_update_slice" in instruction.op_name and "/while/body" in instruction.op_name
    if not body_of_scan or "transpose(" in instruction.op_name:
        return None
    own, empty = instruction.shape, not instruction.proto.shape.dimensions
    written = [each for each in _operands(instruction) if each.shape != own and each.proto.shape.dimensions]
    return None if empty or not written else _source(written[0])


def _source(instruction: Instruction) -> Instruction:
    """What an instruction without a name of its own only hands on or lays out anew."""
    for _ in range(_MOST_STEPS):
        operands = _operands(instruction)
        moves = instruction.opcode in _HANDED_ON and (instruction.opcode in _LAYOUT or "/" not in instruction.op_name)
        if (
            not moves
            or not operands
            or (instruction.opcode == "get-tuple-element" and operands[0].opcode == "parameter")
        ):
            break
        instruction = operands[0]
    return instruction


def _operands(instruction: Instruction) -> list[Instruction]:
    table = instruction.module.instructions
    return [table[name] for name in instruction.operands if name in table]
