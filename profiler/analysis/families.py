"""Family and phase of an op: what it is for, and in which part of the step.

Evidence, best first: kernel names and name-stack scopes, then HLO opcode and XLA's category, then the name. Streams and
lines play no part: a collective on a compute stream is a collective. docs/families.md explains every family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from profiler.analysis import namestack
from profiler.analysis.kernelnames import custom_kernel, gpu_family, kernel_family, stable
from profiler.analysis.namestack import ProgramFacts, Stack
from profiler.analysis.opfacts import (
    ASYNC_COPY,
    CONTROL,
    DOTS,
    ELEMENTWISE,
    HOST,
    INDEXED,
    MOVES,
    REDUCTIONS,
    SENDS,
    SIMPLE,
    OpFacts,
    base_name,
    calls_of,
    opcode_of,
    ranks_of,
    target_of,
    words,
)

__all__ = [
    "FAMILIES",
    "PHASES",
    "OpFacts",
    "ProgramFacts",
    "family",
    "kernel_name",
    "opcode_of",
    "phase",
    "program_facts",
    "rank",
]

FAMILIES = (
    "splash forward",
    "splash backward (dq)",
    "splash backward (dkv)",
    "splash backward (fused)",
    "attention",
    "gmm forward",
    "gmm dlhs",
    "tgmm",
    "router",
    "MoE dispatch",
    "dense matmul",
    "quantized matmul",
    "convolution",
    "norm / elementwise",
    "reduction",
    "embedding",
    "loss and logits",
    "optimizer",
    "copy / layout",
    "other",
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective (other)",
    "host transfer",
    "async copy",
    "wait",
    "control flow",
)
PHASES = (
    "teacher",
    "student forward",
    "student backward",
    "re-run",
    "optimizer",
    "input",
    "forward",
    "backward",
)  # fmt: skip
COMPUTE, COMMUNICATION, TRANSFER, WAIT, CONTAINER = range(5)
_RANKS = {
    **dict.fromkeys(FAMILIES, COMPUTE),
    **dict.fromkeys(
        ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective (other)"),
        COMMUNICATION,
    ),
    "host transfer": TRANSFER,
    "async copy": TRANSFER,
    "wait": WAIT,
    "control flow": CONTAINER,
}

_COLLECTIVE = re.compile(
    r"(?:ragged-)?(all-reduce-scatter|reduce-scatter|all-to-all|all-gather|all-reduce|collective-permute"
    r"|collective-broadcast|psum|ppermute)"
)
_COLLECTIVE_KIND = {
    "all-reduce-scatter": "reduce-scatter",
    "psum": "all-reduce",
    "ppermute": "collective-permute",
    "collective-broadcast": "collective (other)",
}
_REDUCE_LEAF = re.compile(r"reduce_|arg(max|min)$|cum(sum|prod|max|min|logsumexp)$|reduce$|sum$|mean$")

_DOT_LEAVES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
_TRIVIAL = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "fusion"})
_ADDRESSED = frozenset({"dynamic-slice", "dynamic-update-slice", "gather", "scatter", "pad", "concatenate"})
_ADDRESSES = frozenset({"add", "subtract", "compare", "select", "clamp", "and", "or", "convert"})
_MOVE_LEAVES = words(
    """broadcast_in_dim concatenate copy copy_p dynamic_slice dynamic_update_slice expand_dims gather iota pad reshape
    rev slice split squeeze transpose"""
)
_HOST_TARGETS = frozenset({"MoveToHost", "MoveToDevice", "annotate_device_placement"})
_LAYOUT_TARGETS = frozenset({"ConcatBitcast", "SliceToDynamic", "PadToStatic", "AllocateBuffer", "Sharding"})


def rank(family: str) -> int:
    """Who gets a moment in which several ops run: 0 compute, 1 communication, 2 transfer, 3 wait, 4 container."""
    return _RANKS.get(family, COMPUTE)


def program_facts(ops: Iterable[OpFacts], *, distillation: bool = False) -> ProgramFacts:
    """What the ops of one program say together; ``distillation`` if the run info says that it has a teacher."""
    stacks = (text for op in ops for text in (op.name_stack, *op.fused_op_names))
    return ProgramFacts.of(stacks, distillation=distillation)


def phase(op: OpFacts, program: ProgramFacts | None = None) -> str | None:
    """The phase of an op, one of ``PHASES``; None where it cannot be told.

    Without ``program`` the op's own stack decides, and only scopes can tell student and teacher.
    """
    stack = _stack(op)
    return namestack.phase_of(stack, op.name, program or ProgramFacts(named=False, differentiated=True))


def kernel_name(op: OpFacts) -> str | None:
    """A stable name for a custom kernel, free of tile sizes; None for what XLA compiled itself."""
    return _kernel(op, opcode_of(op), _stack(op))


def family(op: OpFacts) -> str:
    """The family of an op, one of ``FAMILIES``."""
    opcode, stack = opcode_of(op), _stack(op)
    return (
        _moved_or_contained(op, opcode)
        or _kernel_family(op, opcode, stack)
        or _by_scope(op, opcode, stack)
        or _by_opcode(op, opcode, stack)
        or gpu_family(op.kernel or ("" if opcode else op.name))
        or "other"
    )


# --- the parts, in the order in which they decide ---------------------------------------------------------------------


def _moved_or_contained(op: OpFacts, opcode: str | None) -> str | None:
    """Collectives, host transfers, asynchronous copies and containers: whatever the scope."""
    collective = _collective(op, opcode)
    if collective:
        return collective
    if opcode in CONTROL:
        return "control flow"
    if opcode in HOST or target_of(op) in _HOST_TARGETS:
        return "host transfer"
    if opcode in SENDS:
        host = "is_host_transfer=true" in (op.hlo_text or "") or "host" in (op.category or "")
        return "host transfer" if host else "collective (other)"
    if opcode in ASYNC_COPY or opcode in MOVES or opcode == "fusion":
        if _touches_host(op) and (opcode != "fusion" or _only_moves(op, opcode, _stack(op))):
            return "host transfer"
        if opcode in ASYNC_COPY:
            return "async copy" if op.fused_opcodes <= MOVES | _TRIVIAL else "wait"
    return None


def _collective(op: OpFacts, opcode: str | None) -> str | None:
    """The kind of collective that an op is, wraps or is fused with."""
    if opcode in SIMPLE:
        return None
    category = op.category or ""
    for text in (opcode or "", base_name(op.name), category, calls_of(op), *sorted(op.fused_opcodes)):
        match = _COLLECTIVE.match(text)
        if match:
            # A fusion of a matmul with a collective that runs beside it is the matmul.
            has_dot = not DOTS.isdisjoint(op.fused_opcodes) or "convolution" in category
            return None if has_dot and opcode == "fusion" else _COLLECTIVE_KIND.get(match[1], match[1])
    return None


def _kernel_family(op: OpFacts, opcode: str | None, stack: Stack) -> str | None:
    """Ops whose kernel is known by name."""
    kernel = _kernel(op, opcode, stack)
    kind = kernel_family(kernel) if kernel else None
    if kind == "splash":
        return _splash(op, kernel or "")
    if kind == "gmm":
        return _gmm(op, stack)
    if kind in ("dense matmul", "norm / elementwise"):
        return _by_scope(op, "dot" if kind == "dense matmul" else None, stack) or kind
    return kind


def _by_scope(op: OpFacts, opcode: str | None, stack: Stack) -> str | None:
    """Arithmetic by the innermost scope that names a part of the model; layout changes stay what they are."""
    role, dot = stack.role, _is_dot(op, opcode)
    if dot:
        stack = _dot_stack(op, stack)
        role = stack.role
    if stack.leaf in ("ragged_dot", "ragged_dot_general") and dot:
        return _gmm(op, stack)
    indexed = opcode in INDEXED or stack.leaf in INDEXED or not INDEXED.isdisjoint(op.fused_opcodes)
    if role == "embedding" and (indexed or dot or opcode not in MOVES):
        return "embedding"
    if role == "dispatch" or ("moe" in stack.roles and role != "router" and indexed):
        return "MoE dispatch" if indexed or dot or not _only_moves(op, opcode, stack) else None
    if not dot and _only_moves(op, opcode, stack):
        return None
    if role in ("router", "optimizer"):
        return role
    if role == "moe" and stack.leaf in ("top_k", "approx_top_k"):
        return "router"
    if role in ("loss", "logits"):
        return "loss and logits"
    if role == "attention" and (_is_core(op, stack) if dot else _is_softmax(op, opcode, stack)):
        return "attention"
    return None


def _by_opcode(op: OpFacts, opcode: str | None, stack: Stack) -> str | None:
    """What the instruction does, where nothing says what for."""
    if _is_dot(op, opcode):
        return _matmul(op, opcode, _dot_stack(op, stack))
    if opcode == "fusion":
        if _only_moves(op, opcode, stack):
            return "copy / layout"
        reduces = not REDUCTIONS.isdisjoint(op.fused_opcodes) or "reduce" in op.name
        if stack.role != "norm" and (reduces or (not op.fused_opcodes and _REDUCE_LEAF.match(stack.leaf))):
            return "reduction"
        return "norm / elementwise"
    if opcode in MOVES:
        return "copy / layout"
    if opcode in REDUCTIONS:
        return "norm / elementwise" if stack.role == "norm" else "reduction"
    if opcode == "custom-call":
        return "copy / layout" if target_of(op) in _LAYOUT_TARGETS else None
    if opcode and opcode.endswith(("-done", "-update")):
        return "wait"
    return "norm / elementwise" if opcode in ELEMENTWISE else None


# --- details ----------------------------------------------------------------------------------------------------------


def _stack(op: OpFacts) -> Stack:
    """The op's own stack; where it says no more than the program's name, that of the instructions fused into it."""
    own = namestack.parse(op.name_stack) if op.name_stack else namestack.EMPTY
    if len(own.segments) > 1 or not op.fused_op_names:
        return own
    return _dot_stack(op, namestack.parse(op.fused_op_names[-1]))


def _dot_stack(op: OpFacts, stack: Stack) -> Stack:
    """The stack of the matmul inside a fusion; the fusion's own stack is that of its last step."""
    if stack.leaf in _DOT_LEAVES:
        return stack
    inner = (namestack.parse(text) for text in op.fused_op_names)
    return next((s for s in inner if s.leaf in _DOT_LEAVES), stack)


