"""The mixture of experts of one layer: router, dispatch, the experts' matmuls, combination. No token is dropped.

Each device routes its own tokens: it sorts them by expert, runs grouped matmuls over the sorted rows with all experts'
matrices gathered (fsdp), and puts the results back.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from distill.config import ModelSpec
from distill.kernels import Kernels
from distill.mesh import AXES
from distill.model.params import Params

# The dimension along which a matrix of the experts, [X, E, F] or [X, F, E], is cut over fsdp: E. It is gathered by
# hand, since its gradient is then summed and scattered in one go; left to the compiler, every device gets all of it.
_CUT = {"wi_0": 1, "wi_1": 1, "wo": 2}


class RouterStats(NamedTuple):
    """What the router did, over the whole global batch; of one layer, or with a leading L for all.

    The load-balance loss of Switch Transformers (arXiv:2101.03961, equation 4), for K choices a token, is
    X · Σ_x (fraction / K) · probability, and 1 where all experts are used alike.
    """

    fraction: jax.Array  # float32 [X], choices of each expert per token, Σ_x = K; carries no gradient
    probability: jax.Array  # float32 [X], mean of the softmax over all experts, Σ_x = 1
    z: jax.Array  # float32 [], mean of logsumexp(router logits)² (ST-MoE, arXiv:2202.08906, equation 5)


def moe_block(
    x: jax.Array, params: Params, *, spec: ModelSpec, kernels: Kernels, mesh: Mesh
) -> tuple[jax.Array, RouterStats]:
    """The block's output [B, T, E], before the residual sum, and the layer's router statistics.

    Args:
        x: normalised residual stream [B, T, E]; its dtype is that of every matmul but the router's result (float32).
        params: one layer (model/params.py): `router` and `experts` are read.
        spec: shape of the model.
        kernels: the grouped matmul.
        mesh: axes "data" and "fsdp".
    """
    with jax.named_scope("router"):
        router = params["router"]
        logits = jnp.einsum("bte,ex->btx", x, router["kernel"].astype(x.dtype), preferred_element_type=jnp.float32)
        if "bias" in router:
            logits += router["bias"].astype(jnp.float32)
        probability = jnp.mean(jax.nn.softmax(logits, axis=-1), axis=(0, 1))
        z = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)

    def on_one_device(x: jax.Array, logits: jax.Array, experts: Params) -> tuple[jax.Array, jax.Array]:
        b, t, e = x.shape
        with jax.named_scope("gather_experts"):
            experts = {
                name: jax.lax.all_gather(w, "fsdp", axis=_CUT[name], tiled=True) if name in _CUT else w
                for name, w in experts.items()
            }
        out, counts = _routed(x.reshape(b * t, e), logits.reshape(b * t, -1), experts, spec, kernels)
        return out.reshape(b, t, e), counts[None]

    tokens, experts = PartitionSpec(AXES, None, None), params["experts"]
    pieces = {
        name: PartitionSpec(*[None] * _CUT[name], "fsdp") if name in _CUT else PartitionSpec() for name in experts
    }
    out, counts = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(tokens, tokens, pieces),
        out_specs=(tokens, PartitionSpec(AXES, None)),
        check_vma=False,
    )(x, logits, jax.tree.map(lambda w: w.astype(x.dtype), experts))
    with jax.named_scope("router"):
        fraction = jnp.sum(counts, axis=0).astype(jnp.float32) / (x.shape[0] * x.shape[1])
    return out, RouterStats(fraction, probability, z)


def _routed(
    x: jax.Array, logits: jax.Array, experts: Params, spec: ModelSpec, kernels: Kernels
) -> tuple[jax.Array, jax.Array]:
    """Output [n, E] and choices per expert int32 [X], from n tokens [n, E] and their router logits [n, X]."""
    K, X = spec.num_experts_per_tok, spec.num_experts
    with jax.named_scope("router"):
        weights, chosen = routing_weights(logits, spec)  # [n, K] both
    with jax.named_scope("dispatch"):
        flat = chosen.reshape(-1)  # [n·K], token by token
        order = jnp.argsort(flat, stable=True)  # sorted row → choice
        inverse = jnp.argsort(order)  # choice → sorted row
        sizes = jnp.sum(flat[:, None] == jnp.arange(X), axis=0, dtype=jnp.int32)  # [X]
        rows = _dispatch(x, order, inverse, K)  # [n·K, E]
        expert_of_row = flat[order] if spec.expert_bias else None

    def matmul(rows: jax.Array, name: str) -> jax.Array:
        with jax.named_scope(f"moe_{name}"):
            out = kernels.grouped_matmul(rows, experts[name], sizes, "wo" if name == "wo" else "wi")
            if expert_of_row is not None:
                out += experts[f"{name}_bias"][expert_of_row]
            return checkpoint_name(out, f"moe_mlp{name}")

    gate, up = matmul(rows, "wi_0"), matmul(rows, "wi_1")  # [n·K, F]
    with jax.named_scope("activation"):
        hidden = activation(gate, up, spec)
    rows = matmul(hidden, "wo")  # [n·K, E]
    with jax.named_scope("combine"):
        by_token = _collect(rows, order, inverse).reshape(-1, K, rows.shape[-1])
        out = jnp.einsum("nke,nk->ne", by_token, weights.astype(rows.dtype), preferred_element_type=jnp.float32)
    return out.astype(x.dtype), sizes


def routing_weights(logits: jax.Array, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    """Weights float32 [n, K] and experts int32 [n, K] of each token, from router logits [n, X].

    Normalised, they are the softmax over the K highest logits, which is the softmax over all divided by its sum over
    those K; else the softmax over all.
    """
    top, chosen = jax.lax.top_k(logits, spec.num_experts_per_tok)
    total = top if spec.norm_topk_prob else logits
    return jnp.exp(top - jax.nn.logsumexp(total, axis=-1, keepdims=True)), chosen


def activation(gate: jax.Array, up: jax.Array, spec: ModelSpec) -> jax.Array:
    """The experts' gated unit, [m, F] each: SwiGLU (arXiv:2002.05202), or the clamped form of gpt-oss.

    Clamped: gate ≤ limit, −limit ≤ up ≤ limit, gate · sigmoid(α · gate) · (up + 1).
    """
    if not spec.swiglu_limit:
        return jax.nn.silu(gate) * up
    gate = jnp.minimum(gate, spec.swiglu_limit)
    up = jnp.clip(up, -spec.swiglu_limit, spec.swiglu_limit)
    return gate * jax.nn.sigmoid(spec.swiglu_alpha * gate) * (up + 1)


# Both moves of rows are gathers by a permutation, and so are their gradients, by the inverse. JAX, which cannot know
# that no row is written twice, would scatter.


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dispatch(x: jax.Array, order: jax.Array, inverse: jax.Array, K: int) -> jax.Array:
    """Tokens [n, E] → one row per choice, sorted by expert [n·K, E]."""
    return x[order // K]


def _dispatch_forward(x: jax.Array, order: jax.Array, inverse: jax.Array, K: int) -> tuple[jax.Array, jax.Array]:
    return _dispatch(x, order, inverse, K), inverse


def _dispatch_backward(K: int, inverse: jax.Array, d_rows: jax.Array) -> tuple[jax.Array, None, None]:
    by_token = d_rows[inverse].reshape(-1, K, d_rows.shape[-1])  # [n, K, E]
    return jnp.sum(by_token, axis=1, dtype=jnp.float32).astype(d_rows.dtype), None, None


_dispatch.defvjp(_dispatch_forward, _dispatch_backward)


@jax.custom_vjp
def _collect(rows: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    """Rows sorted by expert [n·K, E] → in the order of the choices."""
    return rows[inverse]


def _collect_forward(rows: jax.Array, order: jax.Array, inverse: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _collect(rows, order, inverse), order


def _collect_backward(order: jax.Array, d_out: jax.Array) -> tuple[jax.Array, None, None]:
    return d_out[order], None, None


_collect.defvjp(_collect_forward, _collect_backward)
