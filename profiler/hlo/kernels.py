"""GPU kernels and the HLO instructions that they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.hlo.module import HloModule

# XLA's GPU backends name a kernel after its instruction with every character that C names lack replaced.
_NOT_IN_A_KERNEL_NAME = re.compile(r"[^A-Za-z0-9_]")


def kernel_to_instruction(module: HloModule, kernel_name: str) -> str | None:
    """The instruction a GPU kernel belongs to, by name: ``input_transpose_fusion_1.kd`` → ``input_transpose_fusion.1``.

    Only for kernels without an ``hlo_op`` stat: XLA lets instructions with equal code share one kernel, which then
    carries the name of the first. None for library kernels and where two instructions could be meant.
    """
    name = kernel_name.removesuffix(".kd")
    if name in module.instructions:
        return name
    candidates = [
        i.name
        for c in module.computations.values()
        if not c.is_fusion
        for i in c.instructions
        if i.opcode in ("fusion", "custom-call") or not i.called
        if _NOT_IN_A_KERNEL_NAME.sub("_", i.name) == name
    ]
    return candidates[0] if len(candidates) == 1 else None
