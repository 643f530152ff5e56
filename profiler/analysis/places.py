"""Where memory belongs: from an instruction's name stack, or an argument's path, to a part of the step and a tensor."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import dropwhile

from profiler.analysis import namestack
from profiler.hlo import HloModule
from profiler.hlo.module import Instruction

# What an argument is, by the first key of its path that says so: state.opt_state[0].mu['layers'] is optimizer state.
_ARGUMENTS = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("optimizer state", r"opt(im(izer)?)?(_?states?)?$|optimizer$|mu$|nu$|momentum$|exp_avg(_sq)?$"),
        ("parameters", r"((model|student|teacher|ema)_)?(params?|parameters|weights?)(_.*)?$"),
        ("inputs", r"batch(es)?$|(inputs?|tokens?|targets?|labels?|images?|data)(_ids)?$|segment_ids$|positions$"),
    )
)
_TEACHER = re.compile(r"(.*_)?teacher(_.*)?$")
_CONTAINER = re.compile(r"(.*_)?(params|parameters|states?|teacher|student|batch|model|optimizer|opt|weights)$")
_KEY = re.compile(r"\['?([^'\]]+)'?\]|\.?(\w+)")
_LAYERS = re.compile(r"((?:\w+_)?(?:layers|blocks)|layer|block)(?:_?\d+)?$")
# Scopes that say how something is computed, not what.
_IDLE = namestack.PLUMBING | {
    "vmap", "layers", "train_step", "pallas_call", "teacher", "student", "dynamic_update_index_in_dim",
    "dynamic_index_in_dim", "eval_jaxpr", "main",
}  # fmt: skip
# Instructions that hand a value on, if they have no name stack of their own; the first ones in any case.
_LAYOUT = frozenset({"bitcast", "copy", "copy-start", "copy-done", "get-tuple-element", "parameter"})
_HANDED_ON = _LAYOUT | {"reshape", "transpose", "convert", "broadcast"}
_SILENT = _HANDED_ON | {"tuple", "opt-barrier", "async-start", "async-update", "async-done"}
_MOST_STEPS = 12
_MOST_USERS = 4  # silent instructions between a value and who uses it
_LAYER_INPUT = "decoder_layer_input"


@dataclass(frozen=True)
class Place:
    """Where a buffer belongs.

    Attributes:
        part: "parameters" ("student …", "teacher …" where there are two models), "optimizer state", "inputs" or
            "arguments" for what the program is given; "saved for backward" and "gradients" for what a loop over layers
            stacks up; else the phase that computes it: "forward", "re-run", …; "" if unknown. A teacher's stack is the
            teacher's, who has no backward pass.
        tensor: model scopes, innermost last, or the parameter's path: ``moe_block/moe_wi_0``; "" if unknown.
        certainty: to choose among instructions that share one buffer, 0 for nothing known.
        stack: the stack of layers it lies in: "layers", "teacher layers"; "" for what lies in none, or is unknown.
    """

    part: str
    tensor: str
    certainty: int
    stack: str = ""


NOWHERE = Place("", "", 0)


class Namer:
    """Places of the instructions of one module; ``distillation`` if it is known to hold a teacher."""

    def __init__(self, module: HloModule, *, distillation: bool = False):
        self._module = module
        self._program = namestack.ProgramFacts.of(module.op_names, distillation=distillation)
        entry = module.computations.get(module.entry)
        paths = [each.op_name for each in entry.instructions if each.opcode == "parameter"] if entry else []
        taught = any(_TEACHER.match(key) for path in paths for key in _keys(path))
        self._two_models = taught or self._program.two_models

    def place(self, instruction: Instruction, index: Sequence[int] = ()) -> Place:
        """Where the output of an instruction belongs, or the part of it that ``index`` leads to."""
        source = self._source(self._made(instruction, index))
        known = self._argument(source) or self._kept(source)
        if known is not None:  # or a copy of it: in another memory, or laid out anew
            return known if source is instruction else replace(known, part=f"copy of {known.part}", certainty=1)
        phase = self.phase(source)
        if source.opcode in ("while", "tuple", "constant") or phase is None:
            return NOWHERE
        tensor, stack = _tensor(source), _stack(source)
        return Place(phase, tensor or stack.leaf, 3 if tensor else 2, self._layers(stack))

    def phase(self, instruction: Instruction) -> str | None:
        """The phase that an instruction runs in; None if nothing says."""
        stack = _stack(instruction)
        return namestack.phase_of(stack, instruction.name, self._program) if stack.leaf else None

    def user_phases(self, instruction: Instruction) -> frozenset[str]:
        """The phases of the instructions that use a value, through what only hands it on."""
        found: set[str] = set()
        level, seen = [instruction], {instruction}
        for _ in range(_MOST_USERS):
            users = [user for each in level for user in self._users.get(each.name, ()) if user not in seen]
            seen.update(users)
            level = [user for user in users if user.opcode in _SILENT and "/" not in user.op_name]
            found.update(phase for user in users if (phase := self.phase(user)) is not None)
        return frozenset(found)

    def readers_after_loop(self, instruction: Instruction) -> list[Instruction]:
        """Who uses, once a loop is over, what an instruction of its body hands on, through what only moves it."""
        body = self._module.computations.get(instruction.computation)
        loop = self._callers.get(instruction.computation)
        if body is None or body.root is None or loop is None or loop.opcode != "while":
            return []
        at = {index for index, operand in enumerate(body.root.operands) if operand == instruction.name}
        level = [each for each in self._users.get(loop.name, ()) if each.proto.tuple_index in at]
        found: list[Instruction] = []
        for _ in range(_MOST_STEPS):
            users = {user.name: user for each in level for user in self._users.get(each.name, ())}
            found += [user for user in users.values() if user.opcode not in _SILENT]
            level = [user for user in users.values() if user.opcode in _SILENT]
        return found

    def caller(self, instruction: Instruction) -> Instruction | None:
        """The asynchronous op that an instruction is the inside of; None for any other."""
        caller = self._callers.get(instruction.computation)
        return caller if caller is not None and caller.opcode.startswith("async-") else None

    def _made(self, instruction: Instruction, index: Sequence[int]) -> Instruction:
        """What makes a value: of an op inside an asynchronous one this one, of a nameless fusion its root."""
        outer = self.caller(instruction) if instruction.opcode != "parameter" else None
        if outer is not None:
            return outer
        body = self._module.computations.get(instruction.called[0]) if instruction.called else None
        if instruction.opcode != "fusion" or "/" in instruction.op_name or body is None or body.root is None:
            return instruction
        parts = self._operands(body.root) if body.root.opcode == "tuple" else []
        made = parts[index[0]] if index and index[0] < len(parts) else body.root
        return made if made.opcode in _HANDED_ON and "/" not in made.op_name else instruction

    def _argument(self, instruction: Instruction) -> Place | None:
        """The place of an argument of the program, whose name stack is its path; None for everything else."""
        if instruction.opcode != "parameter" or instruction.computation != self._module.entry:
            return None
        keys = _keys(instruction.op_name)
        named = [key for key in keys if not key.isdigit()]
        teacher = any(_TEACHER.match(key) for key in named)
        part, at = next(
            ((part, i) for part, known in _ARGUMENTS for i, key in enumerate(named) if known.match(key.lower())),
            ("parameters" if teacher else "arguments", 0),
        )
        if part == "parameters" and self._two_models:
            part = "teacher parameters" if teacher else "student parameters"
        rest = list(dropwhile(_CONTAINER.match, named[at:]))
        return Place(part, "/".join(rest) or instruction.op_name or instruction.name, 9, self._stacked(named, teacher))

    def _layers(self, stack: namestack.Stack) -> str:
        cores = [segment.core for segment in stack.segments]
        return self._stacked(cores, "teacher" in stack.roles or self._outside(stack))

    def _outside(self, stack: namestack.Stack) -> bool:
        """Whether a stack is the teacher's in a distillation that no scope marks."""
        return namestack.phase_of(stack, "", self._program) == "teacher"

    def _stacked(self, names: Iterable[str], teacher: bool) -> str:
        """The innermost name of a stack of layers, and whose it is where there are two models."""
        layers = [found[1] for name in names if (found := _LAYERS.match(name)) and not name.startswith("moe_block")]
        whose = ("teacher " if teacher else "student ") if self._two_models else ""
        return f"{whose}{layers[-1]}" if layers else ""

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
        layers = self._layers(namestack.parse(instruction.op_name)) or "layers"
        if not backward and self.phase(instruction) == "teacher":  # which has no backward pass: these are its results
            return Place("teacher", tensor, 8, layers)
        return Place("gradients" if backward else "saved for backward", tensor, 8, layers)

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

    @cached_property
    def _users(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = defaultdict(list)
        for each in self._module.instructions.values():
            for name in dict.fromkeys(each.operands):
                found[name].append(each)
        return found


def _keys(path: str) -> list[str]:
    """The keys of an argument's path: ``state.params['layers'][0]`` → state, params, layers, 0."""
    return [] if path.startswith(("jit(", "pjit(")) else [quoted or plain for quoted, plain in _KEY.findall(path)]


def _stack(instruction: Instruction) -> namestack.Stack:
    """The name stack of an instruction; where it has none, that of the last instruction fused into it."""
    own = instruction.op_name
    inside = next((text for text in reversed(instruction.fused_op_names) if "/" in text), "")
    return namestack.parse(own if "/" in own else inside)


def _tensor(instruction: Instruction) -> str:
    """The model's scopes around an instruction or what is fused into it, with the kernel's name where it has one."""
    for text in (instruction.op_name, *reversed(instruction.fused_op_names)):
        cores = (segment.core.removeprefix("_") for segment in namestack.parse(text).segments[1:-1])
        scopes = dict.fromkeys(core for core in cores if core and core not in _IDLE and "->" not in core)
        if scopes:
            return "/".join(scopes)
    return ""
