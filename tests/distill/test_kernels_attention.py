"""Every attention kernel against attention written out: forward, and the gradients of q, k, v and the sinks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distill.config import Config
from distill.kernels import fused, select
from distill.kernels.plain import attention_mask, plain_attention
from distill.kernels.splash import splash_attention
from profiler.errors import UsageError

B, T, H, KV, D = 2, 256, 4, 2, 32
Attention = Callable[..., jax.Array]


def written_out(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: np.ndarray, sinks: jax.Array | None, *, window: int
) -> jax.Array:
    """softmax over the tokens that each token sees, and over the sink as one more column without a value."""
    k, v = (jnp.repeat(x, H // KV, axis=2) for x in (k, v))
    sees = np.zeros((B, 1, T, T), bool)
    for b in range(B):
        for t in range(T):
            for s in range(t + 1):
                near = not window or t - s < window
                sees[b, 0, t, s] = near and segment_ids[b, t] == segment_ids[b, s]
    scores = jnp.where(sees, jnp.einsum("bthd,bshd->bhts", q, k, precision="highest"), -jnp.inf)
    if sinks is not None:
        column = jnp.broadcast_to(sinks[None, :, None, None], (B, H, T, 1))
        scores = jnp.concatenate([scores, column], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :T]
    return jnp.einsum("bhts,bshd->bthd", weights, v, precision="highest")


def blocks(**changes: object) -> Config:
    """128 everywhere, so that 256 tokens are several blocks and some of them are empty."""
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    return Config(**{f"sa_block_{name}": 128 for name in names} | changes)


def splash(*, tokamax: bool, **changes: object) -> Attention:
    if tokamax:
        pytest.importorskip("tokamax")
    return splash_attention(blocks(**changes), tokamax=tokamax, interpret=True)


KERNELS = {
    "plain": lambda: plain_attention,
    "tokamax splash": lambda: splash(tokamax=True),
    "tokamax splash, sequence minor": lambda: splash(
        tokamax=True, sa_q_layout="SEQ_MINOR", sa_k_layout="SEQ_MINOR", sa_v_layout="SEQ_MINOR"
    ),
    "jax splash, split backward": lambda: splash(tokamax=False, sa_use_fused_bwd_kernel=False),
    "jax splash, fused backward": lambda: splash(tokamax=False, sa_use_fused_bwd_kernel=True),
}


def inputs(sinks: bool) -> tuple[jax.Array, ...]:
    """q (scaled), k, v, the cotangent of the output, and the sinks if asked for."""
    shapes = [(B, T, H, D), (B, T, KV, D), (B, T, KV, D), (B, T, H, D)] + [(H,)] * sinks
    q, *rest = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes))
    return q * D**-0.5, *rest


def segments() -> np.ndarray:
    """Documents that end inside of a block, at its edge, and after one token."""
    rows = [np.repeat([1, 2, 3], [100, 28, 128]), np.repeat([1, 2, 3], [1, 200, 55])]
    return np.array(rows, np.int32)


CAUSAL, WINDOWED = (0, False), (40, True)  # window and sinks
CASES = [
    ("plain", *CAUSAL),
    ("plain", *WINDOWED),
    ("tokamax splash", *CAUSAL),
    ("tokamax splash, sequence minor", *WINDOWED),
    ("jax splash, split backward", *WINDOWED),
    ("jax splash, fused backward", *CAUSAL),
]


@pytest.mark.parametrize(("kernel", "window", "sinks"), CASES)
def test_an_attention_kernel_computes_attention_and_its_gradients(kernel: str, window: int, sinks: bool) -> None:
    attention = KERNELS[kernel]()
    q, k, v, d_out, *rest = inputs(sinks)

    def run(attention: Attention, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        def call(q: jax.Array, k: jax.Array, v: jax.Array, *sinks: jax.Array) -> jax.Array:
            return attention(q, k, v, segments(), sinks[0] if sinks else None, window=window)

        out, pull_back = jax.vjp(call, *arrays)
        return out, *pull_back(d_out)

    expected = jax.jit(partial(run, written_out))(q, k, v, *rest)
    found = jax.jit(partial(run, attention))(q, k, v, *rest)
    for name, a, b in zip(("out", "dq", "dk", "dv", "dsinks"), found, expected, strict=False):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=name)


def test_named_residuals_change_nothing_but_the_names() -> None:
    q, k, v, d_out = inputs(sinks=False)
    bias = jnp.where(attention_mask(jnp.asarray(segments()), 0)[:, None], 0.0, -1e9)

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, bias=bias, scale=1.0)

    def run(kernel: fused.Kernel) -> tuple[jax.Array, ...]:
        out, pull_back = jax.vjp(lambda q, k, v: kernel(q, k, v, bias), q, k, v)
        return out, *pull_back(d_out)

    for a, b in zip(run(fused.with_named_residuals(kernel, "context")), run(kernel), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_named_residuals_spare_the_re_run_of_a_kernel_that_names_nothing() -> None:
    @jax.custom_vjp
    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
        return forward(q, k, v, bias)[0]

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        out = jnp.cbrt(q)  # stands for the kernel's forward pass
        return out, (k, v, out)

    def backward(residuals: tuple[jax.Array, ...], d_out: jax.Array) -> tuple[jax.Array | None, ...]:
        k, v, out = residuals
        return d_out / (3 * out**2), jnp.zeros_like(k), jnp.zeros_like(v), None

    kernel.defvjp(forward, backward)
    q, k, v, _ = inputs(sinks=False)

    def forward_passes(kernel: fused.Kernel) -> int:
        def layer(q: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(kernel(q * 2, k, v, jnp.zeros(()))))

        policy = jax.checkpoint_policies.save_only_these_names("context")
        return str(jax.make_jaxpr(jax.grad(jax.checkpoint(layer, policy=policy)))(q)).count(" cbrt ")

    assert forward_passes(kernel) == 2
    assert forward_passes(fused.with_named_residuals(kernel, "context")) == 1


def test_cudnn_is_asked_only_for_what_it_supports() -> None:
    half = jnp.zeros((1, 8, 2, 64), jnp.bfloat16)
    assert fused.supports(half, None)
    assert not fused.supports(half, jnp.zeros(2))
    assert not fused.supports(half.astype(jnp.float32), None)
    assert not fused.supports(jnp.zeros((1, 8, 2, 256), jnp.bfloat16), None)


def test_a_window_counts_the_token_itself() -> None:
    seen = attention_mask(jnp.ones((1, 6), jnp.int32), window=3)[0].sum(axis=1)
    assert seen.tolist() == [1, 2, 3, 3, 3, 3]


def test_blocks_that_do_not_divide_the_sequence_are_refused_by_name() -> None:
    attention = splash(tokamax=False, sa_block_q=512)
    q, k, v = (jnp.zeros((1, 768, 2, 32)) for _ in range(3))
    with pytest.raises(UsageError, match=r"sa_block_q=512 does not fit sequences of 768 tokens"):
        attention(q, k, v, jnp.ones((1, 768), jnp.int32), None, window=0)


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("cpu", ("plain attention", "ragged_dot")),
        ("gpu", ("cudnn attention", "ragged_dot")),
        ("tpu", ("splash attention (jax)", "megablox")),
    ],
)
def test_one_switch_picks_the_kernels_of_a_backend(backend: str, names: tuple[str, str]) -> None:
    assert select(Config(), backend).names == names


def test_dot_product_attention_is_plain_on_every_backend() -> None:
    for backend in ("tpu", "gpu", "cpu"):
        assert select(Config(attention="dot_product"), backend).names[0] == "plain attention"


def test_a_missing_tokamax_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.kernels.has_tokamax", lambda: False)
    kernels = select(Config(use_tokamax_splash=True), "tpu")
    assert kernels.names[0] == "splash attention (jax)"
    assert "tokamax is not installed" in kernels.notes[0]
