"""One compiled program: its computations and instructions, with facts derived when asked for.

An ``HloModule`` is cheap to build (a name table); names, costs, trip counts and sources are worked out on first use
and kept. Text from the file is decoded with replacement characters: a damaged name costs one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from profiler.errors import UnreadableError
from profiler.hlo import costs, shapes
from profiler.hlo.buffers import Buffers
from profiler.hlo.buffers import read as read_buffers
from profiler.hlo.calls import executions
from profiler.hlo.costs import CostEstimate
from profiler.hlo.schema import hlo

# Ops that hand a value on without touching memory, as XLA's own cost analysis has it, and ops whose work is done by the
# instructions of the computations they call (these would be counted twice).
NO_TRAFFIC = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain"})
CONTAINERS = frozenset({"while", "conditional", "call"})


@dataclass(frozen=True, eq=False)
class Instruction:
    """One HLO instruction. Equality is identity: there is one object per instruction of a module."""

    name: str
    opcode: str
    computation: str
    proto: Any = field(repr=False)
    module: HloModule = field(repr=False)

    @cached_property
    def shape(self) -> str:
        """Output shape as HLO prints it, with layout: ``bf16[4,128]{1,0:T(8,128)S(5)}``; S(5) is host memory."""
        return shapes.text(self.proto.shape)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the operand instructions."""
        return tuple(self.module.name_of(i) for i in self.operand_protos)

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations it calls: fusion body, while body and condition, branches, reducer."""
        names = self.module.computation_names
        return tuple(names[i] for i in self.proto.called_computation_ids if i in names)

    @cached_property
    def op_name(self) -> str:
        """The JAX name stack, such as ``jit(step)/jvp(student)/layers/while/body/dot_general``; "" if none."""
        return _text(self.proto.metadata.op_name)

    @cached_property
    def source(self) -> str:
        """``file:line`` of the innermost frame of user code, or "". Newer JAX keeps it in the module's frame table."""
        metadata = self.proto.metadata
        if metadata.source_file:
            return f"{_text(metadata.source_file)}:{metadata.source_line}"
        return self.module.frame_source(metadata.stack_frame_id)

    @cached_property
    def custom_call_target(self) -> str:
        """``tpu_custom_call``, ``__cublas$gemm`` …; "" for other opcodes."""
        return _text(self.proto.custom_call_target)

    @cached_property
    def fusion_kind(self) -> str:
        """``kLoop``, ``kInput``, ``kOutput``, ``kCustom``; "" for other opcodes."""
        return _text(self.proto.fusion_kind)

    @property
    def backend_config(self) -> bytes:
        """The backend's own notes, mostly JSON. Not kept: a Pallas call holds the whole kernel here."""
        if self.proto.backend_config or not self.proto.HasField("backend_config_payload"):
            return bytes(self.proto.backend_config)
        payload, table = self.proto.backend_config_payload, self.module.proto.payloads
        if payload.value:
            return bytes(payload.value)
        return bytes(table[payload.id]) if 0 <= payload.id < len(table) else b""

    @cached_property
    def frontend_attributes(self) -> dict[str, str]:
        """What the frontend attached, such as ``kernel_metadata`` of tokamax kernels."""
        return {_text(entry.key): _text(entry.value) for entry in self.proto.frontend_attributes.map}

    @cached_property
    def cost_estimate(self) -> CostEstimate | None:
        """The kernel author's estimate per execution, of Pallas calls that carry one."""
        return costs.cost_estimate(self.backend_config) if self.opcode == "custom-call" else None

    @cached_property
    def flops(self) -> float | None:
        """FLOPs per execution: dots and convolutions, summed inside fusions and async wrappers, and kernel estimates.

        Library matmuls and forward convolutions on GPU count too. Elementwise work counts 0 (see
        ``profiler.hlo.costs``), and so do while, conditional and call: the work is in the instructions of their
        computations. None where it cannot be known, such as a custom call without estimate.
        """
        if self.opcode in costs.OPAQUE:
            if self.cost_estimate:
                return self.cost_estimate.flops
            return costs.library_flops(self.custom_call_target, self.proto, self.operand_protos, self.backend_config)
        if self.opcode == "dot":
            return costs.dot_flops(self.proto, self.operand_protos)
        if self.opcode == "convolution":
            return costs.convolution_flops(self.proto, self.operand_protos, self.proto.shape)
        if self.opcode in ("fusion", "async-start"):
            return self.module.computation_flops(self.called)
        return 0.0

    @cached_property
    def bytes_accessed(self) -> float | None:
        """Operands + output in bytes per execution: an upper estimate of memory traffic.

        Operands that are read in part (slices, gathers), reused in registers or resident in VMEM are counted in full.
        Kernels with a cost estimate use that. 0 for instructions that move nothing themselves.
        """
        if self.cost_estimate and self.cost_estimate.bytes_accessed is not None:
            return self.cost_estimate.bytes_accessed
        if self.opcode in NO_TRAFFIC or self.opcode in CONTAINERS:
            return 0.0
        sizes = [shapes.size_bytes(p.shape) for p in (self.proto, *self.operand_protos)]
        return None if None in sizes else costs.as_float(sum(s for s in sizes if s is not None))

    @cached_property
    def fused_opcodes(self) -> frozenset[str]:
        """Opcodes inside a fusion or async wrapper, nested fusions included; empty for everything else."""
        return frozenset(i.opcode for i in self._inside)

    @cached_property
    def fused_op_names(self) -> tuple[str, ...]:
        """Distinct name stacks inside a fusion or async wrapper, in order of appearance."""
        return tuple(dict.fromkeys(i.op_name for i in self._inside if i.op_name))

    @cached_property
    def _inside(self) -> tuple[Instruction, ...]:
        return self.module.inside(self.called) if self.opcode.startswith(("fusion", "async-")) else ()

    @property
    def operand_protos(self) -> list[Any]:
        """Protos of the operands; ids that nothing in the module has are left out."""
        table = self.module.protos
        return [table[i] for i in self.proto.operand_ids if i in table]


