"""Shapes: their text as HLO prints it, their elements and their bytes."""

from __future__ import annotations

import math
from typing import Any

from profiler.hlo.schema import ELEMENT_TYPES, TUPLE

# XLA itself knows no rank near this; a longer list is damage, and multiplying it out would take for ever.
MAX_RANK = 64


def text(shape: Any) -> str:
    """A ``ShapeProto`` as HLO text prints it, with layout: ``(f32[], bf16[4,128]{1,0:T(8,128)S(1)})``."""
    if shape.element_type == TUPLE:
        return f"({', '.join(text(part) for part in shape.tuple_shapes)})"
    name, _ = ELEMENT_TYPES.get(shape.element_type, ("invalid", 0))
    dynamic = shape.is_dynamic_dimension
    dims = ",".join(
        f"<={size}" if i < len(dynamic) and dynamic[i] else str(size) for i, size in enumerate(shape.dimensions)
    )
    return name if name == "token" else f"{name}[{dims}]{_layout(shape)}"


def _layout(shape: Any) -> str:
    """``{1,0:T(8,128)(2,1)S(5)}``, or nothing where the layout says nothing."""
    layout = shape.layout
    order = ",".join(str(d) for d in layout.minor_to_major)
    extra = ""
    if layout.tiles:
        extra += "T" + "".join(f"({','.join(_tile(d) for d in t.dimensions)})" for t in layout.tiles)
    if layout.element_size_in_bits:
        extra += f"E({layout.element_size_in_bits})"
    if layout.memory_space:
        extra += f"S({layout.memory_space})"
    if not order and not extra:
        return ""
    return f"{{{order}:{extra}}}" if extra else f"{{{order}}}"


def _tile(size: int) -> str:
    """A tile dimension; XLA writes the smallest int64 for "combine with the next", printed ``*``."""
    return "*" if size == -(2**63) else str(size)


def elements(shape: Any) -> int | None:
    """Number of elements of an array shape; None for tuples and for dimensions that cannot be."""
    if shape.element_type == TUPLE or len(shape.dimensions) > MAX_RANK or any(d < 0 for d in shape.dimensions):
        return None
    sizes: list[int] = list(shape.dimensions)
    return math.prod(sizes)


def size_bytes(shape: Any) -> int | None:
    """Bytes of a shape without tile padding, packed sub-byte types included; tuples are summed. None if unknown."""
    if shape.element_type == TUPLE:
        total = 0
        for part in shape.tuple_shapes:
            size = size_bytes(part)
            if size is None:
                return None
            total += size
        return total
    count = elements(shape)
    if count is None or shape.element_type not in ELEMENT_TYPES:
        return None
    bits = ELEMENT_TYPES[shape.element_type][1]
    return (count * bits + 7) // 8
