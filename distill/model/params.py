"""The parameters of a model: their shapes, where they lie on the mesh, how they start.

A model is a dict. `layers` is a tuple with one member per layer of the cycle that the scan repeats: one for qwen3, two
for gpt-oss (windowed, full). A member stacks its layers on a leading dimension N = L / members:

    embed     [V, E]        head [E, V] (absent where the embeddings are tied)        final_norm [E]
    layers    ({attention_norm [N, E], moe_norm [N, E],
                attention: {query [N, E, H, D], key [N, E, KV, D], value [N, E, KV, D], out [N, H, D, E],
                            query_norm [N, D], key_norm [N, D],                              (qk_norm)
                            query_bias [N, H, D], key_bias, value_bias [N, KV, D], out_bias [N, E], (attention_bias)
                            sinks [N, H]},                                                   (attention_sinks)
                router: {kernel [N, E, X], bias [N, X]},                                     (bias: expert_bias)
                experts: {wi_0 [N, X, E, F], wi_1 [N, X, E, F], wo [N, X, F, E],
                          wi_0_bias [N, X, F], wi_1_bias [N, X, F], wo_bias [N, X, E]}}, …)  (expert_bias)

Every matrix is cut along its E dimension over the mesh axis "fsdp" and whole over "data" (MaxText's rule for fsdp);
vectors and biases are whole everywhere.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distill.config import ModelSpec
from profiler.errors import UsageError

Params = dict[str, Any]


@dataclass(frozen=True)
class Init:
    """How a parameter starts: all zeros, all ones, or normal values of standard deviation `std` cut at 2 std."""

    kind: Literal["zeros", "ones", "normal"]
    std: float = 0.0

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        """The first value, drawn in float32 whatever the dtype."""
        if self.kind == "normal":
            return (self.std * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)).astype(dtype)
        return jnp.full(shape, 1.0 if self.kind == "ones" else 0.0, dtype)


@dataclass(frozen=True)
class ParamSpec:
    """One parameter; a leaf of the pytree that `param_specs` returns."""

    shape: tuple[int, ...]
    partition: PartitionSpec  # over the mesh axes "data" and "fsdp"
    init: Init
    decay: bool  # whether weight decay applies: matrices yes; norms, biases and sinks no


def cycle_length(spec: ModelSpec) -> int:
    """Layers that differ from each other and that the scan repeats: 2 where windowed and full attention alternate."""
    return 2 if spec.sliding_window else 1


def param_specs(spec: ModelSpec) -> Params:
    """The pytree of ParamSpec of one model, in the structure that the module describes."""
    E, V = spec.emb_dim, spec.vocab_size
    members = cycle_length(spec)
    specs: Params = {
        "embed": ParamSpec((V, E), PartitionSpec(None, "fsdp"), Init("normal", 0.02), decay=True),
        "layers": tuple(_layer(spec, spec.num_layers // members) for _ in range(members)),
        "final_norm": _vector((E,), "ones"),
    }
    if not spec.tie_embeddings:
        specs["head"] = _matrix((E, V), fan_in=E, cut=0)
    return specs


def _layer(spec: ModelSpec, N: int) -> Params:
    """One member of the cycle, N layers stacked."""
    E, X, F = spec.emb_dim, spec.num_experts, spec.moe_mlp_dim
    H, KV, D = spec.num_query_heads, spec.num_kv_heads, spec.head_dim
    attention = {
        "query": _matrix((N, E, H, D), fan_in=E, cut=1),
        "key": _matrix((N, E, KV, D), fan_in=E, cut=1),
        "value": _matrix((N, E, KV, D), fan_in=E, cut=1),
        "out": _matrix((N, H, D, E), fan_in=H * D, cut=3),
    }
    router = {"kernel": _matrix((N, E, X), fan_in=E, cut=1)}
    experts = {
        "wi_0": _matrix((N, X, E, F), fan_in=E, cut=2),
        "wi_1": _matrix((N, X, E, F), fan_in=E, cut=2),
        "wo": _matrix((N, X, F, E), fan_in=F, cut=3),
    }
    if spec.qk_norm:
        attention |= {"query_norm": _vector((N, D), "ones"), "key_norm": _vector((N, D), "ones")}
    if spec.attention_bias:
        attention |= {
            "query_bias": _vector((N, H, D), "zeros"),
            "key_bias": _vector((N, KV, D), "zeros"),
            "value_bias": _vector((N, KV, D), "zeros"),
            "out_bias": _vector((N, E), "zeros"),
        }
    if spec.attention_sinks:
        attention["sinks"] = _vector((N, H), "zeros")
    if spec.expert_bias:
        router["bias"] = _vector((N, X), "zeros")
        experts |= {
            "wi_0_bias": _vector((N, X, F), "zeros"),
            "wi_1_bias": _vector((N, X, F), "zeros"),
            "wo_bias": _vector((N, X, E), "zeros"),
        }
    return {
        "attention_norm": _vector((N, E), "ones"),
        "moe_norm": _vector((N, E), "ones"),
        "attention": attention,
        "router": router,
        "experts": experts,
    }


def _matrix(shape: tuple[int, ...], *, fan_in: int, cut: int) -> ParamSpec:
    """A matrix that starts with variance 1 / fan_in and is cut along dimension `cut` over fsdp."""
    partition = PartitionSpec(*("fsdp" if i == cut else None for i in range(len(shape))))
    return ParamSpec(shape, partition, Init("normal", 1 / math.sqrt(fan_in)), decay=True)


def _vector(shape: tuple[int, ...], kind: Literal["zeros", "ones"]) -> ParamSpec:
    return ParamSpec(shape, PartitionSpec(), Init(kind), decay=False)


def init_params(spec: ModelSpec, key: jax.Array, dtype: jnp.dtype) -> Params:
    """First values of a model. A parameter's value hangs on the key, its path and its shape alone, not on the mesh.

    Pure: under `jax.jit(…, out_shardings=param_shardings(spec, mesh))` no device ever holds a whole matrix.
    """

    def start(path: tuple[Any, ...], leaf: ParamSpec) -> jax.Array:
        name = jax.tree_util.keystr(path).encode()
        return leaf.init(jax.random.fold_in(key, zlib.crc32(name)), leaf.shape, dtype)

    return jax.tree_util.tree_map_with_path(start, param_specs(spec))


def param_shardings(spec: ModelSpec, mesh: Mesh) -> Params:
    """The pytree of NamedSharding of one model.

    Raises:
        UsageError: E is no multiple of the fsdp axis, so that the matrices cannot be cut evenly.
    """
    if spec.emb_dim % mesh.shape["fsdp"]:
        raise UsageError(
            f"emb_dim {spec.emb_dim} of {spec.name} cannot be cut into {mesh.shape['fsdp']} equal parts",
            file="ici_fsdp_parallelism",
            remedy="choose a divisor of emb_dim",
        )
    return jax.tree.map(lambda leaf: NamedSharding(mesh, leaf.partition), param_specs(spec))
