"""When a program does not fit: what the compiler said, as numbers, and what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiler.analysis import families
from profiler.analysis.families import OpFacts
from profiler.analysis.memory import LiveBuffer, Memory

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AMOUNT = r"([\d.]+)([KMGT]?)"
_HBM = re.compile(rf"total memory required for HLO temporaries \({_AMOUNT}\) exceeds available HBM \({_AMOUNT}\)")
_VMEM = re.compile(rf"Scoped allocation with size {_AMOUNT} and limit {_AMOUNT}")
_INSTRUCTION = re.compile(r"stack for %([\w.-]+) = ")
_OP_NAME = re.compile(r'op_name="([^"]*)"')

# Keys whose tiles or blocks a kernel holds in VMEM, by family.
_KNOBS = {
    "splash forward": ("sa_block_q", "sa_block_kv", "sa_block_kv_compute"),
    "splash backward (dkv)": ("sa_block_q_dkv", "sa_block_kv_dkv", "sa_block_kv_dkv_compute"),
    "splash backward (fused)": ("sa_block_q_dkv", "sa_block_kv_dkv", "sa_block_kv_dkv_compute"),
    "splash backward (dq)": ("sa_block_q_dq", "sa_block_kv_dq"),
}
_PASSES = {"gmm forward": "fwd", "gmm dlhs": "dlhs", "tgmm": "drhs"}
_DIMENSIONS = ("batch_seq", "embed_dim", "mlp_dim")


@dataclass(frozen=True)
class OutOfMemory:
    """More HBM than a device has.

    Attributes:
        needed_bytes: what the program would be assigned.
        available_bytes: what the compiler may use.
        live: the largest live buffers at the peak; empty where the compiler left no buffer assignment.
    """

    needed_bytes: int
    available_bytes: int
    live: tuple[LiveBuffer, ...]


@dataclass(frozen=True)
class OutOfVmem:
    """More VMEM, a TensorCore's scratch memory, than one kernel may use.

    Attributes:
        needed_bytes: what the kernel would take.
        available_bytes: the limit: --xla_tpu_scoped_vmem_limit_kib among xla_flags, or the chip's default.
        kernel: the kernel's stable name, such as ``splash_mha_fwd_segmented_residuals``.
        op_name: its JAX name stack.
        knobs: the keys that size its blocks or tiles.
    """

    needed_bytes: int
    available_bytes: int
    kernel: str
    op_name: str
    knobs: tuple[str, ...]


def explain(message: str, memory: Memory | None) -> OutOfMemory | OutOfVmem | None:
    """What an error of the compiler says about memory; None if it is about something else.

    Args:
        message: the error's text.
        memory: of the dump, which is written before the compiler gives up.
    """
    found = _HBM.search(message)
    if found:
        needed, available = _bytes(*found.groups()[:2]), _bytes(*found.groups()[2:])
        if memory is None:
            return OutOfMemory(needed, available, ())
        return OutOfMemory(max(memory.allocated_bytes, available + 1), available, memory.live)
    found = _VMEM.search(message)
    if found is None:
        return None
    instruction, op_name = _INSTRUCTION.search(message), _OP_NAME.search(message)
    op = OpFacts(
        name=instruction[1] if instruction else "",
        opcode="custom-call",
        name_stack=op_name[1] if op_name else None,
        custom_call_target="tpu_custom_call",
        hlo_text=message[instruction.start(1) - 1 :].partition("metadata=")[0] if instruction else None,
    )
    kernel = families.kernel_name(op) or op.name
    return OutOfVmem(_bytes(*found.groups()[:2]), _bytes(*found.groups()[2:]), kernel, op.name_stack or "", _knobs(op))


def _knobs(op: OpFacts) -> tuple[str, ...]:
    family = families.family(op)
    if family in _PASSES:
        side = "wo" if "moe_wo" in (op.name_stack or "") else "wi"
        return tuple(f"{side}_tile_{_PASSES[family]}_{dimension}" for dimension in _DIMENSIONS)
    return _KNOBS.get(family, ())


def _bytes(amount: str, unit: str) -> int:
    return round(float(amount) * _UNITS[unit])
