"""FLOPs of single instructions, from shapes and dimension numbers.

Only matrix work is counted: dots and convolutions, 2 FLOPs per multiply-add. Elementwise work, reductions and data
movement count 0 FLOPs, since they never bound a step by arithmetic and every tool counts them differently.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from profiler.hlo import shapes

# Opcodes whose arithmetic cannot be read from the instruction: unknown, which is not the same as none.
OPAQUE = frozenset({"custom-call", "ragged-dot", "scaled-dot", "cholesky", "triangular-solve", "fft"})
# A window position is visited in Python; longer dimensions than this in both kernel and output are left unknown.
MAX_POSITIONS = 1 << 16

_GEMM_CONTRACTED = re.compile(rb'"lhs_contracting_dimensions"\s*:\s*\[([^\]]*)\]')
_COST_ESTIMATE = re.compile(rb'"cost_estimate"\s*:\s*(\{[^{}]*\})')


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What the author of a kernel says it costs per execution; a field is None where nothing is said."""

    flops: float | None
    transcendentals: float | None
    bytes_accessed: float | None


def cost_estimate(backend_config: bytes) -> CostEstimate | None:
    """The ``cost_estimate`` of a Pallas call, from ``backend_config.custom_call_config``.

    The config is JSON that carries the kernel's code beside the estimate, sometimes with raw newlines in it; so only
    the small flat object is cut out and read.
    """
    match = _COST_ESTIMATE.search(backend_config)
    if match is None:
        return None
    try:
        fields = json.loads(match[1])
        return CostEstimate(*(_number(fields.get(k)) for k in ("flops", "transcendentals", "bytes_accessed")))
    except ValueError:
        return None


def _number(value: object) -> float | None:
    """A JSON number; protobuf writes 64-bit integers as strings."""
    return None if value is None or isinstance(value, list | dict) else float(str(value))


def library_flops(target: str, instruction: Any, operands: list[Any], backend_config: bytes) -> float | None:
    """FLOPs of a matmul or forward convolution that XLA hands to a GPU library; None for every other custom call.

    The result is the first output, workspace the second. A gemm keeps its dimension numbers in the backend config.
    """
    outputs = instruction.shape.tuple_shapes
    result = outputs[0] if outputs else instruction.shape
    if target.startswith("__cudnn$convForward"):
        return convolution_flops(instruction, operands, result)
    if target.startswith("__cublas$"):
        match = _GEMM_CONTRACTED.search(backend_config)
        dims = re.findall(rb"\d+", match[1]) if match else []
        return _matmul_flops(result, operands, [int(d) for d in dims]) if dims else None
    return None


def dot_flops(instruction: Any, operands: list[Any]) -> float | None:
    """2 × output elements × contracted elements of a ``dot``. ``operands`` are the operand protos."""
    contracted = instruction.dot_dimension_numbers.lhs_contracting_dimensions
    return _matmul_flops(instruction.shape, operands, list(contracted))


def _matmul_flops(result: Any, operands: list[Any], contracted: list[int]) -> float | None:
    lhs = operands[0].shape.dimensions if len(operands) >= 2 else []
    output = shapes.elements(result)
    if output is None or len(contracted) > shapes.MAX_RANK or any(not 0 <= d < len(lhs) for d in contracted):
        return None
    return as_float(2 * output * math.prod(lhs[d] for d in contracted))


def convolution_flops(instruction: Any, operands: list[Any], result: Any) -> float | None:
    """2 × the multiply-adds of a ``convolution``, positions in padding and in dilation holes left out.

    Counting them would be far off: the TPU compiler writes batched dots as convolutions whose windows slide almost
    entirely over padding. Multiply-adds = output batch × output features × kernel input features × Π valid positions,
    with output batch × features = output elements / Π output spatial sizes.
    """
    if len(operands) < 2 or shapes.elements(result) is None:
        return None
    numbers, window = instruction.convolution_dimension_numbers, instruction.window.dimensions
    inputs, kernel = operands[0].shape.dimensions, operands[1].shape.dimensions
    output, spatial = result.dimensions, numbers.output_spatial_dimensions
    if not len(window) == len(spatial) == len(numbers.input_spatial_dimensions) <= shapes.MAX_RANK:
        return None
    try:
        positions = 1
        for axis, out_dim, in_dim in zip(window, spatial, numbers.input_spatial_dimensions, strict=True):
            valid = _valid_positions(axis, output[out_dim], inputs[in_dim])
            if valid is None:
                return None
            positions *= valid
        rest = math.prod(size for d, size in enumerate(output) if d not in set(spatial))
        return as_float(2 * rest * kernel[numbers.kernel_input_feature_dimension] * positions)
    except IndexError:
        return None


def _valid_positions(axis: Any, output: int, inputs: int) -> int | None:
    """Pairs (output index o, kernel index k) of one dimension that hit an input element.

    A pair hits when o × stride + k × window dilation − padding = base dilation × i for an input index i.
    """
    size, stride, dilation, base = axis.size, axis.stride or 1, axis.window_dilation or 1, axis.base_dilation or 1
    if min(size, output, inputs) <= 0:
        return 0
    if min(stride, dilation, base) < 0:
        return None
    loop, step, other, other_step = (size, dilation, output, stride)
    if output < size:  # walk the shorter of the two, solve for the longer in closed form
        loop, step, other, other_step = other, other_step, loop, step
    if loop > MAX_POSITIONS:
        return None
    return sum(_hits(other_step, other, n * step - axis.padding_low, base, inputs) for n in range(loop))


def _hits(a: int, n: int, c: int, b: int, m: int) -> int:
    """How many x in [0, n) satisfy a·x + c = b·y for some y in [0, m)."""
    gcd = math.gcd(a, b)
    if c % gcd:
        return 0
    period = b // gcd
    first = (-(c // gcd) * pow(a // gcd, -1, period)) % period if period > 1 else 0
    low, high = max(0, -(c // a)), min(n - 1, (b * (m - 1) - c) // a)
    low += (first - low) % period
    return 0 if high < low else (high - low) // period + 1


def as_float(value: int) -> float | None:
    """None for what no machine computes: a damaged dimension, beyond the range of a float or below zero."""
    try:
        return float(value) if value >= 0 else None
    except OverflowError:
        return None
