"""Trip counts of while loops.

CPU and GPU compilers note ``known_trip_count`` in the loop's backend config. The TPU compiler does not: there the count
follows from the condition ``counter < limit``, the counter's start and its step. The start matters: host offload
peels an iteration off a scanned loop, whose limit alone would count one too many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiler.hlo.schema import hlo

if TYPE_CHECKING:
    from profiler.hlo.module import Computation, Instruction

_KNOWN = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d{1,18})"?')
# Ops through which a scalar passes unchanged.
_TRANSPARENT = frozenset({"copy", "bitcast", "convert", "reshape", "broadcast", "copy-done", "copy-start"})
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}
# Longer chains than this do not occur; damaged files may hold cycles.
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Element:
    """Element ``index`` of the loop's tuple, plus ``offset``."""

    index: int
    offset: int = 0


_Value = int | _Element | None


def trip_count(loop: Instruction) -> float | None:
    """Iterations of a ``while`` instruction; None where they depend on data or cannot be read."""
    known = _KNOWN.search(loop.backend_config)
    if known:
        return float(known[1])
    module = loop.module
    body, condition = (module.computations[name] for name in loop.called)
    direction, counter, bound = _comparison(condition)
    if not isinstance(counter, _Element) or _unchanged(body, counter):  # written the other way round: limit > counter
        direction, counter, bound = _MIRRORED.get(direction, ""), bound, counter
    if direction not in _MIRRORED or not isinstance(counter, _Element):
        return None
    limit = _start(loop, bound) if isinstance(bound, _Element) and _unchanged(body, bound) else bound
    after = _next(body, counter.index)
    start = _start(loop, counter)
    if not isinstance(after, _Element) or after.index != counter.index or start is None or not isinstance(limit, int):
        return None
    return _iterations(start, limit, after.offset, direction)


def _iterations(start: int, limit: int, step: int, direction: str) -> float | None:
    """Iterations of ``for (i = start; i direction limit; i += step)``; None if it would not end."""
    if direction in ("LE", "GE"):
        limit, direction = (limit + 1, "LT") if direction == "LE" else (limit - 1, "GT")
    distance = limit - start
    if direction == "NE":
        ends = step and distance % step == 0 and distance // step >= 0
        return float(distance // step) if ends else None
    if direction == "GT":
        distance, step = -distance, -step
    if distance <= 0:
        return 0.0
    return float(-(-distance // step)) if step > 0 else None


def _comparison(condition: Computation) -> tuple[str, _Value, _Value]:
    """(direction, left, right) of a condition ``left direction right``, through a fusion if need be."""
    root, arguments = condition.root, None
    if root is not None and root.opcode == "fusion" and root.called:
        arguments = [_value(i, None) for i in _operands(root)]
        root = root.module.computations[root.called[0]].root
    sides = [_value(i, arguments) for i in _operands(root)] if root is not None and root.opcode == "compare" else []
    if root is None or len(sides) != 2:
        return "", None, None
    return root.proto.comparison_direction.decode("ascii", "replace"), sides[0], sides[1]


def _next(body: Computation, index: int) -> _Value:
    """What element ``index`` of the loop's tuple becomes in one iteration."""
    root = body.root
    if root is None or root.opcode != "tuple":
        return None
    operands = _operands(root)
    return _value(operands[index], None) if 0 <= index < len(operands) else None


def _unchanged(body: Computation, element: _Element) -> bool:
    """Whether the loop hands an element on as it was."""
    return _next(body, element.index) == _Element(element.index)


def _start(loop: Instruction, element: _Element) -> int | None:
    """The value of an element before the first iteration, where it is a constant."""
    operands = _operands(loop)
    if len(operands) != 1 or operands[0].opcode != "tuple":
        return None
    initial = _operands(operands[0])
    value = _value(initial[element.index], None) if 0 <= element.index < len(initial) else None
    return value + element.offset if isinstance(value, int) else None


def _value(instruction: Instruction, arguments: list[_Value] | None, steps: int = _MAX_STEPS) -> _Value:
    """A scalar as a constant, or as a loop element plus a constant.

    Args:
        instruction: what to evaluate.
        arguments: values of the parameters inside a fusion; None outside, where the parameter is the loop's tuple.
        steps: how many more instructions may be visited.
    """
    opcode, operands = instruction.opcode, _operands(instruction)
    if steps <= 0:
        return None
    if opcode == "constant":
        return _constant(instruction.proto.literal)
    if opcode == "parameter" and arguments is not None:
        number = instruction.proto.parameter_number
        return arguments[number] if 0 <= number < len(arguments) else None
    if opcode == "get-tuple-element" and operands and operands[0].opcode == "parameter" and arguments is None:
        return _Element(instruction.proto.tuple_index)
    if opcode in _TRANSPARENT and len(operands) == 1:
        return _value(operands[0], arguments, steps - 1)
    if opcode in ("add", "subtract") and len(operands) == 2:
        left, right = (_value(i, arguments, steps // 2) for i in operands)
        return _sum(left, right, -1 if opcode == "subtract" else 1)
    if opcode == "fusion" and instruction.called and instruction.called[0] in instruction.module.computations:
        inner = instruction.module.computations[instruction.called[0]].root
        given = [_value(i, arguments, steps // 2) for i in operands[:2]]
        return _value(inner, given, steps // 2) if inner is not None and len(operands) <= 2 else None
    return None


def _sum(left: _Value, right: _Value, sign: int) -> _Value:
    """left + sign × right, where that is again a constant or an element plus a constant."""
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    if isinstance(left, _Element) and isinstance(right, int):
        return _Element(left.index, left.offset + sign * right)
    if isinstance(left, int) and isinstance(right, _Element) and sign == 1:
        return _Element(right.index, right.offset + left)
    return None


def _operands(instruction: Instruction) -> list[Instruction]:
    table = instruction.module.instructions
    return [table[name] for name in instruction.operands if name in table]


def _constant(literal: bytes) -> int | None:
    """The value of a scalar integer literal."""
    message: Any = hlo().LiteralProto()
    try:
        message.ParseFromString(literal)
    except Exception:  # protobuf's DecodeError; its class differs between protobuf implementations
        return None
    for values in (message.s32s, message.s64s, message.u32s, message.u64s):
        if len(values) == 1:
            return int(values[0])
    return None
