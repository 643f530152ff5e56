"""Fused attention on NVIDIA GPUs: cuDNN's, through jax.nn.dot_product_attention.

cuDNN's backward rule keeps its output and log-sum-exp without a name, so that a remat policy cannot save them.
`with_named_residuals` names them from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from distill.kernels.plain import CONTEXT, attention_mask, plain_attention

# The bias of a token that must not be looked at. cuDNN goes wrong on differences of two values near bfloat16's lowest.
_MASKED = -(2.0**41)


Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]  # (q, k, v, bias) → out


def with_named_residuals(kernel: Kernel, name: str) -> Kernel:
    """The kernel, with its output and everything else that its backward pass reads under a checkpoint name.

    The kernel is differentiated inside the forward rule, and the arrays that its backward function holds are named
    there, except for the arguments. The bias gets no gradient.
    """

    @jax.custom_vjp
    def named(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
        return kernel(q, k, v, bias)

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
        out, pull_back = jax.vjp(lambda q, k, v: kernel(q, k, v, bias), q, k, v)
        arrays, tree = jax.tree.flatten(pull_back)
        done = {id(x): x for x in (q, k, v, bias)} | {id(out): checkpoint_name(out, name)}
        kept = [done[id(x)] if id(x) in done else checkpoint_name(x, name) for x in arrays]
        return done[id(out)], jax.tree.unflatten(tree, kept)

    def backward(pull_back: Any, d_out: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
        return *pull_back(d_out), None

    named.defvjp(forward, backward)
    return named


def supports(q: jax.Array, sinks: jax.Array | None) -> bool:
    """Whether cuDNN has a kernel: bfloat16, no sinks, and heads of at most 128 in multiples of 8."""
    return q.dtype == jnp.bfloat16 and sinks is None and q.shape[-1] <= 128 and q.shape[-1] % 8 == 0


def fused_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, sinks: jax.Array | None, *, window: int
) -> jax.Array:
    """Attention with the interface of `plain_attention`: cuDNN's where it has a kernel, else the plain one.

    cuDNN has no segments: they go in as a bias [B, 1, T, T] in bfloat16, with the rest of the mask.
    """
    if not supports(q, sinks):
        return plain_attention(q, k, v, segment_ids, sinks, window=window)

    def cudnn(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, bias=bias, scale=1.0, implementation="cudnn")

    with jax.named_scope("cudnn_attention"):
        seen = attention_mask(segment_ids, window)[:, None]
        bias = jnp.where(seen, 0.0, _MASKED).astype(q.dtype)
        return with_named_residuals(cudnn, CONTEXT)(q, k, v, bias)
