"""Attention in plain JAX, with the residuals of a flash kernel: the reference and the CPU's kernel.

The forward pass keeps (q, k, v, out, log-sum-exp) for the backward pass, which computes the probabilities again from
the log-sum-exp, as FlashAttention-2 does (arXiv:2307.08691, section 3.1). out and log-sum-exp carry the checkpoint name
"context" inside the forward rule: a remat policy that saves "context" then has no reason to run the forward pass again.
A name on the output outside of the rule would save the output alone, and the log-sum-exp would still need the pass.

A sink is one more logit per head that takes part in the softmax and has no value (gpt-oss, arXiv:2508.10925).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

CONTEXT = "context"  # checkpoint name of every attention kernel's output and log-sum-exp
_MASKED = -1e30  # a logit that no softmax sees; finite, so that no difference of two is NaN

Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array, jax.Array]


def attention_mask(segment_ids: jax.Array, window: int) -> jax.Array:
    """Who may see whom, bool [B, T, S], from segment ids [B, T]: the own segment, up to oneself.

    Args:
        segment_ids: tokens of one document have one id.
        window: tokens that a token sees, itself included; 0 for all before it.
    """
    T = segment_ids.shape[1]
    distance = jnp.arange(T)[:, None] - jnp.arange(T)[None, :]  # [T, S], 0 on the diagonal, positive to the past
    seen = (distance >= 0) & (distance < window if window else True)
    return seen[None] & (segment_ids[:, :, None] == segment_ids[:, None, :])


def plain_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, sinks: jax.Array | None, *, window: int
) -> jax.Array:
    """softmax(q·kᵀ)·v under the causal, segment and window mask, [B, T, H, D] in q's dtype; scores in float32.

    Args:
        q: [B, T, H, D], scaled already.
        k: [B, T, KV, D]; each head serves H / KV query heads.
        v: [B, T, KV, D].
        segment_ids: [B, T].
        sinks: [H], or None.
        window: see `attention_mask`.
    """
    return _attention(q, k, v, segment_ids, sinks, window)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, sinks: jax.Array | None, window: int
) -> jax.Array:
    return _forward(q, k, v, segment_ids, sinks, window)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, sinks: jax.Array | None, window: int
) -> tuple[jax.Array, Residuals]:
    with jax.named_scope("attention_forward"):
        grouped = _grouped(q, k)  # [B, T, G, R, D]
        with jax.named_scope("qk"):  # one dot per forward pass: what a trace counts as one call
            scores = jnp.einsum("btgrd,bsgd->bgrts", grouped, k, preferred_element_type=jnp.float32)
        scores = jnp.where(attention_mask(segment_ids, window)[:, None, None], scores, _MASKED)
        highest = jnp.max(scores, axis=-1)  # [B, G, R, T]
        if sinks is not None:
            highest = jnp.maximum(highest, _sinks(sinks, k))
        weights = jnp.exp(scores - highest[..., None])
        total = jnp.sum(weights, axis=-1)
        if sinks is not None:
            total += jnp.exp(_sinks(sinks, k) - highest)
        weights = (weights / total[..., None]).astype(v.dtype)
        out = jnp.einsum("bgrts,bsgd->btgrd", weights, v, preferred_element_type=jnp.float32)
        out = checkpoint_name(out.reshape(q.shape).astype(q.dtype), CONTEXT)
        log_sum_exp = checkpoint_name(highest + jnp.log(total), CONTEXT)  # [B, G, R, T]
    return out, (q, k, v, segment_ids, sinks, out, log_sum_exp)


def _backward(
    window: int, residuals: Residuals, d_out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, jax.Array | None]:
    q, k, v, segment_ids, sinks, out, log_sum_exp = residuals
    with jax.named_scope("attention_backward"):
        grouped, d_grouped = _grouped(q, k), _grouped(d_out, k)
        # k·qᵀ, keys first: written as in the forward pass, the compiler would merge it with a re-run of that one.
        scores = jnp.einsum("bsgd,btgrd->bgrst", k, grouped, preferred_element_type=jnp.float32)
        mask = attention_mask(segment_ids, window).swapaxes(1, 2)[:, None, None]
        weights = jnp.where(mask, jnp.exp(scores - log_sum_exp[..., None, :]), 0.0)  # [B, G, R, S, T]
        # Σ_s weight · d_weight = d_out · out, the row sum that the softmax's derivative subtracts.
        mean = jnp.einsum("btgrd,btgrd->bgrt", d_grouped, _grouped(out, k), preferred_element_type=jnp.float32)
        d_weights = jnp.einsum("bsgd,btgrd->bgrst", v, d_grouped, preferred_element_type=jnp.float32)
        d_scores = (weights * (d_weights - mean[..., None, :])).astype(q.dtype)
        dq = jnp.einsum("bgrst,bsgd->btgrd", d_scores, k, preferred_element_type=jnp.float32)
        dk = jnp.einsum("bgrst,btgrd->bsgd", d_scores, grouped, preferred_element_type=jnp.float32)
        dv = jnp.einsum("bgrst,btgrd->bsgd", weights.astype(q.dtype), d_grouped, preferred_element_type=jnp.float32)
        d_sinks = None
        if sinks is not None:  # the sink's weight is exp(sink − lse), and its value is zero
            d_sinks = -jnp.sum(jnp.exp(_sinks(sinks, k) - log_sum_exp) * mean, axis=(0, 3))
            d_sinks = d_sinks.reshape(sinks.shape).astype(sinks.dtype)
    return dq.reshape(q.shape).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, d_sinks


_attention.defvjp(_forward, _backward)


def _grouped(x: jax.Array, k: jax.Array) -> jax.Array:
    """x [B, T, H, D] with the heads by the key head that serves them, [B, T, G = KV, R = H / KV, D]."""
    B, T, H, D = x.shape
    return x.reshape(B, T, k.shape[2], H // k.shape[2], D)


def _sinks(sinks: jax.Array, k: jax.Array) -> jax.Array:
    """sinks [H] beside scores, float32 [1, G, R, 1]."""
    return sinks.astype(jnp.float32).reshape(1, k.shape[2], -1, 1)
