"""Where memory belongs: from an instruction's name stack, or an argument's path, to a part of the step and a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from profiler.analysis import namestack
from profiler.hlo import HloModule
from profiler.hlo.module import Instruction

# Arguments of the step by the start of their path, see distill.step.
_ARGUMENTS = (
    ("state.params", "student parameters"),
    ("state.opt_state", "optimizer state"),
    ("state", "state"),
    ("teacher", "teacher parameters"),
    ("batch", "batch"),
)
_KEY = re.compile(r"\['?([^'\]]+)'?\]|\.(\w+)")
_PROGRAM = namestack.ProgramFacts(named=True, differentiated=True, teacher=True, student=True)
# Scopes that say how something is computed, not what.
_IDLE = namestack.PLUMBING | {
    "vmap", "layers", "train_step", "pallas_call", "teacher", "student", "dynamic_update_index_in_dim",
    "dynamic_index_in_dim", "eval_jaxpr",
}  # fmt: skip
# Instructions that hand a value on, if they have no name stack of their own; the first ones in any case.
_LAYOUT = frozenset({"bitcast", "copy", "copy-start", "copy-done", "get-tuple-element", "parameter"})
_HANDED_ON = _LAYOUT | {"reshape", "transpose", "convert", "broadcast"}
_MOST_STEPS = 12
_LAYER_INPUT = "decoder_layer_input"


@dataclass(frozen=True)
class Place:
    """Where a buffer belongs.

    Attributes:
        part: "student parameters", "teacher parameters", "optimizer state" or "batch"; "saved for backward" and
            "gradients" for what a loop over layers stacks up; else the phase that computes it: "student forward",
            "re-run", …; "" if unknown.
        tensor: model scopes, innermost last, or the parameter's path: ``moe_block/moe_wi_0``; "" if unknown.
        certainty: to choose among instructions that share one buffer, 0 for nothing known.
    """

    part: str
    tensor: str
    certainty: int


NOWHERE = Place("", "", 0)


class Namer:
    """Places of the instructions of one module."""

    def __init__(self, module: HloModule):
        self._module = module

    def place(self, instruction: Instruction) -> Place:
        """Where the output of an instruction belongs."""
        source = self._source(instruction)
        known = _argument(source) or self._kept(source)
        if known is not None:  # or a copy of it: in another memory, or laid out anew
            return known if source is instruction else replace(known, part=f"copy of {known.part}", certainty=1)
        stack = _stack(source)
        phase = namestack.phase_of(stack, source.name, _PROGRAM) if stack.leaf else None
        if source.opcode in ("while", "tuple", "constant") or phase is None:
            return NOWHERE
        tensor = _tensor(source)
        return Place(phase, tensor or stack.leaf, 3 if tensor else 2)

    def _kept(self, instruction: Instruction) -> Place | None:
        """The place of what a loop over layers stacks up; None if it is nothing of the kind."""
        if "/while/body" not in instruction.op_name or not instruction.op_name.endswith("dynamic_update_slice"):
            return None
        backward = "transpose(" in instruction.op_name
        own = instruction.proto.shape.dimensions
        parts = (each for each in self._operands(instruction) if len(each.proto.shape.dimensions) > 0)
        written = next((each for each in parts if each.proto.shape.dimensions != own), None)
        source = self._source(written, through_loops=False) if written is not None else instruction
        carried = source.opcode == "get-tuple-element" and not backward  # what one layer hands to the next
        tensor = _LAYER_INPUT if carried else _tensor(source)
        return Place("gradients" if backward else "saved for backward", tensor, 8)

    def _source(self, instruction: Instruction, *, through_loops: bool = True) -> Instruction:
        """What an instruction without a name of its own only hands on, moves or lays out anew."""
        for _ in range(_MOST_STEPS):
            silent = instruction.opcode in _LAYOUT or "/" not in instruction.op_name
            if instruction.opcode not in _HANDED_ON or not silent:
                break
            before = self._before(instruction, through_loops)
            if before is None:
                break
            instruction = before
        return instruction

    def _before(self, instruction: Instruction, through_loops: bool) -> Instruction | None:
        """Where the value of an instruction comes from, out of fusions and loops as well."""
        operands = self._operands(instruction)
        if instruction.opcode == "parameter":
            caller = self._callers.get(instruction.computation)
            number = instruction.proto.parameter_number
            given = self._operands(caller) if caller is not None and caller.opcode != "while" else []
            return given[number] if number < len(given) else None
        if instruction.opcode == "get-tuple-element" and operands and operands[0].opcode in ("parameter", "while"):
            index, elements = instruction.proto.tuple_index, self._elements(operands[0]) if through_loops else []
            return elements[index] if index < len(elements) else None
        return operands[0] if operands else None

    def _elements(self, state: Instruction) -> list[Instruction]:
        """Where the elements of a loop's state come from: of its body's parameter, and of the loop's result."""
        if state.opcode == "while":
            body = self._module.computations.get(state.called[0]) if state.called else None
            made = body.root if body is not None else None
        else:
            loop = self._callers.get(state.computation)
            initial = self._operands(loop) if loop is not None and loop.opcode == "while" else []
            made = initial[0] if initial else None
        return self._operands(made) if made is not None and made.opcode == "tuple" else []

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        table = self._module.instructions
        return [table[name] for name in instruction.operands if name in table]

    @cached_property
    def _callers(self) -> dict[str, Instruction]:
        """The instruction that calls a computation; of several the last."""
        return {name: each for each in self._module.instructions.values() for name in each.called}


def _argument(instruction: Instruction) -> Place | None:
    """The place of an argument of the step, whose name stack is its path; None for everything else."""
    path = instruction.op_name
    if instruction.opcode != "parameter" or "/" in path:
        return None
    for start, part in _ARGUMENTS:
        if path.startswith(start):
            keys = [quoted or plain for quoted, plain in _KEY.findall(path.removeprefix(start))]
            return Place(part, "/".join(key for key in keys if not key.isdigit()) or path, 9)
    return None


def _stack(instruction: Instruction) -> namestack.Stack:
    """The name stack of an instruction; where it has none, that of the last instruction fused into it."""
    own = instruction.op_name
    inside = next((text for text in reversed(instruction.fused_op_names) if "/" in text), "")
    return namestack.parse(own if "/" in own else inside)


def _tensor(instruction: Instruction) -> str:
    """The model's scopes around an instruction or what is fused into it, with the kernel's name where it has one."""
    for text in (instruction.op_name, *reversed(instruction.fused_op_names)):
        cores = (segment.core.removeprefix("_") for segment in namestack.parse(text).segments[:-1])
        scopes = dict.fromkeys(core for core in cores if core and core not in _IDLE and "->" not in core)
        if scopes:
            return "/".join(scopes)
    return ""
