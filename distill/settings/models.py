"""The shape of one model, the models that are known by name, and the override keys that change a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from distill.settings.values import bad, fit


@dataclass(frozen=True)
class ModelSpec:
    """A mixture-of-experts decoder. Sizes are counts of elements; everything is per layer unless it says otherwise."""

    name: str  # the name it is known by; overrides do not change it
    arch: Literal["qwen3_moe", "gpt_oss"]  # which decoder layer
    num_layers: int  # L, decoder layers of the whole model
    emb_dim: int  # E, width of the residual stream
    num_query_heads: int  # H
    num_kv_heads: int  # KV; each serves H / KV query heads
    head_dim: int  # D, width of one head; H × D need not be E
    num_experts: int  # X
    num_experts_per_tok: int  # K, experts that each token visits
    moe_mlp_dim: int  # F, hidden width of one expert
    vocab_size: int  # V, of the whole model
    rope_max_timescale: float  # base of the rotary frequencies
    rope: Literal["default", "yarn"] = "default"  # how the frequencies are stretched for long contexts
    rope_original_context: int = 4096  # YaRN: context length that the unstretched frequencies were made for
    rope_factor: float = 32.0  # YaRN: by how much the context grew
    rope_beta_fast: float = 32.0  # YaRN: rotations in the original context above which a frequency stays as it is
    rope_beta_slow: float = 1.0  # YaRN: rotations below which it is divided by the whole factor
    rope_truncate: bool = False  # YaRN: round the bounds of the ramp between the two to whole dimensions
    rope_attention_scaling: bool = True  # YaRN: multiply cos and sin by 0.1·ln(factor) + 1
    sliding_window: int = 0  # tokens that a windowed layer sees; layers 0, 2, 4 … are windowed; 0: none is
    attention_sinks: bool = False  # one learned logit per query head joins each softmax
    qk_norm: bool = False  # RMSNorm over each head of q and k, before the rotation
    attention_bias: bool = False  # biases on the q, k, v and out projections
    expert_bias: bool = False  # biases on the router and on every expert's matmuls
    swiglu_limit: float = 0.0  # clamp of gate (above) and up (both sides) before the activation; 0: plain SwiGLU
    swiglu_alpha: float = 1.702  # slope of the clamped form's sigmoid; the plain form has none
    norm_topk_prob: bool = True  # the K routing weights of a token sum to one
    rms_norm_eps: float = 1e-6  # added to the mean square in every RMSNorm
    tie_embeddings: bool = False  # the unembedding is a matrix of its own

    def window_of(self, layer: int) -> int:
        """Tokens that `layer` (from 0) sees; 0 for all before it."""
        return self.sliding_window if layer % 2 == 0 else 0


_QWEN3 = ModelSpec(
    name="qwen3-30b-a3b",
    arch="qwen3_moe",
    num_layers=48,
    emb_dim=2048,
    num_query_heads=32,
    num_kv_heads=4,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_mlp_dim=768,
    vocab_size=151936,
    rope_max_timescale=1e7,
    qk_norm=True,
    rms_norm_eps=1e-6,
)

_GPT_OSS = ModelSpec(
    name="gpt-oss-20b",
    arch="gpt_oss",
    num_layers=24,
    emb_dim=2880,
    num_query_heads=64,
    num_kv_heads=8,
    head_dim=64,
    num_experts=32,
    num_experts_per_tok=4,
    moe_mlp_dim=2880,
    vocab_size=201088,
    rope_max_timescale=150_000.0,
    rope="yarn",
    sliding_window=128,
    attention_sinks=True,
    attention_bias=True,
    expert_bias=True,
    swiglu_limit=7.0,
    rms_norm_eps=1e-5,
)

# The same architectures at a size where a CPU takes a step in well under a second and, at 256 to 512 tokens, spends a
# good part of it in attention.
_TINY: dict[str, Any] = {
    "num_layers": 4,
    "emb_dim": 128,
    "num_query_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_mlp_dim": 64,
    "vocab_size": 512,
}

MODELS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _QWEN3,
        replace(_QWEN3, name="qwen3-30b-a3b-base", rope_max_timescale=1e6),
        _GPT_OSS,
        replace(_QWEN3, name="tiny-qwen3", **_TINY),
        replace(_GPT_OSS, name="tiny-gpt-oss", **_TINY, sliding_window=64),
    )
}

# MaxText's name of each part of a shape that student_overrides and teacher_overrides can change.
OVERRIDES: Mapping[str, str] = {
    "base_num_decoder_layers": "num_layers",
    "base_emb_dim": "emb_dim",
    "base_num_query_heads": "num_query_heads",
    "base_num_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "num_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "base_mlp_dim": "moe_mlp_dim",
    "base_moe_mlp_dim": "moe_mlp_dim",
    "vocab_size": "vocab_size",
    "rope_max_timescale": "rope_max_timescale",
    "sliding_window_size": "sliding_window",
    "normalization_layer_epsilon": "rms_norm_eps",
    "norm_topk_prob": "norm_topk_prob",
    "use_qk_norm": "qk_norm",
    "attention_bias": "attention_bias",
    "attention_sink": "attention_sinks",
    "mlp_activations_limit": "swiglu_limit",
}

# Override keys that say something other than a shape.
OTHER_OVERRIDES = ("model_name", "load_parameters_path")

_MAY_BE_ZERO = {"sliding_window", "swiglu_limit"}


def resolve(model_name: str, overrides: Mapping[str, Any], side: str) -> ModelSpec:
    """The named model with one side's overrides applied; keys that are not in OVERRIDES change nothing.

    Args:
        model_name: of the configuration; the overrides may name another model.
        overrides: MaxText's key names.
        side: student_overrides or teacher_overrides, for error messages.

    Raises:
        UsageError: an unknown model, or a value that the shape cannot have.
    """
    named_here = "model_name" in overrides
    name = overrides["model_name"] if named_here else model_name
    if name not in MODELS:
        raise bad(f"{side}.model_name" if named_here else "model_name", name, "one of " + ", ".join(MODELS))
    changes: dict[str, Any] = {}
    for key, value in overrides.items():
        part = OVERRIDES.get(key)
        if part is None:
            continue
        kind = type(getattr(MODELS[name], part))
        changes[part] = fit(f"{side}.{key}", kind, value)
        if kind is not bool and (changes[part] < 0 or (changes[part] == 0 and part not in _MAY_BE_ZERO)):
            raise bad(f"{side}.{key}", value, "at least 0" if part in _MAY_BE_ZERO else "more than 0")
    spec = replace(MODELS[name], **changes)
    if spec.num_query_heads % spec.num_kv_heads:
        raise bad(
            f"{side}.base_num_query_heads", spec.num_query_heads, f"a multiple of the {spec.num_kv_heads} kv heads"
        )
    if spec.head_dim % 2:
        raise bad(f"{side}.head_dim", spec.head_dim, "an even number: rotary embeddings turn pairs")
    if spec.num_experts_per_tok > spec.num_experts:
        raise bad(f"{side}.num_experts_per_tok", spec.num_experts_per_tok, f"at most the {spec.num_experts} experts")
    if spec.sliding_window and spec.num_layers % 2:
        raise bad(
            f"{side}.base_num_decoder_layers", spec.num_layers, "an even number: windowed and full layers alternate"
        )
    return spec
