"""JAX name stacks: what the path of scopes on an op says about its role and phase.

A stack such as ``jit(step)/transpose(jvp(student))/layers/while/body/checkpoint/self_attention/dot_general`` is a path
of segments. A segment is a scope (``self_attention``), a transformation around one (``transpose(jvp(student))``) or,
last, the primitive. Everything here is cached: a program has few distinct segments and not many more stacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from profiler.analysis.opfacts import words

# On TPU a stack ends in ":type", the type mostly empty; "::" belongs to a name (aten::mul).
_TYPE = re.compile(r"(?<!:):[A-Za-z0-9_]*$")
_WRAPPED = re.compile(r"([A-Za-z_]\w*)\((.*)\)$")
# An einsum writes its equation into the stack: a scope of its own, or inside the wrapper: jvp(bsd,de->bse).
_EINSUM = re.compile(r"([A-Za-z.]+),([A-Za-z.]+)->([A-Za-z.]*)$")

# Which role a scope names; the first match counts. A later (inner) scope of a stack overrules an outer one.
_ROLES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        ("teacher", r"(.*_)?teacher(_.*)?$"),
        ("student", r"(.*_)?student(_.*)?$"),
        ("optimizer", r"(.*_)?(optimi[sz]er|adamw?|optax|muon|adafactor|apply_updates|apply_gradients)(_.*)?$"),
        ("input", r"(input_pipeline|data_pipeline|data_loading|load_batch|input)$"),
        ("logits", r"(.*_)?(logits|unembed|unembedding|lm_?head|logits_dense)(_.*)?$"),
        ("loss", r"(.*_)?(loss|cross_entropy|kl_div|kl_divergence|distillation)(_.*)?$"),
        ("position", r"(.*_)?(rope|position)(_.*)?$|.*(rotary|pos_emb).*$"),
        ("embedding", r".*(embedding|embeddings|embedder)(_.*|\d+)?$|(.*_)?(embed|wte)(_.*)?$"),
        ("dispatch", r"(.*_)?(permute|unpermute|dispatch|combine|unsort|sort_activations|route)(_.*)?$"),
        ("router", r"(.*_)?(router|routing|top_?k_gating)(_.*)?$"),
        ("gate", r"gate(_logits|_\d+)?$"),
        ("norm", r"(.*norm|(.*_)?rms)(_.*|\d+)?$"),
        ("projection", r"(qkv|q|k|v|o|kv|query|key|value|out|up|down|in|wi|wo|wi_\d|fc\d?)(_?proj\w*|_einsum)?$"),
        ("projection", r".*(linear|dense|dense_?general|_proj|projection)(_?\d+)?$|attn_vec_einsum$"),
        ("projection", r"(mlp|ffn|feed_?forward)\w*$"),
        ("moe", r"(.*_)?(moe|moeblock|experts?|megablox|sparse_matmul)(_.*|\d+)?$"),
        ("attention", r".*(attention|attn).*$|mha(_.*)?$"),
        ("layers", r"(layers?|decoder|encoder|transformer|blocks?)(_.*|\d+)?$"),
    )
)  # fmt: skip
# Scopes of the compiler and of JAX's control flow, which say nothing about the model.
PLUMBING = words("while body cond closed_call checkpoint rematted_computation shard_map branch_0_fun core_call")
# Roles that the name of the program (the first segment) is believed about: ``jit(loss_fn)`` is a whole training step.
_FROM_PROGRAM = frozenset({"logits", "optimizer", "teacher", "embedding"})
# Scopes of a whole model: what lies outside them (a loss) says nothing about what lies inside.
_WHOLE = frozenset({"teacher", "student", "layers"})
_MODEL = frozenset({"attention", "projection", "moe", "router", "norm", "position", "embedding", "dispatch"})


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: the transformations around it, the name inside, the role that the name stands for ("" if none)."""

    wrappers: frozenset[str]
    core: str
    role: str


@dataclass(frozen=True, slots=True)
class Stack:
    """What a name stack says.

    ``leaf`` is the primitive, ``role`` the innermost role of its scopes, ``roles`` all of them. ``jvp`` and
    ``transposed`` say that the op belongs to a differentiated forward and to a backward pass, ``rematted`` that it is
    executed again. ``batched`` says of an einsum whether both operands share a kept index, as q·k does and a projection
    does not; None without an equation.
    """

    segments: tuple[Segment, ...]
    leaf: str
    role: str
    roles: frozenset[str]
    jvp: bool
    transposed: bool
    rematted: bool
    batched: bool | None

    @property
    def in_loop(self) -> bool:
        """Whether the op lies inside a loop body."""
        return any(s.core == "while" for s in self.segments)

    @property
    def in_model(self) -> bool:
        """Whether a scope names a part of a model."""
        return not _MODEL.isdisjoint(self.roles)


