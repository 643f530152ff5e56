"""Root-mean-square normalisation."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x [..., E] / sqrt(mean(x²) + ε) · weight [E], in float32 inside and x's dtype outside (arXiv:1910.07467)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * weight.astype(jnp.float32)).astype(x.dtype)
