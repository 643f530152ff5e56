"""The decoder: embedding, layers under a scan, final norm; and the unembedding."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distill import remat as rematerialisation
from distill.config import Config, ModelSpec
from distill.kernels import Kernels
from distill.mesh import AXES
from distill.model.attention import self_attention
from distill.model.moe import RouterStats, moe_block
from distill.model.norm import rms_norm
from distill.model.params import Params, cycle_length
from distill.model.rope import rotation

Scope = Literal["student", "teacher"]


class Output(NamedTuple):
    """What a forward pass returns."""

    hidden: jax.Array  # [B, T, E], after the final norm
    features: jax.Array | None  # [n, B, T, E], attention outputs of the n layers of config.feature_layers; None: n = 0
    router: RouterStats  # fraction and probability [L, X], z [L]


def forward(
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    spec: ModelSpec,
    config: Config,
    mesh: Mesh,
    scope: Scope,
    remat: bool,
    kernels: Kernels,
) -> Output:
    """Run a model on a batch.

    Args:
        params: as `param_specs` describes them, of any floating dtype; matmuls run in config.dtype.
        tokens: int32 [B, T].
        positions: int32 [B, T], of each token in its document; they turn q and k.
        segment_ids: int32 [B, T]; tokens see their own segment only. The router's statistics count every token.
        spec: shape of the model.
        config: dtype, feature_layers, and the rematerialisation policy.
        mesh: axes "data" and "fsdp", over which B is cut.
        scope: the outermost scope of every op, by which a trace tells the two models apart.
        remat: whether the layers are rematerialised; no use without a gradient.
        kernels: see distill.kernels.
    """
    dtype, act = jnp.dtype(config.dtype), NamedSharding(mesh, PartitionSpec(AXES, None, None))
    members = cycle_length(spec)
    parts: dict[str, Any] = {"spec": spec, "kernels": kernels, "mesh": mesh}

    def layer(x: jax.Array, params: Params, window: int) -> tuple[jax.Array, jax.Array, RouterStats]:
        """x [B, T, E] → x, the attention block's output [B, T, E], and the router's statistics."""
        x = checkpoint_name(jax.lax.with_sharding_constraint(x, act), "decoder_layer_input")
        with jax.named_scope("self_attention"):
            with jax.named_scope("norm"):
                h = rms_norm(x, params["attention_norm"], spec.rms_norm_eps)
            attended = self_attention(h, params["attention"], rotated, segment_ids, window=window, **parts)
        x = x + attended
        with jax.named_scope("moe_block"):
            with jax.named_scope("norm"):
                h = rms_norm(x, params["moe_norm"], spec.rms_norm_eps)
            mixed, stats = moe_block(h, params, **parts)
        return jax.lax.with_sharding_constraint(x + mixed, act), attended, stats

    def cycle(
        x: jax.Array, layers: tuple[Params, ...]
    ) -> tuple[jax.Array, tuple[tuple[jax.Array, ...], tuple[RouterStats, ...]]]:
        """The layers that differ, one after the other; features are kept only if some layer's are wanted."""
        features, stats = [], []
        for member, params in enumerate(layers):
            x, attended, layer_stats = layer(x, params, spec.window_of(member))
            features += [attended] if config.feature_layers else []
            stats.append(layer_stats)
        return x, (tuple(features), tuple(stats))

    body = cycle
    if remat:
        iterations = spec.num_layers // members
        body = rematerialisation.checkpointed(cycle, config, iterations=iterations, device=mesh.devices.flat[0])
    with jax.named_scope(scope):
        with jax.named_scope("embed"):
            x = jax.lax.with_sharding_constraint(params["embed"].astype(dtype)[tokens], act)
        with jax.named_scope("rope"):
            rotated = rotation(positions, spec)
        with jax.named_scope("layers"):
            x, (by_member, stats) = jax.lax.scan(body, x, params["layers"])
        with jax.named_scope("final_norm"):
            hidden = rms_norm(x, params["final_norm"], spec.rms_norm_eps)
        features = None
        if config.feature_layers:  # layer i is row i // members of member i % members
            with jax.named_scope("features"):
                features = jnp.stack([by_member[i % members][i // members] for i in config.feature_layers])
    return Output(hidden, features, jax.tree.map(_interleave, *stats))


def _interleave(*members: jax.Array) -> jax.Array:
    """One array [N, …] per member of the cycle → [L, …] in the order of the layers."""
    return jnp.stack(members, axis=1).reshape(-1, *members[0].shape[1:])


def logits(params: Params, hidden: jax.Array, spec: ModelSpec, config: Config) -> jax.Array:
    """Unembedding, hidden [B, T, E] → [B, T, V] in config.dtype, in the scope "logits".

    The caller's scope says whose they are: call it inside "student" or "teacher".
    """
    with jax.named_scope("logits"):
        head = params["embed"].T if spec.tie_embeddings else params["head"]  # [E, V]
        return jnp.einsum("bte,ev->btv", hidden, head.astype(jnp.dtype(config.dtype)))
