"""Bytes that an instruction moves, by memory, with slices of large arrays counted as slices.

A loop over layers holds all layers' weights in one array and slices it in a fusion. Counting that operand in full, as
``Instruction.bytes_accessed`` does, would charge every layer for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from profiler.hlo import Computation, Instruction, shapes
from profiler.hlo.schema import TUPLE

HBM, VMEM, HOST = 0, 1, 5  # memory spaces of TPU layouts
_READERS = frozenset({"dynamic-slice", "slice", "gather"})
_RENAMES = frozenset({"bitcast", "get-tuple-element"})


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read and written per execution."""

    hbm: int = 0
    vmem: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """In all memories."""
        return self.hbm + self.vmem + self.host

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.hbm + other.hbm, self.vmem + other.vmem, self.host + other.host)


def traffic(instruction: Instruction) -> Traffic:
    """Operands once and outputs once; what a fusion reads or overwrites in part counts that part."""
    parts: list[Traffic]
    if instruction.opcode == "fusion" and instruction.called:
        body = instruction.module.computations[instruction.called[0]]
        parts = [_fused(body, instruction)]
    elif instruction.opcode in _READERS:
        parts = [size(instruction.proto.shape), _like(instruction.proto.shape, instruction.operand_protos[0].shape)]
    elif instruction.opcode == "dynamic-update-slice":
        update = instruction.operand_protos[1].shape
        parts = [size(update), _like(update, instruction.proto.shape)]
    else:
        parts = [size(proto.shape) for proto in (instruction.proto, *instruction.operand_protos)]
    return _sum(parts)


def size(shape: Any) -> Traffic:
    """The bytes of a shape, by the memory it lies in."""
    return _sum(_like(leaf, leaf) for leaf in leaves(shape))


def leaves(shape: Any) -> Iterator[Any]:
    """The arrays of a shape."""
    if shape.element_type == TUPLE:
        for part in shape.tuple_shapes:
            yield from leaves(part)
    else:
        yield shape


def _like(shape: Any, place: Any) -> Traffic:
    """The bytes of an array in the memory where another one lies."""
    count = shapes.size_bytes(shape) or 0
    match place.layout.memory_space:
        case 0:
            return Traffic(hbm=count)
        case 1:
            return Traffic(vmem=count)
        case 5:
            return Traffic(host=count)
    return Traffic()  # scalars and semaphores


def _fused(body: Computation, fusion: Instruction) -> Traffic:
    users: dict[str, list[Instruction]] = {}
    for each in body.instructions:
        for operand in each.operands:
            users.setdefault(operand, []).append(each)
    operands = fusion.operand_protos
    parts = []
    for each in body.instructions:
        number = each.proto.parameter_number
        if each.opcode == "parameter" and number < len(operands):
            parts.append(_read(each, operands[number].shape, users))
    parts += _written(body, fusion)
    return _sum(parts)


def _read(parameter: Instruction, place: Any, users: dict[str, list[Instruction]]) -> Traffic:
    """What of an operand a fusion reads."""
    readers = list(_through_renames(parameter, users))
    read = 0
    for reader, source in readers:
        if reader.opcode in _READERS and reader.operands[0] == source:
            read += shapes.size_bytes(reader.proto.shape) or 0
        elif not (reader.opcode == "dynamic-update-slice" and reader.operands[0] == source):
            return size(place)
    whole = size(place)
    return _scaled(whole, min(read, whole.total)) if readers else Traffic()


def _through_renames(start: Instruction, users: dict[str, list[Instruction]]) -> Iterator[tuple[Instruction, str]]:
    """The instructions that use a value, each with the name under which it does, bitcasts passed through."""
    for user in users.get(start.name, ()):
        if user.opcode in _RENAMES:
            yield from _through_renames(user, users)
        else:
            yield user, start.name


def _written(body: Computation, fusion: Instruction) -> Iterator[Traffic]:
    """What of its outputs a fusion writes: of an array that it updates in place, the update."""
    table = fusion.module.instructions
    root = body.root
    roots = [table[name] for name in root.operands if name in table] if root and root.opcode == "tuple" else [root]
    for each, place in zip(roots, leaves(fusion.proto.shape), strict=False):
        while each is not None and each.opcode in _RENAMES and each.operands:
            each = table[each.operands[0]]
        if each is not None and each.opcode == "dynamic-update-slice" and len(each.operand_protos) > 1:
            yield _like(each.operand_protos[1].shape, place)
        else:
            yield size(place)


def _scaled(whole: Traffic, total: int) -> Traffic:
    """``total`` bytes, in the memory of ``whole``, which lies in one."""
    return Traffic(hbm=total if whole.hbm else 0, vmem=total if whole.vmem else 0, host=total if whole.host else 0)


def _sum(parts: Iterable[Traffic]) -> Traffic:
    return sum(parts, Traffic())
