"""Both architectures against a model written out plainly: one head, one expert at a time, every token through each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from distill.config import MODELS, Config, ModelSpec
from distill.kernels import select
from distill.model import Output, Params, ParamSpec, RouterStats, forward, logits, param_specs
from distill.model.moe import routing_weights
from distill.model.rope import inverse_frequencies

B, T = 2, 12
SMALL = {
    "num_layers": 2,
    "emb_dim": 16,
    "num_query_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_mlp_dim": 12,
    "vocab_size": 32,
}
SPECS = {
    "qwen3": replace(MODELS["tiny-qwen3"], **SMALL),
    "gpt-oss": replace(MODELS["tiny-gpt-oss"], **SMALL, sliding_window=3, rope_original_context=64, swiglu_limit=0.5),
}
CONFIG = Config(dtype="float32", distill_beta=1.0, distill_layer_indices=(1, 0))


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))


def shaken(spec: ModelSpec) -> Params:
    """Parameters with every bias, sink and norm away from its first value."""
    noise = np.random.default_rng(1)

    def value(leaf: ParamSpec) -> jax.Array:
        spread = leaf.init.std or 0.3
        return jnp.array(spread * noise.standard_normal(leaf.shape, np.float32) + (leaf.init.kind == "ones"))

    return jax.tree.map(value, param_specs(spec))


def batch() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and segment ids [B, T]: two documents in each sequence."""
    tokens = jax.random.randint(jax.random.key(2), (B, T), 0, SMALL["vocab_size"])
    segments = np.array([[1] * 5 + [2] * 7, [1] * 9 + [2] * 3], np.int32)
    positions = np.array([[*range(5), *range(7)], [*range(9), *range(3)]], np.int32)
    return tokens, jnp.array(positions), jnp.array(segments)


def run(spec: ModelSpec, params: Params, config: Config = CONFIG) -> Output:
    return forward(
        params,
        *batch(),
        spec=spec,
        config=config,
        mesh=one_device(),
        scope="student",
        remat=False,
        kernels=select(config, "cpu"),
    )


