"""What a recording says about one op, and the HLO opcode that follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# " opcode(" after the shape; shapes hold "T(8,128)" and "S(5)" but never a lower-case word before a bracket.
_OPCODE = re.compile(r" ([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\(")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CALLS = re.compile(r"calls=%([\w.-]+)")
_COUNTER = re.compile(r"(?:[._]\d+|\.cloned|\.clone|\.remat\d*|\.call)+(?=-start|-done|$)")


def words(text: str) -> frozenset[str]:
    """A set of words, written as one text."""
    return frozenset(text.split())


DOTS = words("dot convolution ragged-dot scaled-dot")
CONTROL = words("while conditional call opt-barrier")
HOST = words("infeed outfeed infeed-done outfeed-done")
ASYNC_COPY = words("copy-start copy-done async-start async-update async-done")
REDUCTIONS = words("reduce reduce-window select-and-scatter scan")
INDEXED = words("gather scatter sort topk")
MOVES = words(
    """bitcast bitcast-convert broadcast concatenate copy dynamic-reshape dynamic-slice dynamic-update-slice gather
    get-tuple-element iota pad reshape reverse scatter slice transpose tuple"""
)
ELEMENTWISE = words(
    """abs add and atan2 cbrt ceil clamp clz compare complex convert cosine divide erf exponential exponential-minus-one
    floor imag is-finite log log-plus-one logistic map maximum minimum multiply negate not or popcnt power real
    reduce-precision remainder rng rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even
    rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan
    tanh xor"""
)
UNEXPLAINED = words(  # what such an op is for, its opcode does not say
    """fusion custom-call fft cholesky triangular-solve partition-id replica-id after-all domain parameter constant"""
)
SENDS = words("send send-done recv recv-done")
COLLECTIVES = words(
    """all-gather all-gather-start all-gather-done all-reduce all-reduce-start all-reduce-done all-to-all
    ragged-all-to-all reduce-scatter collective-permute collective-permute-start collective-permute-done
    collective-broadcast"""
)
OPCODES = (
    DOTS | CONTROL | HOST | ASYNC_COPY | REDUCTIONS | INDEXED | MOVES | ELEMENTWISE | UNEXPLAINED | SENDS
    | COLLECTIVES
)  # fmt: skip
SIMPLE = DOTS | CONTROL | HOST | REDUCTIONS | INDEXED | MOVES | ELEMENTWISE  # can neither be nor wrap a collective


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What a recording says about one op; everything but the name may be missing.

    Args:
        name: instruction name, ``fusion.12``; for a GPU kernel without HLO, the kernel's name.
        opcode: HLO opcode, from the HLO proto.
        category: XLA's ``hlo_category`` on TPU: ``convolution fusion``, ``copy-done`` …
        name_stack: the JAX name stack, ``tf_op`` with or without its ``:type``.
        hlo_text: the full HLO text of the instruction, on TPU.
        shape: output shape as HLO prints it.
        custom_call_target: target of a custom call.
        kernel: GPU kernel name, or the kind of a memory copy (``MemcpyH2D``).
        fused_opcodes: opcodes inside a fusion.
        fused_op_names: name stacks inside a fusion.
        source: ``file:line``.
    """

    name: str
    opcode: str | None = None
    category: str | None = None
    name_stack: str | None = None
    hlo_text: str | None = None
    shape: str | None = None
    custom_call_target: str | None = None
    kernel: str | None = None
    fused_opcodes: frozenset[str] = frozenset()
    fused_op_names: tuple[str, ...] = ()
    source: str | None = None


def opcode_of(op: OpFacts) -> str | None:
    """The HLO opcode: given, from the HLO text, from the category, or from a name that says it; else None."""
    if op.opcode:
        return op.opcode
    if op.hlo_text:
        match = _OPCODE.search(op.hlo_text, max(op.hlo_text.find(" = "), 0) + 2)
        if match:
            return match[1]
    return _opcode_from_words(op.name, op.category)


def target_of(op: OpFacts) -> str | None:
    """The target of a custom call: given, or from the HLO text."""
    if op.custom_call_target:
        return op.custom_call_target
    match = _TARGET.search(op.hlo_text) if op.hlo_text and "custom_call_target" in op.hlo_text else None
    return match[1] if match else None


def calls_of(op: OpFacts) -> str:
    """The computation that an asynchronous op or a fusion wraps, where the HLO text names it."""
    match = _CALLS.search(op.hlo_text) if op.hlo_text and "calls=%" in op.hlo_text else None
    return match[1] if match else ""


@lru_cache(maxsize=1 << 14)
def ranks_of(shape: str) -> tuple[int, ...]:
    """Ranks of the arrays in a shape text."""
    return tuple(len(dims.split(",")) if dims else 0 for dims in re.findall(r"[a-z]\w*\[([\d,<=]*)\]", shape))


@lru_cache(maxsize=1 << 16)
def base_name(name: str) -> str:
    """An instruction name without counters: ``all-gather.248.cloned.1.call-start`` → ``all-gather-start``."""
    return _COUNTER.sub("", name)


def _opcode_from_words(name: str, category: str | None) -> str | None:
    """The opcode that a category or a name gives away."""
    if category:
        if category.endswith("fusion"):
            return "fusion"
        if category in OPCODES:
            return category
    base = base_name(name)
    if base in OPCODES:
        return base
    if base.endswith(("fusion", "_fusion_dot")) or base.startswith("wrapped_"):
        return "fusion"
    return None
