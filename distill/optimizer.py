"""AdamW with linear warmup and cosine decay, and a mask of what is not decayed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from distill.config import Config

# Parameters that MaxText's masks know by another name, so that one adamw_mask serves both.
_MAXTEXT_NAMES = {"embed": "embedding"}


def make_schedule(config: Config) -> optax.Schedule:
    """Learning rate of each step: from 0 to the peak in a straight line, then down a half cosine to its final fraction.

    The optimizer's count starts at 0, so the first step of a schedule with warmup moves nothing, as in MaxText.
    """
    steps = config.schedule_steps
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=int(config.warmup_steps_fraction * steps),
        decay_steps=steps,
        end_value=config.learning_rate_final_fraction * config.learning_rate,
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Clipping by global norm (where the configuration asks for it), then AdamW."""
    adamw = optax.adamw(
        make_schedule(config),
        b1=config.adam_b1,
        b2=config.adam_b2,
        eps=config.adam_eps,
        weight_decay=config.adam_weight_decay,
        mask=decay_mask(config.adamw_mask),
    )
    if config.gradient_clipping_threshold == 0:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.gradient_clipping_threshold), adamw)


def decay_mask(patterns: tuple[str, ...]) -> Callable[[Any], Any]:
    """A function from parameters to a tree of booleans: False where a pattern is found in the parameter's path.

    A path is the keys from the root, joined by "/": `layers/0/attention/query_norm`.
    """
    compiled = [re.compile(pattern) for pattern in patterns]

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        keys = (jax.tree_util.keystr((key,), simple=True) for key in path)
        name = "/".join(_MAXTEXT_NAMES.get(key, key) for key in keys)
        return not any(pattern.search(name) for pattern in compiled)

    return lambda params: jax.tree_util.tree_map_with_path(decays, params)


def global_norm(tree: Any) -> jax.Array:
    """Root of the sum of squares over all leaves: of gradients before clipping, for the metrics."""
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))
