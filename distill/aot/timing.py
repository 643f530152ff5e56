"""How long each instruction of a compiled program takes: the best estimate there is for its kind, and where it is from.

In this order: a model for Pallas kernels and collectives, the compiler's cycles in the final HLO, its schedule, and
max(flops / peak, bytes / bandwidth). docs/distill/estimates.md says how far each can be trusted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Literal

from distill.aot.bundles_call import kernel_key
from distill.aot.model import GroupedMatmul, KernelCycles, KernelModel
from distill.aot.model_calls import describe
from distill.aot.model_constants import BLOCK_CYCLES, VISIT_CYCLES, Constants, End
from distill.aot.timing_schedule import ScheduledCycles
from distill.aot.timing_traffic import HOST, leaves, size, traffic
from profiler.analysis.opfacts import DOTS, ELEMENTWISE, MOVES, REDUCTIONS
from profiler.hardware import Chip
from profiler.hlo import Instruction, shapes
from profiler.xplane.schema import INT64, build_messages

Resource = Literal["core", "links", "sparsecore", "dma", "to host", "from host"]

SOURCES: Mapping[str, str] = {
    "kernel code": "tile-level model; cycles per tile or block from the compiler's code of this very kernel",
    "kernel bundles": "tile-level model; cycles per tile or block from a table of shapes whose code was read before",
    "kernel model": "tile-level model; cycles per tile or block by a share of the matrix unit's work",
    "cost estimate": "max(flops / peak, bytes / HBM bandwidth) of the kernel author's estimate: knows no tiles",
    "compiler cycles": "estimated_cycles of the final program, at the compiler's own clock",
    "schedule": "end less start in the compiler's schedule",
    "roofline": "max(flops / peak, bytes / bandwidth), with the shares that compiled ops reach",
    "roofline, cycles implausible": "as roofline, since the compiler's cycles are far above it",
    "sorting network": "stages of a bitonic sort × registers × cycles of a stage",
    "link bytes": "bytes against the links between chips, plus a latency",
    "sparsecore bytes": "bytes against the SparseCore's rate",
    "copy bytes": "bytes against HBM bandwidth, beside the core",
    "host link bytes": "bytes against the link to the host",
    "wait": "how long the core waits for what it has started",
    "contents": "a loop or call: the time of what it runs",
}

COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)
_COLORS = re.compile(rb"\bcolors:(\d+)")
_CYCLES = re.compile(rb'"estimated_cycles"\s*:\s*"?(\d+)')
_NO_CYCLES = (0, 2**63 - 1)  # how the compiler writes that it has none
# Ops whose time is arithmetic or traffic: their cycles can be held against a roofline. Sorts, gathers and scatters
# take far longer than their bytes.
_PREDICTABLE = (
    (ELEMENTWISE | REDUCTIONS | MOVES | {"dot", "convolution", "fusion", "constant", "parameter"})
    - {"gather", "scatter", "sort", "dynamic-reshape"}
)  # fmt: skip
OUTLIER_FACTOR = 8.0
OUTLIER_PS = 20_000_000
_PS = 1e12
_MAX_WRAPPERS = 8  # computations that call one another without end do not occur; damaged files may hold them
_REGISTER = 8 * 128  # elements of 32 bits


@dataclass(frozen=True, slots=True)
class Estimate:
    """A duration, and the key of ``SOURCES`` that says where it is from."""

    duration_ps: int
    source: str


@dataclass(frozen=True)
class Timer:
    """Estimates for one program on one chip; ``kernels`` are cycles by distill.aot.bundles_call.kernel_key."""

    chip: Chip
    constants: Constants
    schedule: ScheduledCycles = field(default_factory=ScheduledCycles)
    kernels: Mapping[str, KernelCycles] = field(default_factory=dict)

    def at(self, end: End) -> Timer:
        """The same with all constants at one end of their ranges."""
        return replace(self, constants=self.constants.at(end))

    def estimate(self, instruction: Instruction) -> Estimate:
        """The time of one execution: on the core, or in flight for what a start op starts."""
        resource, inner = self.resource(instruction), payload(instruction)
        if resource == "links":
            return _estimate(self._collective_s(inner), "link bytes")
        if resource in ("to host", "from host"):
            return _estimate(self._host_bytes(instruction) / self.constants["host_link"], "host link bytes")
        if resource == "sparsecore":
            moved = size(inner.proto.shape).total
            return _estimate(moved / self.constants["sparsecore"], "sparsecore bytes")
        if resource == "dma":
            # A copy-start's output names its operand again, so its bytes are read once and written once.
            moved = traffic(inner).total if inner is not instruction else 2 * _operand_bytes(instruction)
            return _estimate(moved / (self.constants["xla_hbm_share"] * self.constants["hbm"]), "copy bytes")
        if instruction.custom_call_target == "tpu_custom_call":
            return self._kernel(instruction)
        return self._compiled(instruction)

    def resource(self, instruction: Instruction) -> Resource:
        """What is busy meanwhile: the core, or what works beside it."""
        inner = payload(instruction)
        if inner.opcode.removesuffix("-start") in COLLECTIVES:
            return "links"
        if self._host_bytes(instruction):
            return "to host" if _is_to_host(inner) else "from host"
        if instruction.opcode == "copy-start":
            return "dma"
        if instruction.opcode == "async-start":
            return "sparsecore" if _thread(instruction) else "dma"
        return "core"

    def _kernel(self, instruction: Instruction) -> Estimate:
        call = describe(instruction)
        if call is None:
            cost = instruction.cost_estimate
            flops = (cost.flops if cost else None) or 0.0
            moved = cost.bytes_accessed if cost and cost.bytes_accessed is not None else traffic(instruction).total
            return _estimate(self._roofline_s(flops, moved), "cost estimate")
        visits, blocks = VISIT_CYCLES.get(self.chip.key, {}), BLOCK_CYCLES.get(self.chip.key, {})
        code = self.kernels.get(kernel_key(instruction) or "") if self.kernels else None
        model = KernelModel(self.constants, visits, blocks, code)
        seconds = model.grouped_matmul(call) if isinstance(call, GroupedMatmul) else model.splash(call)
        return _estimate(seconds, "kernel code" if code else "kernel bundles" if model.known(call) else "kernel model")

    def _compiled(self, instruction: Instruction) -> Estimate:
        """What XLA generated itself."""
        bytes_moved = traffic(instruction)
        moved = bytes_moved.hbm + bytes_moved.vmem / self.constants["vmem_ratio"]
        roofline = _estimate(self._roofline_s(instruction.flops or 0.0, moved), "roofline")
        per_us = self.schedule.cycles_per_us or self.constants["compiler_cycles"]
        scheduled = self.schedule.find(instruction.name, instruction.opcode, instruction.op_name)
        for cycles, source in ((final_cycles(instruction), "compiler cycles"), (scheduled, "schedule")):
            if cycles is None or cycles <= 1:  # the schedule gives what it does not cost one cycle
                continue
            found = _estimate(cycles / per_us / 1e6, source)
            if not self._implausible(instruction, found, roofline):
                return found
            if source == "compiler cycles":
                return Estimate(roofline.duration_ps, "roofline, cycles implausible")
        if instruction.opcode == "sort":
            return _estimate(max(self._sort_s(instruction), roofline.duration_ps / _PS), "sorting network")
        return roofline

    def _sort_s(self, instruction: Instruction) -> float:
        """A bitonic network over n keys has log₂n · (log₂n + 1) / 2 stages, each over all registers of all operands."""
        arrays = list(leaves(instruction.proto.shape))
        found = _dimensions().HloInstructionProto()
        found.ParseFromString(instruction.proto.SerializeToString())
        axis = found.dimensions[0] if found.dimensions else 0
        length = arrays[0].dimensions[axis] if axis < len(arrays[0].dimensions) else 1
        depth = math.ceil(math.log2(max(2, length)))
        registers = sum(math.ceil((shapes.elements(each) or 0) / _REGISTER) for each in arrays)
        return depth * (depth + 1) / 2 * registers * self.constants["sort_cycles"] / self.constants["clock"]

    def _implausible(self, instruction: Instruction, found: Estimate, roofline: Estimate) -> bool:
        if found.duration_ps < OUTLIER_PS or found.duration_ps <= OUTLIER_FACTOR * roofline.duration_ps:
            return False
        return instruction.opcode in _PREDICTABLE and instruction.fused_opcodes <= _PREDICTABLE

    def _roofline_s(self, flops: float, moved: float) -> float:
        c = self.constants
        return max(flops / (c["xla_peak_share"] * c["peak"]), moved / (c["xla_hbm_share"] * c["hbm"]))

    def _collective_s(self, instruction: Instruction) -> float:
        """Each ring carries an equal part of the bytes; an all-reduce is a scatter and a gather."""
        c, opcode = self.constants, instruction.opcode.removesuffix("-start")
        operands, count = _operand_bytes(instruction), min(rings(instruction), c["links"])
        if opcode == "all-reduce":
            seconds = 2 * operands / (count * c["all_reduce"])
        elif opcode.startswith("collective-"):
            seconds = operands / c["permute"]
        else:  # the larger side: the output of a gather, the operand of a scatter
            seconds = max(operands, size(instruction.proto.shape).total) / (count * c["all_gather"])
        return seconds + c["collective_latency"]

    def _host_bytes(self, instruction: Instruction) -> int:
        """Bytes that an instruction carries to or from the host; 0 where it carries none."""
        inner = payload(instruction)
        if inner.opcode == "copy-start":  # its output names destination and source again
            places = [*leaves(inner.proto.shape), *(proto.shape for proto in inner.operand_protos)]
            on_host = any(place.layout.memory_space == HOST for place in places)
            return _operand_bytes(inner) if on_host else 0
        return traffic(inner).host if inner.opcode in ("copy", "dynamic-slice", "dynamic-update-slice") else 0


def _is_to_host(copy: Instruction) -> bool:
    """The link to the host works both ways at once (recorded on a TPU v6e)."""
    target = next(leaves(copy.proto.shape), None)
    return target is not None and target.layout.memory_space == HOST


def payload(instruction: Instruction) -> Instruction:
    """What an async wrapper or a fusion around a collective runs; of everything else the instruction itself."""
    for _ in range(_MAX_WRAPPERS):
        if instruction.opcode == "fusion":
            return _fused_collective(instruction) or instruction
        # libtpu 0.0.52 wraps what a SparseCore does in a custom call once more.
        if instruction.opcode not in ("async-start", "call", "custom-call") or not instruction.called:
            break
        root = instruction.module.computations[instruction.called[0]].root
        if root is None or root.opcode in ("async-done", "tuple"):
            break
        instruction = root
    return instruction


def rings(collective: Instruction) -> int:
    """The rings, "colors", that the compiler's strategy for a collective runs at once; 1 where it names none."""
    config = collective.backend_config
    named = _COLORS.search(config)
    return int(named[1]) if named else max(1, config.count(b'"phase_rings"'))


