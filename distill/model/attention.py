"""Self-attention of one layer: projections, q/k normalisation, rotation, the kernel, output projection."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from distill.config import ModelSpec
from distill.kernels import Kernels
from distill.mesh import AXES
from distill.model.norm import rms_norm
from distill.model.params import Params
from distill.model.rope import rotate


def self_attention(
    x: jax.Array,
    params: Params,
    rotated: tuple[jax.Array, jax.Array],
    segment_ids: jax.Array,
    *,
    spec: ModelSpec,
    kernels: Kernels,
    mesh: Mesh,
    window: int,
) -> jax.Array:
    """The attention block's output [B, T, E], before the residual sum.

    Args:
        x: normalised residual stream [B, T, E]; its dtype is that of every matmul.
        params: `attention` of one layer (model/params.py), without the stacked dimension.
        rotated: cos and sin of the positions [B, T, 1, D / 2].
        segment_ids: [B, T].
        spec: shape of the model.
        kernels: the attention kernel; it runs once per device on that device's sequences.
        mesh: axes "data" and "fsdp".
        window: tokens that a token sees; 0 for all before it.
    """
    q = _project(x, params, "query")  # [B, T, H, D]
    k = _project(x, params, "key")  # [B, T, KV, D]
    v = _project(x, params, "value")  # [B, T, KV, D]
    if spec.qk_norm:
        with jax.named_scope("qk_norm"):
            q = rms_norm(q, params["query_norm"], spec.rms_norm_eps)
            k = rms_norm(k, params["key_norm"], spec.rms_norm_eps)
    with jax.named_scope("rope"):
        q, k = rotate(q, rotated) * spec.head_dim**-0.5, rotate(k, rotated)
    q, k, v = (checkpoint_name(x, f"{name}_proj") for x, name in ((q, "query"), (k, "key"), (v, "value")))

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, sinks: jax.Array | None) -> jax.Array:
        return kernels.attention(q, k, v, segment_ids, sinks, window=window)

    heads = PartitionSpec(AXES, None, None, None)
    context = jax.shard_map(
        kernel,
        mesh=mesh,
        in_specs=(heads, heads, heads, PartitionSpec(AXES, None), PartitionSpec()),
        out_specs=heads,
        check_vma=False,
    )(q, k, v, segment_ids, params.get("sinks"))
    with jax.named_scope("out_proj"):
        out = jnp.einsum("bthd,hde->bte", context, params["out"].astype(x.dtype))
        if "out_bias" in params:
            out += params["out_bias"].astype(x.dtype)
    return checkpoint_name(out, "out_proj")


def _project(x: jax.Array, params: Params, name: str) -> jax.Array:
    """x [B, T, E] × kernel [E, heads, D] (+ bias [heads, D]) → [B, T, heads, D]."""
    with jax.named_scope(f"{name}_proj"):
        out = jnp.einsum("bte,ehd->bthd", x, params[name].astype(x.dtype))
        bias = params.get(f"{name}_bias")
        return out if bias is None else out + bias.astype(x.dtype)
