"""The training state: everything that a step reads and writes again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """A pytree.

    Attributes:
        step: int32 scalar, steps done.
        params: the student's parameters, in ``weight_dtype``.
        opt_state: optax state of the student's parameters. The teacher has none.
    """

    step: Any
    params: Any
    opt_state: Any