def _kernel(op: OpFacts, opcode: str | None, stack: Stack) -> str | None:
    if opcode == "custom-call" or (opcode is None and stack.leaf == "pallas_call"):
        return custom_kernel(op.name, stack, target_of(op))
    if opcode is None and op.kernel not in (None, op.name) and kernel_family(stable(op.name)) is not None:
        return stable(op.name)  # a kernel launched for a custom call, with the HLO proto missing
    return None


def _splash(op: OpFacts, kernel: str) -> str:
    """Which pass of splash attention. A fused backward keeps the name ``dkv`` and returns dq too.

    dq then comes as partial sums per kv block, one dimension more than any other output; without it, dk and dv share
    the highest rank (jax and tokamax splash_attention_kernel.py).
    """
    if "fwd" in kernel or not ("bwd" in kernel or "dkv" in kernel or "dq" in kernel):
        return "splash forward"
    if "fused" in kernel:
        return "splash backward (fused)"
    if "dkv" not in kernel and "dq" in kernel:
        return "splash backward (dq)"
    ranks = sorted((ranks_of(op.shape or (op.hlo_text or "").partition(" custom-call(")[0])), reverse=True)
    alone = len(ranks) > 1 and ranks[0] > ranks[1]
    return "splash backward (fused)" if alone else "splash backward (dkv)"