def _fused_collective(fusion: Instruction) -> Instruction | None:
    """The collective in a fusion that is there for it (a reduce-scatter is written so); None beside a matmul."""
    inside = fusion.fused_opcodes
    if inside.isdisjoint(COLLECTIVES) or not inside.isdisjoint(DOTS):
        return None
    return next(each for each in fusion.module.inside(fusion.called) if each.opcode in COLLECTIVES)


@cache
def final_cycles(instruction: Instruction) -> int | None:
    """``estimated_cycles`` of the final program; None where the compiler has none."""
    match = _CYCLES.search(instruction.backend_config)
    cycles = int(match[1]) if match else 0
    return None if cycles in _NO_CYCLES else cycles


@cache
def _dimensions() -> SimpleNamespace:
    """xla.HloInstructionProto as far as the sorted axis goes (xla/service/hlo.proto)."""
    return build_messages("distill.instruction", {"HloInstructionProto": {"dimensions": (14, [INT64])}})


def _thread(instruction: Instruction) -> str:
    called = instruction.module.computations.get(instruction.called[0]) if instruction.called else None
    return called.thread if called else ""


def _operand_bytes(instruction: Instruction) -> int:
    return sum(size(proto.shape).total for proto in instruction.operand_protos)


def _estimate(seconds: float, source: str) -> Estimate:
    return Estimate(round(seconds * _PS), source)
