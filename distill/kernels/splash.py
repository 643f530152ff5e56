"""Splash attention, the Pallas kernel for TPU: tokamax's, or the one that jax ships.

Both skip the blocks that the mask empties, name their output and log-sum-exp for remat policies, and take sinks and a
sliding window. tokamax's has a fused backward kernel only, and reports FLOPs and bytes to the compiler; jax's has a
fused and a split backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import jax

from distill.config import Config
from distill.kernels.plain import CONTEXT
from profiler.errors import UsageError

_TOKAMAX = "tokamax._src.ops.experimental.tpu.splash_attention"
_JAX = "jax.experimental.pallas.ops.tpu.splash_attention"
_LANES = 128  # the width of a TPU register: every block is a multiple
_FORWARD = ("block_q", "block_kv", "block_kv_compute")
_BACKWARD = ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
_SPLIT_BACKWARD = ("block_q_dq", "block_kv_dq")

SplashAttention = Callable[..., jax.Array]


def has_tokamax() -> bool:
    """Whether tokamax's splash attention can be imported."""
    try:
        import_module(f"{_TOKAMAX}.splash_attention_kernel")
    except ImportError:
        return False
    return True


def splash_attention(config: Config, *, tokamax: bool, interpret: bool) -> SplashAttention:
    """Attention with the interface of `plain_attention`, by the splash kernel with the blocks and layouts of a config.

    Blocks longer than the sequence are cut to it.

    Args:
        config: its sa_* keys.
        tokamax: tokamax's kernel, else jax's.
        interpret: run the kernel's body as ordinary JAX ops, for tests on a CPU.
    """
    library = _TOKAMAX if tokamax else _JAX
    kernels = import_module(f"{library}.splash_attention_kernel")
    masks = import_module(f"{library}.splash_attention_mask")
    make = _make_tokamax if tokamax else _make_jax

    def attention(
        q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, sinks: jax.Array | None, *, window: int
    ) -> jax.Array:
        T, H = q.shape[1], q.shape[2]
        if window and window < T:  # the window counts the token itself
            mask = masks.LocalMask((T, T), window_size=(window - 1, 0), offset=0)
        else:
            mask = masks.CausalMask((T, T))
        kernel = make(kernels, masks, mask, H, _settings(config, kernels, T, fused=tokamax), interpret)

        def one_sequence(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
            segment_ids = kernels.SegmentIds(segments, segments)
            return kernel(q, k, v, segment_ids) if sinks is None else kernel(q, k, v, segment_ids, sinks=sinks)

        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # [B, heads, T, D]
        return jax.vmap(one_sequence)(q, k, v, segment_ids).swapaxes(1, 2)

    return attention


def _settings(config: Config, kernels: ModuleType, T: int, *, fused: bool) -> dict[str, Any]:
    """Blocks and layouts under the kernel's names.

    Raises:
        UsageError: a sequence that the blocks do not divide.
    """
    fused = fused or config.sa_use_fused_bwd_kernel
    names = _FORWARD + _BACKWARD + (() if fused else _SPLIT_BACKWARD)
    blocks = {name: min(getattr(config, f"sa_{name}"), T) for name in names}
    for name, block in blocks.items():
        if block % _LANES or T % block:
            raise UsageError(
                f"sa_{name}={block} does not fit sequences of {T} tokens",
                remedy=f"a multiple of {_LANES} that divides the sequence length",
            )
    layouts = {f"{x}_layout": kernels.QKVLayout[getattr(config, f"sa_{x}_layout")] for x in "qkv"}
    return {**blocks, **layouts, "use_fused_bwd_kernel": fused}


def _make_tokamax(
    kernels: ModuleType, masks: ModuleType, mask: Any, H: int, settings: dict[str, Any], interpret: bool
) -> Callable[..., jax.Array]:
    config = kernels.SplashConfig(**settings, residual_checkpoint_name=CONTEXT, interpret=interpret)
    return kernels.make_splash_mha(mask, config=config, q_seq_shards=1)


def _make_jax(
    kernels: ModuleType, masks: ModuleType, mask: Any, H: int, settings: dict[str, Any], interpret: bool
) -> Callable[..., jax.Array]:
    return kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * H),
        block_sizes=kernels.BlockSizes(**settings),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=CONTEXT,
        interpret=interpret,
    )
