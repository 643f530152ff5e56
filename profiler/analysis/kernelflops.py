"""FLOPs of one custom call, with where they come from. Unknown is None, never 0.

A kernel's own cost estimate is taken as it is, but for splash attention: tokamax's forward estimate counts the whole
square of queries and keys whatever the mask leaves out, so that a causal kernel would seem to run near the peak. There
FLOPs are those of the blocks that run: matmuls × 2 · batch · heads · Tq · Tkv · D × blocks run / blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiler.analysis.kernelcalls import BLOCKS, Array, Call

# Where FLOPs come from: codes for programs, and what they mean.
SOURCES = {
    "estimate": "the kernel's own cost estimate",
    "shapes": "2·m·k·n from the shapes",
    "blocks": "the blocks that run, from the mask's block list",
    "full": "the whole square: the call has no mask",
    "causal": "half of the square: a causal mask is assumed, since nothing says which blocks run",
    "compiler": "the compiler's count",
}
# Matmuls over the square of queries and keys: q·k and p·v forward; backward recomputes q·k.
_SPLASH_MATMULS = {
    "splash forward": 2,
    "splash backward (dq)": 3,
    "splash backward (dkv)": 4,
    "splash backward (fused)": 5,
}
MOST_FLOPS = 2.0**62  # of one call; more is damage
_WHOLE = 0.999  # an estimate of at least this share of the square knows nothing of a mask


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs of one execution, None if unknown, and a key of SOURCES; ``shape`` is the work in words."""

    flops: float | None
    source: str | None
    shape: str | None = None


UNKNOWN = Work(None, None)


def work_of(call: Call | None, family: str, estimate: float | None, counted: float | None) -> Work:
    """The work of a call.

    Args:
        call: what the program states; None if nothing of it is known.
        family: of the op.
        estimate: the kernel's cost estimate in FLOPs.
        counted: what the compiler counted; an estimate may be in it.
    """
    found = _from_shapes(call, family, estimate) if call is not None else UNKNOWN
    if family in _SPLASH_MATMULS and _is_work(found.flops):
        return found
    for flops, source in ((estimate, "estimate"), (found.flops, found.source), (counted, "compiler")):
        if _is_work(flops):
            return Work(flops, source, found.shape)
    return Work(None, None, found.shape)


def _is_work(flops: float | None) -> bool:
    """Whether a count can be: a damaged program holds any number."""
    return flops is not None and 0 < flops < MOST_FLOPS


def _from_shapes(call: Call, family: str, estimate: float | None) -> Work:
    try:
        if family in _SPLASH_MATMULS:
            return _splash(call, family, estimate)
        if family in ("gmm forward", "gmm dlhs", "tgmm"):
            return _grouped_matmul(call)
        return _matmul(call) if family in ("quantized matmul", "dense matmul") else UNKNOWN
    except OverflowError:  # dimensions that no float holds
        return UNKNOWN


def _splash(call: Call, family: str, estimate: float | None) -> Work:
    arrays = [each for each in call.values if len(each.dims) >= 3][:3]
    if len(arrays) < 3:
        return UNKNOWN
    q, k, v = arrays
    layouts = call.tiles(family)
    (queries, width), (keys, _), (_, value_width) = (
        _rows(array, str(layouts.get(f"{name}_layout", ""))) for name, array in (("q", q), ("k", k), ("v", v))
    )
    heads = math.prod(q.dims[:-2])
    count = _SPLASH_MATMULS[family]
    over_values = {2: 1, 3: 1, 4: 2, 5: 2}[count]  # p·v, dp, dv are as wide as the values
    square = 2.0 * heads * queries * keys * ((count - over_values) * width + over_values * value_width)
    batch = f"{q.dims[0]} × {q.dims[-3]}" if len(q.dims) > 3 else str(q.dims[0])
    length = str(queries) if queries == keys else f"{queries} → {keys}"
    shape = f"{batch} heads, T {length}, D {width}" + (f"/{value_width}" if value_width != width else "")
    executed = _blocks(call, family, queries, keys)
    if executed:
        return Work(square * executed[0] / executed[1], "blocks", f"{shape}, {executed[0]} of {executed[1]} blocks")
    if estimate and square and estimate < _WHOLE * square:
        return Work(estimate, "estimate", shape)
    if not any(each.is_integer and each.size > 1 and not {queries, keys} & set(each.dims) for each in call.operands):
        return Work(square, "full", shape)
    return Work(square / 2, "causal", shape)


def _rows(array: Array, layout: str) -> tuple[int, int]:
    """(sequence, head dimension). Without a noted layout the sequence is the longer of the two."""
    last = array.dims[-2:]
    if layout == "HEAD_DIM_MINOR":
        return last[0], last[1]
    if layout == "SEQ_MINOR":
        return last[1], last[0]
    return max(last), min(last)


def _blocks(call: Call, family: str, queries: int, keys: int) -> tuple[int, int] | None:
    """(blocks that run, all blocks), where the list of blocks in front of the operands is shorter than all."""
    run, every = (call.facts.get(key) for key in BLOCKS)
    if isinstance(run, int) and isinstance(every, int) and 0 < run <= every:
        return run, every
    tiles = call.tiles(family)
    block_q, block_kv = tiles.get("block_q"), tiles.get("block_kv")
    if not isinstance(block_q, int) or not isinstance(block_kv, int) or block_q <= 0 or block_kv <= 0:
        return None
    total = math.ceil(queries / block_q) * math.ceil(keys / block_kv)
    lists = [each.size for each in call.operands if each.is_integer and len(each.dims) == 1 and each.size > 1]
    listed = lists[0] if len(lists) > 1 and lists[0] == lists[1] else 0  # active rows and active columns
    return (listed, total) if 0 < listed < total else None


def _grouped_matmul(call: Call) -> Work:
    """Rows × matrices of groups, or rows × rows into one matrix per group (tgmm).

    All rows count: where a device's groups take only some of them, as with expert parallelism, it is an upper bound.
    """
    left, right = ([*(each for each in call.values if len(each.dims) >= 2), None, None])[:2]
    result = next((each for each in call.outputs if len(each.dims) >= 2), None)
    if left is None or right is None or result is None or len(left.dims) != 2:
        return UNKNOWN
    if len(right.dims) == 3 and len(result.dims) == 2:
        (rows, inner), columns, groups = left.dims, result.dims[1], right.dims[0]
    elif len(right.dims) == 2 and len(result.dims) == 3:
        groups, inner, columns = result.dims
        rows = right.size // columns if columns else 0
        if rows * inner != left.size:
            return UNKNOWN
    else:
        return UNKNOWN
    return Work(2.0 * rows * inner * columns, "shapes", f"{rows} × {inner} × {columns}, {groups} groups")


def _matmul(call: Call) -> Work:
    """[m, k] × [k, n] (or [n, k]) → [m, n]; everything else is unknown."""
    arrays = [each for each in call.operands if len(each.dims) == 2][:2]  # 8-bit integers are values here
    result = next((each for each in call.outputs if len(each.dims) == 2), None)
    if len(arrays) < 2 or result is None:
        return UNKNOWN
    (rows, inner), (m, n) = arrays[0].dims, result.dims
    if rows != m or sorted(arrays[1].dims) != sorted((inner, n)):
        return UNKNOWN
    return Work(2.0 * m * inner * n, "shapes", f"{m} × {inner} × {n}")