@dataclass(frozen=True, eq=False)
class Computation:
    """A named list of instructions. ``thread`` is "" for the main thread, else e.g. "sparsecore"."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction | None
    is_fusion: bool
    thread: str


@dataclass(frozen=True, eq=False)
class HloModule:
    """A compiled program, from ``profiler.hlo.parse``.

    ``id`` is the module's own id. On TPU a trace's ``program_id`` is another number (the key of the event metadata
    that carries the proto): join by that key, not by this field. ``entry`` is the name of the entry computation.
    """

    name: str
    id: int
    entry: str
    proto: Any = field(repr=False)
    buffer_assignment: bytes = field(default=b"", repr=False)

    @cached_property
    def computations(self) -> Mapping[str, Computation]:
        """All computations by name, callees first."""
        found = {}
        for proto in self.proto.computations:
            name = _text(proto.name)
            members = tuple(Instruction(_text(i.name), _text(i.opcode), name, i, self) for i in proto.instructions)
            root = next((m for m in members if m.proto.id == proto.root_id), None)
            thread = _text(proto.execution_thread)
            found[name] = Computation(
                name, members, root, proto.is_fusion_computation, "" if thread == "main" else thread
            )
        return found

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """All instructions by name; XLA keeps names unique in a module."""
        return {i.name: i for c in self.computations.values() for i in c.instructions}

    @cached_property
    def buffers(self) -> Buffers | None:
        """What the compiler assigned to which memory; None if not recorded."""
        return read_buffers(self.buffer_assignment) if self.buffer_assignment else None

    @property
    def static_peak_bytes(self) -> int | None:
        """Device memory at the peak of one execution, as the compiler planned it; None if not recorded."""
        return self.buffers.peak_bytes if self.buffers else None

    @cached_property
    def op_names(self) -> frozenset[str]:
        """Distinct name stacks anywhere in the program, loop bodies and fusions included."""
        return frozenset(i.op_name for i in self.instructions.values() if i.op_name)

    def executions(self, name: str) -> float | None:
        """How often an instruction runs per execution of the entry computation.

        The product of the trip counts of the loops around it, summed over the places that call its computation. None
        where it depends on data (branches, loops without a known trip count), for elementwise appliers (the body of a
        reduce or sort), for unknown names and for computations that nobody calls.
        """
        instruction = self.instructions.get(name)
        return self._executions.get(instruction.computation) if instruction else None

    @cached_property
    def _executions(self) -> dict[str, float | None]:
        return executions(self)

    @cached_property
    def protos(self) -> dict[int, Any]:
        """Instruction protos by id."""
        return {i.id: i for c in self.proto.computations for i in c.instructions}

    @cached_property
    def computation_names(self) -> dict[int, str]:
        """Computation names by id."""
        return {c.id: _text(c.name) for c in self.proto.computations}

    def name_of(self, proto: Any) -> str:
        """The decoded name of an instruction proto."""
        return _text(proto.name)

    def inside(self, called: tuple[str, ...]) -> tuple[Instruction, ...]:
        """The instructions of computations and of the fusions and async wrappers nested in them, each once."""
        found: list[Instruction] = []
        seen: set[str] = set()
        pending = list(reversed(called))
        while pending:
            name = pending.pop()
            if name in seen or name not in self.computations:
                continue
            seen.add(name)
            for instruction in self.computations[name].instructions:
                found.append(instruction)
                if instruction.opcode.startswith(("fusion", "async-")):
                    pending.extend(instruction.called)
        return tuple(found)

    def computation_flops(self, called: tuple[str, ...]) -> float | None:
        """FLOPs of one execution of computations with the fusions nested in them; None if any part is unknown."""
        nested = ("fusion", "async-start")
        parts = [i.flops for i in self.inside(called) if i.opcode not in nested]
        return None if None in parts else sum(p for p in parts if p is not None)

    def frame_source(self, frame_id: int) -> str:
        """``file:line`` of a stack frame; ids count from 1, 0 is none."""
        table = self.proto.stack_frame_index
        frames, locations, files = table.stack_frames, table.file_locations, table.file_names
        if not 0 < frame_id <= len(frames):
            return ""
        location_id = frames[frame_id - 1].file_location_id
        if not 0 < location_id <= len(locations):
            return ""
        location = locations[location_id - 1]
        file = _text(files[location.file_name_id - 1]) if 0 < location.file_name_id <= len(files) else ""
        return f"{file}:{location.line}" if file else ""


def parse(data: bytes) -> HloModule:
    """Read an ``HloProto`` (a trace's ``Hlo Proto`` stat) or a bare ``HloModuleProto`` (what JAX serializes).

    Raises:
        UnreadableError: the bytes are neither, or are damaged.
    """
    # A bare module's first field is its name, which no HloProto parse survives: there field 1 is a message.
    wrapped, bare = hlo().HloProto(), hlo().HloModuleProto()
    if _parses(wrapped, data) and wrapped.hlo_module.computations:
        proto, assignment = wrapped.hlo_module, bytes(wrapped.buffer_assignment)
    elif _parses(bare, data) and bare.computations:
        proto, assignment = bare, b""
    else:
        raise UnreadableError("not an HLO program, or a damaged one")
    entry = _text(proto.entry_computation_name)
    if not entry:
        entry = next((_text(c.name) for c in proto.computations if c.id == proto.entry_computation_id), "")
    return HloModule(_text(proto.name), proto.id, entry, proto, assignment)


def _parses(message: Any, data: bytes) -> bool:
    try:
        message.ParseFromString(data)
    except Exception:  # protobuf's DecodeError; its class differs between protobuf implementations
        return False
    return True


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
