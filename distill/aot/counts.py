"""How often each Pallas kernel runs in a step: by kernel and phase, from the HLO's own trip counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from profiler.analysis import families
from profiler.analysis.families import PHASES, OpFacts
from profiler.hlo import HloModule
from profiler.hlo.module import Instruction

PALLAS = "tpu_custom_call"


@dataclass(frozen=True)
class KernelCalls:
    """Calls of one kind of kernel in one phase.

    Attributes:
        family: "splash forward", "gmm dlhs", "tgmm" …, one of ``profiler.analysis.families.FAMILIES``.
        phase: "teacher", "student forward", "re-run", "student backward"; "" where it cannot be told.
        kernels: stable names of the kernels.
        calls: per step; None where it depends on data.
    """

    family: str
    phase: str
    kernels: tuple[str, ...]
    calls: int | None


def kernel_calls(module: HloModule) -> tuple[KernelCalls, ...]:
    """All Pallas calls of a step, in the order of families and phases."""
    program = families.ProgramFacts.of(module.op_names)
    calls: Counter[tuple[str, str]] = Counter()
    unknown: set[tuple[str, str]] = set()
    names: dict[tuple[str, str], set[str]] = {}
    for instruction in module.instructions.values():
        if instruction.custom_call_target != PALLAS:
            continue
        op = facts(instruction)
        key = families.family(op), families.phase(op, program) or ""
        names.setdefault(key, set()).add(families.kernel_name(op) or instruction.name)
        runs = module.executions(instruction.name)
        if runs is None:
            unknown.add(key)
        else:
            calls[key] += round(runs)
    order = sorted(names, key=lambda key: (families.FAMILIES.index(key[0]), (*PHASES, "").index(key[1])))
    return tuple(KernelCalls(*key, tuple(sorted(names[key])), None if key in unknown else calls[key]) for key in order)


def facts(instruction: Instruction) -> OpFacts:
    """What the HLO says about one instruction, for ``profiler.analysis.families``."""
    return OpFacts(
        name=instruction.name,
        opcode=instruction.opcode,
        name_stack=instruction.op_name or None,
        shape=instruction.shape,
        custom_call_target=instruction.custom_call_target or None,
        fused_opcodes=instruction.fused_opcodes,
        fused_op_names=instruction.fused_op_names,
    )