def _gmm(op: OpFacts, stack: Stack) -> str:
    """Grouped matmul: forward (a re-run included), gradient of the tokens (dlhs), or of the weights (tgmm).

    XLA's own ragged dot has one name for all; the weights' gradient is the one with a result per group.
    """
    if not stack.transposed or stack.rematted or ".remat" in op.name:
        return "gmm forward"
    ranks = ranks_of(op.shape or "")
    return "tgmm" if stack.leaf.startswith("ragged_dot") and ranks and max(ranks) == 3 else "gmm dlhs"


def _matmul(op: OpFacts, opcode: str | None, stack: Stack) -> str:
    """A matmul outside every scope with a family of its own."""
    # The TPU compiler turns matmuls into convolutions; elsewhere a convolution is one.
    convolves = opcode == "convolution" or "convolution" in op.fused_opcodes
    if stack.leaf == "conv_general_dilated" or (convolves and not op.hlo_text and stack.leaf != "dot_general"):
        return "convolution"
    arguments = (op.hlo_text or "").partition(f" {opcode}(")[2].partition("), ")[0] if opcode in DOTS else ""
    return "quantized matmul" if _narrow(arguments) or opcode == "scaled-dot" else "dense matmul"


def _narrow(arguments: str) -> bool:
    """Whether both operands of a dot are 8 bits or less."""
    types = re.findall(r"(?:^|, )([a-z]+\d+\w*)\[", arguments)[:2]
    return len(types) == 2 and all(re.match(r"f[468]e|[su][248]$", t) for t in types)


