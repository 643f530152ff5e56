"""Rematerialisation: which tensors of a layer the backward pass finds in memory, and which it computes again.

The vocabulary is MaxText's. A layer names its tensors with `checkpoint_name`; the policy says where each goes:

- full: nothing but the input of the scanned body; the backward pass runs the whole forward pass again.
- minimal: every matmul of a weight; attention itself, the router, norms and activations run again.
- custom: each name by its own key, device (kept), offload (moved to host memory and back) or remat (computed again).

q and k are named as attention takes them, after norm and rotation. Where a model has q/k norms, their gradients need
what lies before, so that those two projections run again even if kept.

The names "qkv_proj" (a fused projection) and "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo" (a dense MLP) belong to no tensor
of the models here; setting them changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from distill.config import REMAT_TENSORS, Config
from profiler.errors import UsageError

__all__ = ["ABSENT", "checkpointed", "policy"]

# The tensors whose keys have no effect, since no layer here has them.
ABSENT: tuple[str, ...] = ("qkv_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")
_MATMULS = ("query_proj", "key_proj", "value_proj", "out_proj", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo")


def policy(config: Config, device: jax.Device | None = None) -> Callable[..., Any] | None:
    """The policy for jax.checkpoint; None saves nothing.

    Args:
        config: remat_policy and, for custom, the key of each tensor.
        device: one of the devices of the mesh, asked whether it can offload; None if not known.

    Raises:
        UsageError: a tensor is to be offloaded and the device has no pinned host memory.
    """
    if config.remat_policy == "full":
        return None
    if config.remat_policy == "minimal":
        return jax.checkpoint_policies.save_only_these_names(*_MATMULS)
    kept = [name for name in REMAT_TENSORS if getattr(config, name) == "device"]
    offloaded = [name for name in REMAT_TENSORS if getattr(config, name) == "offload"]
    if offloaded and device is not None and not _has_pinned_host(device):
        raise UsageError(
            f"{offloaded[0]}=offload needs pinned host memory, which {device.platform} devices here do not have",
            remedy="device or remat",
        )
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=kept,
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


def checkpointed(
    body: Callable[..., Any], config: Config, *, iterations: int, device: jax.Device | None = None
) -> Callable[..., Any]:
    """The body of a scan over layers, rematerialised by the configuration's policy.

    In a loop the compiler cannot merge a re-run with the first run, which lies in another loop, so that the barriers of
    prevent_cse would only cost. A loop of one iteration is no loop once compiled, and needs them.
    """
    return jax.checkpoint(body, policy=policy(config, device), prevent_cse=iterations == 1)


def _has_pinned_host(device: jax.Device) -> bool:
    """Whether a device can reach pinned host memory; devices of a topology without hardware are taken for real ones."""
    try:
        return any(memory.kind == "pinned_host" for memory in device.addressable_memories())
    except (AttributeError, NotImplementedError, RuntimeError):
        return device.platform == "tpu"
