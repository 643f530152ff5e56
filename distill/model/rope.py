"""Rotary position embeddings: plain, and stretched for long contexts with YaRN.

Sources: RoFormer (arXiv:2104.09864); YaRN (arXiv:2309.00071), sections 3.2 to 3.4.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from distill.config import ModelSpec


def inverse_frequencies(spec: ModelSpec) -> np.ndarray:
    """Radians per token of each of the D / 2 rotated pairs, float64 [D / 2].

    Plain: θ_i = base^(−2i / D). YaRN divides θ_i by the factor where the pair turns fewer than beta_slow times in the
    original context, leaves it where it turns more than beta_fast times, and ramps linearly in i between.
    """
    D, base = spec.head_dim, spec.rope_max_timescale
    pairs = np.arange(D // 2)
    plain = base ** (-2.0 * pairs / D)
    if spec.rope == "default":
        return plain

    def pair_that_turns(rotations: float) -> float:
        """The (fractional) pair i that turns so many times in the original context: context · θ_i = 2π · rotations."""
        return D * math.log(spec.rope_original_context / (2 * math.pi * rotations)) / (2 * math.log(base))

    low, high = pair_that_turns(spec.rope_beta_fast), pair_that_turns(spec.rope_beta_slow)
    if spec.rope_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, D - 1.0)
    stretched = np.clip((pairs - low) / max(high - low, 1e-3), 0.0, 1.0)  # 0: as it is, 1: divided by the factor
    return plain * (1 - stretched) + plain / spec.rope_factor * stretched


def attention_scaling(spec: ModelSpec) -> float:
    """What cos and sin are multiplied by: YaRN's 0.1 · ln(factor) + 1 (arXiv:2309.00071, equation 22), else 1."""
    stretched = spec.rope == "yarn" and spec.rope_attention_scaling and spec.rope_factor > 1
    return 0.1 * math.log(spec.rope_factor) + 1.0 if stretched else 1.0


def rotation(positions: jax.Array, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    """cos and sin of every position's angles, float32 [B, T, 1, D / 2] each, from positions [B, T]."""
    theta = jnp.asarray(inverse_frequencies(spec), jnp.float32)
    angles = positions.astype(jnp.float32)[:, :, None, None] * theta
    scale = attention_scaling(spec)
    return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def rotate(x: jax.Array, rotated: tuple[jax.Array, jax.Array]) -> jax.Array:
    """x [B, T, heads, D] with pair i = (x[i], x[i + D / 2]) turned; computed in float32, returned in x's dtype."""
    cos, sin = rotated
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1).astype(x.dtype)