def _is_dot(op: OpFacts, opcode: str | None) -> bool:
    if opcode in DOTS or not DOTS.isdisjoint(op.fused_opcodes):
        return True
    if opcode != "fusion" or op.fused_opcodes:
        return False
    said = f"{op.category or ''} {op.name}"
    return "convolution" in said or "gemm" in said or "dot" in re.split(r"[ _.]", said)


def _is_core(op: OpFacts, stack: Stack) -> bool:
    """Whether a matmul in an attention scope is q·k or p·v, rather than a projection by weights.

    The core multiplies activations by activations, which share a batch dimension. An einsum's equation shows it, a dot
    its batch dimensions. Else, where there is no HLO text, a rank above 2: CPU and GPU compilers flatten all others.
    """
    if stack.batched is not None:
        return stack.batched
    if op.hlo_text:
        return " dot(" in op.hlo_text and "lhs_batch_dims={" in op.hlo_text
    ranks = ranks_of(op.shape or "")
    return bool(ranks) and max(ranks) > 2


def _is_softmax(op: OpFacts, opcode: str | None, stack: Stack) -> bool:
    """Whether arithmetic in an attention scope is part of masking, scaling and softmax, not a sum of its branches."""
    if opcode not in ELEMENTWISE | REDUCTIONS | {"fusion"}:
        return False
    return stack.leaf not in ("add", "add_any", "convert_element_type") or "exponential" in op.fused_opcodes


def _only_moves(op: OpFacts, opcode: str | None, stack: Stack) -> bool:
    """Whether an op moves or formats data and computes nothing."""
    if opcode != "fusion":
        return opcode in MOVES or opcode in ASYNC_COPY
    if op.category == "data formatting":
        return True
    inside = op.fused_opcodes - _TRIVIAL
    if inside:
        # Indexing computes addresses; that little arithmetic does not make it more than a move.
        indexes = not inside.isdisjoint(_ADDRESSED)
        return inside <= MOVES or (indexes and inside <= MOVES | _ADDRESSES and stack.leaf in _MOVE_LEAVES)
    # XLA names a fusion after its last steps. A concatenation can be written as pad and maximum.
    named = set(base_name(op.name).split("_")) - {"fusion", "loop", "input", "wrapped"}
    return (bool(named) and named <= MOVES) or (
        stack.leaf in _MOVE_LEAVES and (named - {"maximum"}).isdisjoint(ELEMENTWISE | REDUCTIONS)
    )


def _touches_host(op: OpFacts) -> bool:
    if "S(5)" in (op.hlo_text or "") or "S(5)" in (op.shape or ""):
        return True
    return op.kernel is not None and gpu_family(op.kernel) == "host transfer"
