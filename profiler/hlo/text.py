"""The HLO text of an instruction, written out of its program in XLA's own notation.

Attributes that the profiler does not read are left out; large constants and kernels are not spelled out. The operands
of the instruction itself stand with their shapes, as TPU recordings have them; in bodies each stands above anyway.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from typing import Any

from profiler.hlo import shapes
from profiler.hlo.attributes import attributes, backend_config, clean, metadata
from profiler.hlo.module import Computation, HloModule, Instruction
from profiler.hlo.schema import ELEMENT_TYPES, hlo

MOST_LINES = 150  # of bodies, and
MOST_LETTERS = 24_000  # of them, and of any line: what a person still reads
MOST_OPERANDS = 64
MOST_ELEMENTS = 10  # of a constant; XLA elides larger ones too
# Bodies of these are programs of their own, with rows of their own in every table.
_CONTAINERS = frozenset({"while", "conditional"})
_LAYOUT = re.compile(r"\{[^{}]*\}")
_EXACT = {"f32": ("f", 6, 9), "f64": ("d", 15, 17)}  # struct code, digits that always fit, digits that tell all apart


def line(instruction: Instruction, *, operand_shapes: bool) -> str:
    """``%name = shape opcode(operands), attributes``."""
    head = f"%{clean(instruction.name)} = {instruction.shape} {clean(instruction.opcode)}"
    return ", ".join([f"{head}({_operands(instruction, operand_shapes)})", *attributes(instruction)])


def bounded(text: str) -> str:
    """A line of at most MOST_LETTERS, with a comment in place of what is left out (the tuple of a loop's state)."""
    left_out = len(text) - MOST_LETTERS
    return text if left_out <= 0 else f"{text[:MOST_LETTERS]} /* … {left_out:,} letters more */"


def notes(instruction: Instruction) -> list[str]:
    """What stands behind it on the line: ``metadata={…}``, ``backend_config=…``."""
    return [each for each in (metadata(instruction), backend_config(instruction)) if each]


def bodies(instruction: Instruction) -> str:
    """The computations that an instruction calls, those nested in them below; "" where it calls none.

    After MOST_LINES or MOST_LETTERS, a comment says how many instructions are left out.
    """
    if instruction.opcode in _CONTAINERS:
        return ""
    module = instruction.module
    blocks, left_out, lines, letters = [], 0, 0, 0
    for computation in _reached(module, instruction):
        written = []
        for member in computation.instructions:
            if lines >= MOST_LINES or letters >= MOST_LETTERS:
                left_out += 1
                continue
            text = ("ROOT " if member is computation.root else "") + line(member, operand_shapes=False)
            written.append(f"  {bounded(text)}")
            lines, letters = lines + 1, letters + len(text)
        if written:
            cut = "" if len(written) == len(computation.instructions) else "\n  // …"
            blocks.append(f"{_header(computation)} {{\n" + "\n".join(written) + cut + "\n}")
    if left_out:
        blocks.append(f"// {left_out:,} more instructions")
    return "\n\n".join(blocks)


def _reached(module: HloModule, instruction: Instruction) -> list[Computation]:
    """The computations that an instruction calls, then those that their instructions call, each once."""
    found: list[Computation] = []
    pending, seen = list(instruction.called), set(instruction.called)
    while pending:
        computation = module.computations.get(pending.pop(0))
        if computation is None:
            continue
        found.append(computation)
        for member in computation.instructions:
            if member.opcode in _CONTAINERS:
                continue
            new = [name for name in member.called if name not in seen]
            pending += new
            seen.update(new)
    return found


def _header(computation: Computation) -> str:
    """``%name (param_0: f32[8]) -> f32[8]``."""
    parameters = [each for each in computation.instructions if each.opcode == "parameter"]
    parameters.sort(key=lambda each: each.proto.parameter_number)
    listed = ", ".join(f"{clean(each.name)}: {_LAYOUT.sub('', each.shape)}" for each in parameters[:MOST_OPERANDS])
    if len(parameters) > MOST_OPERANDS:
        listed += f", /* {len(parameters) - MOST_OPERANDS:,} more */"
    result = _LAYOUT.sub("", computation.root.shape) if computation.root else "()"
    return f"%{clean(computation.name)} ({listed}) -> {result}"


def _operands(instruction: Instruction, with_shapes: bool) -> str:
    proto = instruction.proto
    if instruction.opcode == "parameter":
        return str(proto.parameter_number)
    if instruction.opcode == "constant":
        return constant(proto)
    protos = instruction.operand_protos
    module = instruction.module
    texts = [
        (f"{shapes.text(each.shape)} " if with_shapes else "") + f"%{clean(module.name_of(each))}"
        for each in protos[:MOST_OPERANDS]
    ]
    more = [f"/* {len(protos) - MOST_OPERANDS:,} more */"] if len(protos) > MOST_OPERANDS else []
    return ", ".join(texts + more)


def constant(proto: Any) -> str:
    """The value of a small constant, ``{...}`` of any other."""
    shape = proto.shape
    count = shapes.elements(shape)
    if count is None or count > MOST_ELEMENTS or len(shape.dimensions) > 1:
        return "{...}"
    try:
        values = _values(
            ELEMENT_TYPES.get(shape.element_type, ("", 0))[0], hlo().LiteralProto.FromString(proto.literal)
        )
    except Exception:  # protobuf's DecodeError differs between versions
        return "{...}"
    if len(values) != count:
        return "{...}"
    return f"{{{', '.join(values)}}}" if shape.dimensions else values[0]


def _values(kind: str, literal: Any) -> Sequence[str]:
    """The elements of a literal as HLO text prints them."""
    if kind == "pred":
        return ["true" if value else "false" for value in literal.preds]
    if kind in ("s32", "s64", "u32", "u64"):
        return [str(value) for value in getattr(literal, f"{kind}s")]
    if kind in ("s8", "u8"):
        return [str(value - 256 if kind == "s8" and value > 127 else value) for value in getattr(literal, f"{kind}s")]
    if kind in _EXACT:
        return [_shortest(value, *_EXACT[kind]) for value in getattr(literal, f"{kind}s")]
    if kind == "f16":
        data = literal.f16s
        return [f"{value:.5g}" for (value,) in struct.iter_unpack("<e", data[: len(data) // 2 * 2])]
    if kind == "bf16":
        data = b"".join(b"\0\0" + literal.bf16s[at : at + 2] for at in range(0, len(literal.bf16s) // 2 * 2, 2))
        return [f"{value:.4g}" for (value,) in struct.iter_unpack("<f", data)]
    return []


def _shortest(value: float, code: str, few: int, all_of_them: int) -> str:
    """A number with few digits where these say it exactly, else with as many as its type may need."""
    short = f"{value:.{few}g}"
    if not math.isfinite(value) or struct.pack(code, float(short)) == struct.pack(code, value):
        return short
    return f"{value:.{all_of_them}g}"
