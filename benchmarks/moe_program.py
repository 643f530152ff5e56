"""The program that the generated recordings pretend to run: one training step of a 48-layer mixture-of-experts model.

It is a table of ops with the metadata that a TPU recording carries, and a tree that says in which order they run and
which contain which. Nothing here is measured: names, texts and proportions are realistic, times are made up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LAYERS = 48
RING = 4  # iterations of the loop inside each layer that gathers sharded weights piece by piece
FINGERPRINT = {"baseline": 12190760917235803885, "optimized": 9646411105960254074}
TOP_LEVEL_UPDATES = 2000  # optimizer fusions: what makes real programs thousands of ops long

# (stem, opcode, category, scope, output shape, µs, GFLOP). A "*-start" is followed later by its "*-done".
ATTENTION = [
    ("fusion", "fusion", "loop fusion", "self_attention/pre_norm/mul", "bf16[4,8192,2048]", 61, 0.2),
    ("fusion", "fusion", "convolution fusion", "self_attention/query/dot_general", "bf16[4,8192,16,256]", 610, 549.8),
    ("fusion", "fusion", "convolution fusion", "self_attention/key/dot_general", "bf16[4,8192,2,256]", 84, 68.7),
    ("fusion", "fusion", "convolution fusion", "self_attention/value/dot_general", "bf16[4,8192,2,256]", 84, 68.7),
    ("multiply_add_fusion", "fusion", "loop fusion", "self_attention/rope/add", "bf16[4,8192,16,256]", 118, 0.8),
    ("copy", "copy", "data formatting", "self_attention/transpose", "bf16[4,16,8192,256]", 42, 0.0),
    ("splash", "custom-call", "custom-call", "", "bf16[4,16,8192,256]", 3900, 2199.0),
    ("fusion", "fusion", "convolution fusion", "self_attention/out/dot_general", "bf16[4,8192,2048]", 612, 549.8),
    ("add_fusion", "fusion", "loop fusion", "self_attention/add", "bf16[4,8192,2048]", 47, 0.1),
]
MOE = [
    ("fusion", "fusion", "loop fusion", "moe_block/norm/mul", "bf16[4,8192,2048]", 61, 0.2),
    ("fusion", "fusion", "convolution fusion", "moe_block/gate/dot_general", "f32[4,8192,128]", 33, 17.2),
    ("sort", "sort", "sort", "moe_block/top_k/sort", "(f32[32768,128], s32[32768,128])", 210, 0.0),
    ("gather_fusion", "fusion", "custom fusion", "moe_block/permute/gather", "bf16[262144,2048]", 480, 0.0),
    ("gmm", "custom-call", "custom-call", "moe_block/shard_map/moe_wi_0/jit(gmm)", "bf16[262144,768]", 1310, 824.6),
    ("gmm", "custom-call", "custom-call", "moe_block/shard_map/moe_wi_1/jit(gmm)", "bf16[262144,768]", 1310, 824.6),
    ("multiply_fusion", "fusion", "loop fusion", "moe_block/silu/mul", "bf16[262144,768]", 190, 0.6),
    ("gmm", "custom-call", "custom-call", "moe_block/shard_map/moe_wo/jit(gmm)", "bf16[262144,2048]", 1290, 824.6),
    ("scatter_fusion", "fusion", "custom fusion", "moe_block/unpermute/scatter-add", "bf16[4,8192,2048]", 520, 0.5),
]
GATHER = [
    ("all-gather-start", "all-gather-start", "all-gather-start", "moe_block/all_gather", "bf16[128,2048,768]", 3, 0.0),
    ("fusion", "fusion", "loop fusion", "moe_block/convert_element_type", "bf16[128,2048,768]", 92, 0.0),
]
PERMUTE = "collective-permute"
RING_BODY = [
    (f"{PERMUTE}-start", f"{PERMUTE}-start", f"{PERMUTE}-start", "ppermute", "bf16[4,2048]", 2, 0.0),
    ("slice_fusion", "fusion", "loop fusion", "dynamic_slice", "bf16[4,2048]", 6, 0.0),
    (f"{PERMUTE}-done", f"{PERMUTE}-done", f"{PERMUTE}-done", "ppermute", "bf16[4,2048]", 4, 0.0),
]
FORWARD = "jit(train_step)/jvp(student)/layers/while/body/closed_call/checkpoint"
BACKWARD = "jit(train_step)/transpose(jvp(student))/layers/while/body/closed_call/checkpoint"
LAYOUT = {"bf16": "{1,0:T(8,128)(2,1)}", "f32": "{1,0:T(8,128)}", "s32": "{0:T(1024)}"}


@dataclass
class Op:
    """One instruction and what a recording says about it."""

    name: str
    opcode: str
    category: str
    stack: str
    shape: str
    picoseconds: int
    flops: int
    text: str = ""
    source: str = ""


@dataclass
class Node:
    """An op as it runs: a leaf, or a loop over its body. ``start`` is the node that an async ``-done`` completes."""

    op: int
    body: list[Node] = field(default_factory=list)
    trips: int = 1
    starts: int | None = None


class Program:
    """Ops and the order in which they run.

    Args:
        variant: ``baseline``, or ``optimized``: no re-run of the attention kernel, cheaper grouped matmuls, other
            instruction numbers and another module fingerprint, as after a recompile.
        seed: decides instruction numbers and small differences between alike ops.
    """

    def __init__(self, variant: str, seed: int):
        self.variant, self.program_id = variant, FINGERPRINT[variant]
        self.ops: list[Op] = []
        self._random = random.Random(f"{seed}/{variant}")
        # Instruction numbers are not stable across compiles, so each variant counts from elsewhere.
        self._next: dict[str, int] = {}
        self.root = self._step()

    def _op(self, stem: str, opcode: str, category: str, stack: str, shape: str, us: float, gflop: float) -> int:
        number = self._next.setdefault(stem, self._random.randrange(1, 90))
        self._next[stem] += 1
        op = Op(f"{stem}.{number}", opcode, category, stack, shape, int(us * 1e6), int(gflop * 1e9))
        operands = ", ".join(f"{_laid_out(o.shape)} %{o.name}" for o in self.ops[-2:]) or "bf16[8,128]{1,0} %param.1"
        suffix = {
            "fusion": f", kind=kLoop, calls=%fused_computation.{number}",
            "custom-call": ', custom_call_target="tpu_custom_call", operand_layout_constraints={bf16[8,128]{1,0}}',
            "while": f", condition=%cond.{number}, body=%body.{number}",
        }.get(opcode, "")
        op.text = f"%{op.name} = {_laid_out(shape)} {opcode}({operands}){suffix}"
        op.source = f"model/{'attention' if 'attention' in stack else 'moe'}.py:{40 + len(stack) % 300}"
        self.ops.append(op)
        return len(self.ops) - 1

    def _leaf(self, row: tuple[str, str, str, str, str, float, float], prefix: str, kernel: str = "") -> Node:
        stem, opcode, category, scope, shape, us, gflop = row
        if stem == "splash":
            stem, scope = kernel, f"self_attention/shard_map/vmap(jit(_splash_attention))/{kernel}"
        if opcode == "custom-call":
            scope += "/pallas_call"
            if "gmm" in stem and self.variant == "optimized":
                us *= 0.78  # larger tiles
        return Node(self._op(stem, opcode, category, f"{prefix}/{scope}", shape, us, gflop))

    def _gathered(self, prefix: str) -> list[Node]:
        """Weights fetched in the background: start, a ring loop and other work meanwhile, done."""
        start, other = (self._leaf(row, prefix) for row in GATHER)
        ring_prefix = f"{prefix}/moe_block/while/body"
        first, work, last = (self._leaf(row, ring_prefix) for row in RING_BODY)
        last.starts = first.op
        ring = Node(self._op("while", "while", "while", f"{prefix}/moe_block/while", "(s32[], bf16[4,2048])", 1, 0))
        ring.body, ring.trips = [first, work, last], RING
        stack = f"{prefix}/moe_block/all_gather"
        done = self._op("all-gather-done", "all-gather-done", "all-gather-done", stack, "bf16[128,2048,768]", 35, 0)
        return [start, ring, other, Node(done, starts=start.op)]

    def _forward_ops(self, prefix: str, kernel: str, *, attention_kernel: bool = True) -> list[Node]:
        rows = [row for row in ATTENTION if attention_kernel or row[0] != "splash"]
        return [
            *(self._leaf(row, prefix, kernel) for row in rows),
            *self._gathered(prefix),
            *(self._leaf(row, prefix) for row in MOE),
        ]

    def _backward_ops(self) -> list[Node]:
        rerun = self._forward_ops(
            f"{BACKWARD}/rematted_computation",
            "splash_mha_fwd_segmented_residuals",
            attention_kernel=self.variant == "baseline",
        )
        backward: list[Node] = []
        for row in reversed(ATTENTION + MOE):
            stem, opcode, category, scope, shape, us, gflop = row
            if stem == "splash":
                slower = (*row[:5], us * 2.4, gflop * 2.5)
                backward.append(self._leaf(slower, BACKWARD, "splash_mha_dkv_segmented_no_residuals"))
            elif gflop > 1:  # a matmul has two gradients
                backward.append(self._leaf(row, BACKWARD))
                other = ("tgmm", opcode, category, scope.replace("gmm", "tgmm"), shape, us * 1.1, gflop)
                backward.append(self._leaf(other if stem == "gmm" else row, BACKWARD))
            else:
                backward.append(self._leaf((stem, opcode, category, scope, shape, us * 1.2, gflop), BACKWARD))
        return rerun + backward

    def _loop(self, stack: str, body: list[Node]) -> Node:
        loop = self._op("while", "while", "while", stack, "(s32[], bf16[4,8192,2048])", 2, 0)
        return Node(loop, body, LAYERS)

    def _step(self) -> list[Node]:
        """The whole step in running order."""
        student, loss = "jit(train_step)/jvp(student)", "jit(train_step)/jvp(loss)"
        head = ("fusion", "fusion", "convolution fusion", "logits/dot_general", "bf16[4,8192,151936]", 20900, 20394.0)
        embed = ("gather_fusion", "fusion", "custom fusion", "token_embedder/gather", "bf16[4,8192,2048]", 95, 0.0)
        softmax = ("reduce_fusion", "fusion", "loop fusion", "cross_entropy/reduce_max", "f32[4,8192]", 3300, 10.0)
        reduce = ("all-reduce", "all-reduce", "all-reduce", "psum", "f32[2048,2048]", 180, 0.0)
        update = ("multiply_add_fusion", "fusion", "loop fusion", "optimizer/adamw/add", "f32[2048,768]", 9, 0.01)
        copied = ("copy", "copy", "data formatting", "optimizer/transpose", "f32[2048,768]", 4, 0.0)
        nodes = [
            self._leaf(embed, student),
            self._loop(f"{student}/layers/while", self._forward_ops(FORWARD, "splash_mha_fwd_segmented_residuals")),
            self._leaf(head, student),
            self._leaf(softmax, loss),
            self._leaf(head, "jit(train_step)/transpose(jvp(student))"),
            self._leaf(head, "jit(train_step)/transpose(jvp(student))"),
            self._loop("jit(train_step)/transpose(jvp(student))/layers/while", self._backward_ops()),
            *(self._leaf(reduce, "jit(train_step)") for _ in range(12)),
        ]
        for index in range(TOP_LEVEL_UPDATES):
            nodes.append(self._leaf(update, "jit(train_step)"))
            if index % 8 == 0 and self.variant == "baseline":
                nodes.append(self._leaf(copied, "jit(train_step)"))
        return nodes


def _laid_out(shape: str) -> str:
    """A shape with a TPU layout behind each array (tuples stay as they are)."""
    return shape if shape.startswith("(") else shape + LAYOUT.get(shape.split("[")[0], "")
