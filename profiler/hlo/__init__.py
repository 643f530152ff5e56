"""HLO programs from their protos: instructions, name stacks, trip counts, costs, memory.

``parse`` takes the ``Hlo Proto`` bytes that a trace carries in its ``/host:metadata`` plane.
"""

from profiler.hlo.costs import CostEstimate
from profiler.hlo.kernels import kernel_to_instruction
from profiler.hlo.module import Computation, HloModule, Instruction, parse
from profiler.hlo.neighbours import near_op_name

__all__ = ["Computation", "CostEstimate", "HloModule", "Instruction", "kernel_to_instruction", "near_op_name", "parse"]
