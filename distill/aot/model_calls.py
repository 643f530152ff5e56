"""Pallas calls of a compiled program in the terms of the kernel model: shapes, tiles, and blocks really executed."""

from __future__ import annotations

import math
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

from distill.aot.model import GroupedMatmul, Splash, causal_blocks
from distill.aot.model_body import body_of
from profiler.analysis.kernelnames import kernel_family
from profiler.hlo import HloModule, Instruction, shapes
from profiler.hlo.schema import ELEMENT_TYPES
from profiler.xplane.schema import BYTES, build_messages

_SETTING = re.compile(r'\\*"(block_q|block_kv|block_kv_compute|q_layout)(_dkv|_dkv_compute)?\\*": (\d+)')
_PARTIAL, _WHOLE = 1, 2  # tokamax's block mask; 0 is an empty block
_INTEGERS = frozenset({"s8", "s32", "u8", "u32"})
_CARRIERS = frozenset({"parameter", "while", "tuple", "opt-barrier"})
_MOST_SOURCES = 500  # instructions behind a mask that are looked at
_MAX_HOPS = 16  # loops and copies between a kernel and the constant that it gets


def describe(instruction: Instruction) -> GroupedMatmul | Splash | None:
    """The call behind a Pallas custom call; None for kernels that the model does not know or cannot read."""
    family = kernel_family(_kernel_name(instruction))
    if family in ("gmm", "tgmm"):
        return _grouped_matmul(instruction, family)
    if family == "splash":
        return _splash(instruction)
    return None


def tiles_of(module: HloModule) -> dict[int, dict[str, int]]:
    """Instruction id → tiles of its kernel; of attention, how many blocks run and out of how many."""
    return {
        each.proto.id: _tiles(call)
        for each in module.instructions.values()
        if each.opcode == "custom-call" and (call := describe(each)) is not None
    }