EMPTY = Stack((), "", "", frozenset(), False, False, False, None)


@lru_cache(maxsize=1 << 16)
def segment(text: str) -> Segment:
    """Unwrap one segment: ``transpose(jvp(student))`` → ({transpose, jvp}, "student")."""
    wrappers, core = set(), text
    while match := _WRAPPED.match(core):
        wrappers.add(match[1])
        core = match[2]
    lower = core.lower()
    return Segment(frozenset(wrappers), core, next((r for r, p in _ROLES if p.match(lower)), ""))


@lru_cache(maxsize=1 << 16)
def parse(text: str) -> Stack:
    """A name stack, with or without TPU's ``:type``; where the compiler joined several with ";", the first."""
    path = _TYPE.sub("", text.partition(";")[0])
    if not path:
        return EMPTY
    segments = tuple(segment(part) for part in path.split("/"))
    scopes = segments if segments[-1].wrappers else segments[:-1]
    roles = [s.role for i, s in enumerate(scopes) if s.role and (i or s.role in _FROM_PROGRAM)]
    # The gate of a mixture of experts is its router; that of a gated MLP is a matrix like any other.
    roles = [("router" if "moe" in roles else "projection") if r == "gate" else r for r in roles]
    wrappers = frozenset().union(*(s.wrappers for s in segments))
    return Stack(
        segments=segments,
        leaf="" if segments[-1].wrappers else segments[-1].core,
        role=_role(roles),
        roles=frozenset(roles),
        jvp="jvp" in wrappers,
        transposed="transpose" in wrappers,
        rematted=any(s.core == "rematted_computation" for s in segments),
        batched=next((_batched(m) for s in reversed(segments) if (m := _EINSUM.match(s.core))), None),
    )


def _role(roles: list[str]) -> str:
    """The innermost role. A projection says only what kind of layer it is: lm_head/linear belongs to the logits."""
    outer, inner = ["", "", *roles][-2:]
    if inner == "projection" and outer in ("logits", "router", "embedding", "optimizer"):
        return outer
    return "" if inner in _WHOLE else inner


def _batched(equation: re.Match[str]) -> bool:
    left, right, output = (set(part) - {"."} for part in equation.groups())
    both_elided = "..." in equation[1] and "..." in equation[2]
    return both_elided or bool(left & right & output)


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What is known about the program that an op belongs to; the phase of an op depends on it.

    Args:
        named: some op has a name stack; without any, no phase can be told.
        differentiated: some op shows ``jvp(`` or ``transpose(``: a training step.
        teacher: a scope names the teacher.
        student: a scope names the student.
        distillation: the run is known to be a distillation (run info), whether or not scopes say so.
    """

    named: bool = False
    differentiated: bool = False
    teacher: bool = False
    student: bool = False
    distillation: bool = False

    @classmethod
    def of(cls, name_stacks: Iterable[str | None], *, distillation: bool = False) -> ProgramFacts:
        """The facts of a program from the name stacks of its ops."""
        stacks = [parse(text) for text in {s for s in name_stacks if s}]
        return cls(
            named=bool(stacks),
            differentiated=any(s.jvp or s.transposed for s in stacks),
            teacher=any("teacher" in s.roles for s in stacks),
            student=any("student" in s.roles for s in stacks),
            distillation=distillation,
        )

    @property
    def two_models(self) -> bool:
        """Whether forward and backward have to be told apart as the student's and the teacher's."""
        return self.teacher or self.student or self.distillation


def phase_of(stack: Stack, name: str, program: ProgramFacts) -> str | None:
    """The phase of an op by its stack and HLO name; see ``families.phase``."""
    if ".remat" in name or stack.rematted:
        return "re-run"
    if "optimizer" in stack.roles:
        return "optimizer"
    if "input" in stack.roles or name.startswith("infeed"):
        return "input"
    if "teacher" in stack.roles:
        return "teacher"
    if stack.transposed:
        return "student backward" if program.two_models else "backward"
    if stack.jvp or "student" in stack.roles:
        return "student forward" if program.two_models else "forward"
    if program.differentiated:
        # Outside differentiation: the teacher of a step without model scopes (MaxText's), or updates and metrics.
        unscoped_teacher = program.distillation and not program.teacher
        return "teacher" if unscoped_teacher and (stack.in_loop or stack.in_model) else None
    return "forward" if program.named else None
