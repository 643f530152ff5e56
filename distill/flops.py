"""Model FLOPs of a training step, by MaxText's convention.

A matmul of [m, k] by [k, n] counts 2·m·k·n. What the model needs is counted, not what the hardware does: re-runs of
rematerialisation, the padding of tiles, norms, softmax, routing and the embedding lookup count nothing. A training step
counts three forward passes (one forward, two of the same size backward), the teacher one.

Symbols: B sequences per device, T tokens each, L layers, E emb_dim, H query and KV key-value heads of width D, X
experts of which each token visits K, F their hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from distill.config import Config, ModelSpec

CONVENTION = "maxtext"


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of one forward pass over B sequences of T tokens, split as MaxText prints them."""

    weights: float  # every matmul with a parameter
    attention: float  # scores and their product with the values

    @property
    def forward(self) -> float:
        """One pass forward."""
        return self.weights + self.attention

    @property
    def training(self) -> float:
        """One pass forward and one backward."""
        return 3 * self.forward


@dataclass(frozen=True)
class Flops:
    """FLOPs per device and optimizer step."""

    student: float  # forward and backward
    teacher: float  # forward

    @property
    def total(self) -> float:
        """Both models."""
        return self.student + self.teacher


def model_flops(spec: ModelSpec, batch: int, length: int) -> ModelFlops:
    """Forward FLOPs of one model.

    Args:
        spec: the model.
        batch: B, sequences.
        length: T, tokens per sequence.
    """
    tokens = batch * length
    embed, width = spec.emb_dim, spec.num_query_heads * spec.head_dim
    router = 2 * tokens * embed * spec.num_experts
    experts = 3 * 2 * tokens * embed * spec.moe_mlp_dim * spec.num_experts_per_tok
    qkv = 2 * tokens * embed * (spec.num_query_heads + 2 * spec.num_kv_heads) * spec.head_dim
    out = 2 * tokens * embed * width
    unembedding = 2 * tokens * embed * spec.vocab_size
    return ModelFlops(
        weights=spec.num_layers * (router + experts + qkv + out) + unembedding,
        attention=4 * batch * width * sum(_pairs(length, spec.window_of(layer)) for layer in range(spec.num_layers)),
    )


def _pairs(length: int, window: int) -> float:
    """Query-key pairs of one sequence: half the square for a causal mask, T·W - W²/2 for a window of W tokens."""
    if not window:
        return length**2 / 2
    window = min(window, length)
    return length * window - window**2 / 2


def step_flops(config: Config) -> Flops:
    """Model FLOPs of one optimizer step on one device; micro-batches of gradient accumulation count one by one."""
    batch = config.per_device_batch_size * config.gradient_accumulation_steps
    student = model_flops(config.student, batch, config.max_target_length)
    teacher = model_flops(config.teacher, batch, config.max_target_length)
    return Flops(student=student.training, teacher=teacher.forward)