def _tiles(call: GroupedMatmul | Splash) -> dict[str, int]:
    if isinstance(call, GroupedMatmul):
        return {"tm": call.tm, "tk": call.tk, "tn": call.tn, "groups": call.groups}
    blocks = call.block_q, call.block_kv
    along, across = blocks if call.direction == "forward" else reversed(blocks)
    return {
        "block_q": call.block_q,
        "block_kv": call.block_kv,
        "block_kv_compute": call.block_kv_compute,
        "executed_blocks": call.full + call.partial,
        "blocks": call.rows * (call.rows * along // across),
    }


def _kernel_name(instruction: Instruction) -> str:
    """The innermost scope of the name stack that names a kernel, else the instruction's name.

    In a program that is only lowered the function around the call is the outermost scope.
    """
    scopes = (*reversed(instruction.op_name.split("/")), instruction.computation)
    return next((scope for scope in scopes if kernel_family(scope)), instruction.name)


def _grouped_matmul(instruction: Instruction, family: str) -> GroupedMatmul | None:
    """Megablox: one prefetched group table, then rows, matrices (or rows again), and the output."""
    body = body_of(instruction.backend_config)
    arrays = [o.shape for o in instruction.operand_protos if len(o.shape.dimensions) >= 2]
    if body is None or len(body.grid) != 3 or len(body.windows) != 3 or len(arrays) != 2:
        return None
    lhs, rhs, out = body.windows
    result, item_bytes = instruction.proto.shape, _item_bytes(arrays[0])
    if family == "tgmm":  # grid: n tiles, k tiles, visits
        (tm, tk), tn = lhs[-2:], out[-1]
        n_tiles, k_tiles, groups = body.grid[0], body.grid[1], result.dimensions[0]
    else:  # grid: n tiles, visits, k tiles
        (tm, tk), tn = lhs[-2:], out[-1]
        n_tiles, k_tiles, groups = body.grid[0], body.grid[2], arrays[1].dimensions[0]
        if tuple(rhs[-2:]) != (tk, tn) or _is_transposed(arrays[1], result):
            family = "gmm transposed"
    if n_tiles is None or k_tiles is None or tm <= 0:
        return None
    rows = _rows(arrays, family)
    return GroupedMatmul(family, rows, k_tiles * tk, n_tiles * tn, tm, tk, tn, groups, item_bytes)


def _is_transposed(matrices: Any, result: Any) -> bool:
    """Whether matrices [E, a, b] are used as [b, a]: the output has a columns, and not b."""
    rows, columns = matrices.dimensions[-2:]
    return bool(result.dimensions[-1] == rows != columns)


def _rows(arrays: list[Any], family: str) -> int:
    """m. tgmm's wrapper turns its transposed left side back before the kernel, so both kernels see rows first."""
    left, right = arrays
    return int(right.dimensions[0] if family == "tgmm" else left.dimensions[0])


def _splash(instruction: Instruction) -> Splash | None:
    """Splash attention: queries, keys and values [batch, heads, T, D] behind the prefetched scalars; a batch of one
    has no axis."""
    arrays = [
        each.shape
        for each in instruction.operand_protos
        if len(each.shape.dimensions) in (3, 4) and _type(each.shape) not in _INTEGERS
    ]
    if len(arrays) < 3:
        return None
    backward = "dkv" in _kernel_name(instruction)
    shape = _settings(instruction, backward) or _from_windows(instruction, arrays)
    if shape is None:
        return None
    block_q, block_kv, block_kv_compute, layout = shape
    *heads, first, second = arrays[0].dimensions
    length, width = (first, second) if layout == 1 else (second, first)
    whole, cut, empty = _executed(instruction, length, block_q, block_kv)
    return Splash(
        direction="backward" if backward else "forward",
        heads=math.prod(heads),
        block_q=block_q,
        block_kv=block_kv,
        block_kv_compute=block_kv_compute,
        head_dim=width,
        layout=layout,
        full=whole,
        partial=cut,
        rows=math.ceil(length / (block_kv if backward else block_q)),
        skipped=empty,
    )


def _settings(instruction: Instruction, backward: bool) -> tuple[int, int, int, int] | None:
    """Blocks (q, kv, kv compute) and q's layout as tokamax notes them beside the call; None without a note."""
    found = {
        f"{match[1]}{match[2] or ''}": int(match[3])
        for match in _SETTING.finditer(" ".join(instruction.frontend_attributes.values()))
    }
    suffix = "_dkv" if backward else ""
    keys = f"block_q{suffix}", f"block_kv{suffix}", f"block_kv{suffix}_compute"
    if not all(found.get(key) for key in keys):
        return None
    return found[keys[0]], found[keys[1]], found[keys[2]], found.get("q_layout", 1)


def _from_windows(instruction: Instruction, arrays: list[Any]) -> tuple[int, int, int, int] | None:
    """The same from the kernel's own blocks of queries and keys, which do not tell the compute block."""
    body = body_of(instruction.backend_config)
    if body is None or len(body.windows) < 2 or min(map(len, body.windows[:2])) < 2:
        return None
    (a, b), (A, B) = body.windows[0][-2:], arrays[0].dimensions[-2:]
    # A block spans the head's width, and of the sequence a part; a sequence is no shorter than a head is wide.
    layout = 1 if b == B and A >= B else 2
    block_q, width = (a, B) if layout == 1 else (b, A)
    c, d = body.windows[1][-2:]
    block_kv = c if arrays[1].dimensions[-1] == width else d
    return block_q, block_kv, block_kv, layout


def _executed(instruction: Instruction, length: int, block_q: int, block_kv: int) -> tuple[int, int, int]:
    """Blocks per head (whole, cut, skipped): from the mask that the program holds, else by how many blocks it lists.

    The list of a forward pass has the blocks that run only. Fewer than a causal mask has are taken for those of a
    sliding window: a band along the diagonal, whose outermost blocks are cut.
    """
    module = instruction.module
    prefetched = []
    for name in instruction.operands:
        operand = module.instructions.get(name)
        if operand is None or len(operand.proto.shape.dimensions) > 1 or _type(operand.proto.shape) not in _INTEGERS:
            break
        prefetched.append(operand)
    whole, cut = causal_blocks(length, block_q, block_kv)
    listed = (shapes.elements(prefetched[-1].proto.shape) or 0) if prefetched else 0
    mask = _block_mask(module, prefetched[-1], listed) if prefetched else None
    if mask:
        return mask.count(_WHOLE), mask.count(_PARTIAL), len(mask) - mask.count(_WHOLE) - mask.count(_PARTIAL)
    if block_q == block_kv and 0 < listed < whole + cut:
        return *_band(length // block_q, listed), 0
    return whole, cut, 0


def _band(rows: int, blocks: int) -> tuple[int, int]:
    """(whole, cut) of the blocks of a band below the diagonal of ``rows`` × ``rows``."""
    diagonals: list[int] = []
    while sum(diagonals) < blocks and len(diagonals) < rows:
        diagonals.append(min(rows - len(diagonals), blocks - sum(diagonals)))
    whole = sum(diagonals[1:-1])
    return whole, blocks - whole


def _block_mask(module: HloModule, start: Instruction, count: int) -> bytes | None:
    """The block mask of ``count`` blocks behind an operand: a constant of 0, 1 and 2; None where none is found.

    tokamax sorts the mask's blocks in the program, so that the constant lies behind fusions, sorts and loops.
    """
    pending, seen = [start], set[Instruction]()
    while pending and len(seen) < _MOST_SOURCES:
        instruction = pending.pop(0)
        if instruction in seen:
            continue
        seen.add(instruction)
        operands = [module.instructions[name] for name in instruction.operands if name in module.instructions]
        if instruction.opcode == "constant":
            literal = _literal().LiteralProto()
            literal.ParseFromString(instruction.proto.literal)
            values = bytes(literal.s8s)
            if len(values) == count and set(values) <= {0, _PARTIAL, _WHOLE}:
                return values
        elif instruction.opcode == "get-tuple-element" and operands and operands[0].opcode in _CARRIERS:
            found = _element(module, operands[0], instruction.proto.tuple_index)
            pending += [found] if found is not None else []
        else:
            pending += operands
    return None


def _element(module: HloModule, source: Instruction, index: int) -> Instruction | None:
    """What element ``index`` of a tuple is: of a tuple instruction, or of what a loop is given first."""
    for _ in range(_MAX_HOPS):
        operands = [module.instructions[name] for name in source.operands if name in module.instructions]
        if source.opcode == "tuple":
            return operands[index] if index < len(operands) else None
        if source.opcode == "parameter":
            loop = _loops(module).get(source.computation)
            if loop is None:
                return None
            source = loop
        elif source.opcode in ("while", "opt-barrier") and operands:
            source = operands[0]
        else:
            return None
    return None


@cache
def _loops(module: HloModule) -> dict[str, Instruction]:
    """Body → the loop that runs it."""
    return {
        name: each
        for computation in module.computations.values()
        for each in computation.instructions
        if each.opcode == "while"
        for name in each.called[:1]
    }


@cache
def _literal() -> SimpleNamespace:
    """xla.LiteralProto as far as 8-bit integers go (xla/xla_data.proto)."""
    return build_messages("distill.literal", {"LiteralProto": {"s8s": (15, BYTES)}})


def _type(shape: Any) -> str:
    return ELEMENT_TYPES.get(shape.element_type, ("", 0))[0]


def _item_bytes(shape: Any) -> int:
    return max(1, ELEMENT_TYPES.get(shape.element_type, ("", 8))[1] // 8)
