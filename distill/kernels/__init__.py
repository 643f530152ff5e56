"""The two kernels that a step spends its time in, attention and grouped matmul, chosen by one switch.

| backend | attention                                    | grouped matmul     |
|---------|----------------------------------------------|--------------------|
| tpu     | splash (tokamax's or jax's)                  | megablox           |
| gpu     | cuDNN where it has a kernel, else plain      | jax.lax.ragged_dot |
| cpu     | plain                                        | jax.lax.ragged_dot |

All attention kernels share one interface (`plain.plain_attention`), all grouped matmuls another
(`grouped_matmul.GroupedMatmul`); the numbers agree within the dtype's rounding. docs/distill/kernels.md says what each
does not support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax

from distill.config import Config
from distill.kernels.fused import fused_attention
from distill.kernels.grouped_matmul import GroupedMatmul, megablox, ragged_dot
from distill.kernels.plain import plain_attention
from distill.kernels.splash import has_tokamax, splash_attention

__all__ = ["Backend", "Kernels", "select"]

Backend = Literal["tpu", "gpu", "cpu"]


@dataclass(frozen=True)
class Kernels:
    """The kernels of one run; `names` and `notes` are for the run's records."""

    attention: Callable[..., jax.Array]  # see plain.plain_attention
    grouped_matmul: GroupedMatmul
    names: tuple[str, str]  # of the two kernels
    notes: tuple[str, ...] = ()  # what was asked for and is not what runs


def select(config: Config, backend: Backend, interpret: bool = False) -> Kernels:
    """The kernels for a backend.

    Args:
        config: attention ("dot_product" takes the plain kernel everywhere), use_tokamax_splash, and the blocks, tiles
            and layouts.
        backend: what the step is compiled for, which need not be what this process runs on.
        interpret: TPU kernels as ordinary JAX ops, for tests on a CPU.
    """
    notes: tuple[str, ...] = ()
    if config.attention == "dot_product" or backend == "cpu":
        attention, attention_name = plain_attention, "plain attention"
    elif backend == "gpu":
        attention, attention_name = fused_attention, "cudnn attention"
    else:
        tokamax = config.use_tokamax_splash and has_tokamax()
        attention = splash_attention(config, tokamax=tokamax, interpret=interpret)
        attention_name = "splash attention (tokamax)" if tokamax else "splash attention (jax)"
        if config.use_tokamax_splash and not tokamax:
            notes = ("use_tokamax_splash=true, but tokamax is not installed: jax's splash attention runs instead",)
    if backend == "tpu":
        return Kernels(attention, megablox(config, interpret=interpret), (attention_name, "megablox"), notes)
    return Kernels(attention, ragged_dot, (attention_name, "ragged_dot"), notes)
