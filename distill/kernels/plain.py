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
        qs, ks, vs = _rows(q, k), _rows(k, k), _rows(v, k)
        with jax.named_scope("qk"):  # one dot per forward pass: what a trace counts as one call
            scores = jnp.einsum("nmd,nsd->nms", qs, ks, preferred_element_type=jnp.float32)
        scores = jnp.where(_tiled(attention_mask(segment_ids, window), q, k), scores, _MASKED)
        highest = jnp.max(scores, axis=-1)  # [N, M]
        if sinks is not None:
            highest = jnp.maximum(highest, _sink_rows(sinks, q, k))
        weights = jnp.exp(scores - highest[..., None])
        total = jnp.sum(weights, axis=-1)
        if sinks is not None:
            total += jnp.exp(_sink_rows(sinks, q, k) - highest)
        weights = (weights / total[..., None]).astype(v.dtype)
        out = jnp.einsum("nms,nsd->nmd", weights, vs, preferred_element_type=jnp.float32)
        out = checkpoint_name(_heads(out, q, k).astype(q.dtype), CONTEXT)
        log_sum_exp = checkpoint_name(highest + jnp.log(total), CONTEXT)
    return out, (q, k, v, segment_ids, sinks, out, log_sum_exp)


def _backward(
    window: int, residuals: Residuals, d_out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, jax.Array | None]:
    q, k, v, segment_ids, sinks, out, log_sum_exp = residuals
    with jax.named_scope("attention_backward"):
        qs, ks, vs, d_outs = _rows(q, k), _rows(k, k), _rows(v, k), _rows(d_out, k)
        # k·qᵀ, keys first: written as in the forward pass, the compiler would merge it with a re-run of that one.
        scores = jnp.einsum("nsd,nmd->nsm", ks, qs, preferred_element_type=jnp.float32)
        mask = _tiled(attention_mask(segment_ids, window), q, k).swapaxes(1, 2)
        weights = jnp.where(mask, jnp.exp(scores - log_sum_exp[:, None]), 0.0)  # [N, S, M]
        # Σ_s weight · d_weight = d_out · out, the row sum that the softmax's derivative subtracts.
        mean = jnp.einsum("nmd,nmd->nm", d_outs, _rows(out, k), preferred_element_type=jnp.float32)
        d_weights = jnp.einsum("nsd,nmd->nsm", vs, d_outs, preferred_element_type=jnp.float32)
        d_scores = (weights * (d_weights - mean[:, None])).astype(q.dtype)
        dq = jnp.einsum("nsm,nsd->nmd", d_scores, ks, preferred_element_type=jnp.float32)
        dk = jnp.einsum("nsm,nmd->nsd", d_scores, qs, preferred_element_type=jnp.float32)
        dv = jnp.einsum("nsm,nmd->nsd", weights.astype(q.dtype), d_outs, preferred_element_type=jnp.float32)
        d_sinks = None
        if sinks is not None:  # the sink's weight is exp(sink − lse), and its value is zero
            by_row = jnp.exp(_sink_rows(sinks, q, k) - log_sum_exp) * mean
            d_sinks = -jnp.sum(_heads(by_row[..., None], q, k), axis=(0, 1, 3)).astype(sinks.dtype)
        dq, dk, dv = (_heads(d, x, k).astype(x.dtype) for d, x in ((dq, q), (dk, k), (dv, v)))
    return dq, dk, dv, None, d_sinks


_attention.defvjp(_forward, _backward)


# Inside, every matmul has one batch dimension N = B · KV, sequences times key heads, and M = H / KV · T query rows. A
# compiler rewrites dots with several batch dimensions or dimensions of size one, and their names may get lost.


def _rows(x: jax.Array, k: jax.Array) -> jax.Array:
    """x [B, T, heads, D] → [N, heads / KV · T, D]: the query heads of one key head are more rows."""
    B, T, heads, D = x.shape
    KV = k.shape[2]
    return x.reshape(B, T, KV, heads // KV, D).transpose(0, 2, 3, 1, 4).reshape(B * KV, -1, D)


def _heads(rows: jax.Array, like: jax.Array, k: jax.Array) -> jax.Array:
    """The way back: rows [N, heads / KV · T, D] → [B, T, heads, D], with B, T and heads of `like`."""
    B, T, heads, _ = like.shape
    KV = k.shape[2]
    return rows.reshape(B, KV, heads // KV, T, -1).transpose(0, 3, 1, 2, 4).reshape(B, T, heads, -1)


def _tiled(mask: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
    """mask [B, T, S] → [N, M, S]."""
    B, T, H, _ = q.shape
    KV = k.shape[2]
    return jnp.broadcast_to(mask[:, None, None], (B, KV, H // KV, T, T)).reshape(B * KV, -1, T)


def _sink_rows(sinks: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
    """sinks [H] beside every row of scores, float32 [N, M]."""
    B, T, H, _ = q.shape
    return jnp.broadcast_to(sinks.astype(jnp.float32)[:, None], (B, H, T)).reshape(B * k.shape[2], -1)