class WrittenOut:
    """The same model from the public descriptions of qwen3-MoE and gpt-oss: one head and one expert at a time."""

    def __init__(self, spec: ModelSpec):
        self.spec = spec

    def norm(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + self.spec.rms_norm_eps) * weight

    def frequency(self, pair: int) -> float:
        """Radians per token. The ramp of YaRN is linear in the index of the pair, so in the logarithm of its turns."""
        spec = self.spec
        plain = spec.rope_max_timescale ** (-2 * pair / spec.head_dim)
        if spec.rope == "default":
            return plain
        fast, slow = math.log(spec.rope_beta_fast), math.log(spec.rope_beta_slow)
        fast = min(
            fast, math.log(spec.rope_original_context / (2 * math.pi))
        )  # the ramp starts at pair 0 at the earliest
        turns = math.log(spec.rope_original_context * plain / (2 * math.pi))
        kept = min(max((turns - slow) / (fast - slow), 0.0), 1.0)
        return plain * (kept + (1 - kept) / spec.rope_factor)

    def rotate(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """x [B, T, D] of one head; pair i as the complex number x[i] + j·x[i + D/2]."""
        half = self.spec.head_dim // 2
        scale = 1.0 if self.spec.rope == "default" else 0.1 * math.log(self.spec.rope_factor) + 1
        angles = positions[..., None] * jnp.array([self.frequency(i) for i in range(half)])
        turned = (x[..., :half] + 1j * x[..., half:]) * jnp.exp(1j * angles) * scale
        return jnp.concatenate([turned.real, turned.imag], axis=-1)

    def head(self, x: jax.Array, p: Params, name: str, h: int, positions: jax.Array) -> jax.Array:
        y = x @ p[name][:, h]  # [B, T, D]
        if self.spec.attention_bias:
            y += p[f"{name}_bias"][h]
        if name == "value":
            return y
        if self.spec.qk_norm:
            y = self.norm(y, p[f"{name}_norm"])
        return self.rotate(y, positions)

    def attention(self, x: jax.Array, p: Params, positions: jax.Array, segments: jax.Array, window: int) -> jax.Array:
        spec = self.spec
        out = p["out_bias"] if spec.attention_bias else 0.0
        far = np.subtract.outer(np.arange(T), np.arange(T))
        sees = (far >= 0) & (far < (window or T)) & (segments[:, :, None] == segments[:, None, :])
        for h in range(spec.num_query_heads):
            kv = h * spec.num_kv_heads // spec.num_query_heads
            q = self.head(x, p, "query", h, positions)
            k, v = (self.head(x, p, name, kv, positions) for name in ("key", "value"))
            weights = jnp.where(sees, jnp.exp(q @ k.swapaxes(1, 2) / math.sqrt(spec.head_dim)), 0.0)
            total = weights.sum(-1, keepdims=True) + (jnp.exp(p["sinks"][h]) if spec.attention_sinks else 0.0)
            out = out + weights / total @ v @ p["out"][h]
        return out

    def expert(self, x: jax.Array, p: Params, i: int) -> jax.Array:
        spec = self.spec
        gate, up = x @ p["wi_0"][i], x @ p["wi_1"][i]
        if not spec.expert_bias:
            return (gate / (1 + jnp.exp(-gate)) * up) @ p["wo"][i]
        gate = jnp.minimum(gate + p["wi_0_bias"][i], spec.swiglu_limit)
        up = jnp.clip(up + p["wi_1_bias"][i], -spec.swiglu_limit, spec.swiglu_limit)
        return (gate / (1 + jnp.exp(-1.702 * gate)) * (up + 1)) @ p["wo"][i] + p["wo_bias"][i]

    def moe(self, x: jax.Array, p: Params) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Output, and over all tokens: choices and mean probability per expert, squared log-sum-exp."""
        scores = x @ p["router"]["kernel"] + (p["router"]["bias"] if self.spec.expert_bias else 0.0)
        rank = jnp.argsort(jnp.argsort(-scores))
        chosen = rank < self.spec.num_experts_per_tok
        weights = jnp.where(chosen, jnp.exp(scores), 0.0)
        weights = weights / weights.sum(-1, keepdims=True)
        out = sum(weights[..., i, None] * self.expert(x, p["experts"], i) for i in range(self.spec.num_experts))
        probability = jnp.exp(scores) / jnp.exp(scores).sum(-1, keepdims=True)
        z = jnp.log(jnp.exp(scores).sum(-1)) ** 2
        return out, (chosen.mean((0, 1)), probability.mean((0, 1)), z.mean())

    def __call__(self, params: Params) -> Output:
        tokens, positions, segments = batch()
        x = params["embed"][tokens]  # [B, T, E]
        features, stats = [], []
        members = params["layers"]
        for i in range(self.spec.num_layers):
            p = jax.tree.map(lambda w, i=i: w[i // len(members)], members[i % len(members)])
            window = self.spec.sliding_window if i % 2 == 0 else 0
            h = self.norm(x, p["attention_norm"])
            features.append(self.attention(h, p["attention"], positions, segments, window))
            x = x + features[-1]
            mixed, stat = self.moe(self.norm(x, p["moe_norm"]), p)
            x = x + mixed
            stats.append(stat)
        router = RouterStats(*(jnp.stack(part) for part in zip(*stats, strict=True)))
        wanted = jnp.stack([features[i] for i in CONFIG.distill_layer_indices])
        return Output(self.norm(x, params["final_norm"]), wanted, router)


@pytest.mark.parametrize("name", SPECS)
def test_a_model_computes_what_its_description_says(name: str) -> None:
    spec = SPECS[name]
    params = shaken(spec)

    def everything(model: Callable[[Params], Output], params: Params) -> tuple[Any, Params]:
        """The output and logits, and the gradient of a sum that every part of them takes part in."""

        def total(params: Params) -> tuple[jax.Array, Any]:
            out = model(params)
            result = out, logits(params, out.hidden, spec, CONFIG)
            parts = (out.hidden, out.features, out.router.probability[:, 0], out.router.z, result[1])
            return sum(jnp.sin(part).sum() for part in parts), result

        gradient, result = jax.grad(total, has_aux=True)(params)
        return result, gradient

    with jax.default_matmul_precision("highest"):
        found = jax.jit(partial(everything, partial(run, spec)))(params)
        expected = jax.jit(partial(everything, WrittenOut(spec)))(params)
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, b), a in zip(paths, jax.tree.leaves(found), strict=True):
        limit = 1e-4 * float(jnp.abs(b).max())  # rounding of float32 through the sums of a whole model
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=limit, err_msg=jax.tree_util.keystr(path))


def test_no_features_are_kept_without_a_feature_loss() -> None:
    config = Config(dtype="float32")
    assert run(SPECS["qwen3"], shaken(SPECS["qwen3"]), config).features is None


def test_without_normalisation_the_routing_weights_are_the_softmax_over_all_experts() -> None:
    scores = jnp.array([[1.0, 2.0, 0.5, -1.0]])
    weights, chosen = routing_weights(scores, replace(SPECS["qwen3"], norm_topk_prob=False))
    assert chosen.tolist() == [[1, 0]]
    np.testing.assert_allclose(weights[0], jax.nn.softmax(scores[0])[jnp.array([1, 0])], rtol=1e-6)


def test_yarn_leaves_fast_pairs_alone_and_slows_the_others_by_the_factor() -> None:
    spec = MODELS["gpt-oss-20b"]
    pairs = np.arange(spec.head_dim // 2)
    plain = spec.rope_max_timescale ** (-2 * pairs / spec.head_dim)
    ratio = inverse_frequencies(spec) / plain
    turns = spec.rope_original_context * plain / (2 * np.pi)
    np.testing.assert_allclose(ratio[turns > spec.rope_beta_fast], 1.0)
    np.testing.assert_allclose(ratio[turns < spec.rope_beta_slow], 1 / spec.rope_factor)
    assert np.all(np.diff(ratio) <= 1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_every_part_of_a_model_has_a_scope_of_its_own(name: str) -> None:
    spec = SPECS[name]

    def hidden(params: Params) -> jax.Array:
        out = run(spec, params)
        with jax.named_scope("student"):
            return logits(params, out.hidden, spec, CONFIG)

    text = jax.jit(hidden).lower(shaken(spec)).as_text(debug_info=True)
    for scope in (
        "student/embed",
        "student/layers",
        "self_attention/query_proj",
        "self_attention/rope",
        "self_attention/attention_forward/qk",
        "self_attention/out_proj",
        "moe_block/router",
        "moe_block/dispatch",
        "moe_block/moe_wi_0",
        "moe_block/moe_wi_1",
        "moe_block/moe_wo",
        "moe_block/combine",
        "student/final_norm",
        "student/logits",
    ):
        head, _, rest = scope.partition("/")
        assert scope in text or (head in text and rest in text), scope
