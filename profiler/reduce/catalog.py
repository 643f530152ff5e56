"""The ops of one file, each described once and classified once all are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import polars as pl

from profiler.analysis import families
from profiler.hlo import HloModule, Instruction, near_op_name
from profiler.hlo.groups import groups_text
from profiler.trace import OPS_COLUMNS

FUSION_CATEGORY = {
    "kLoop": "loop fusion",
    "kInput": "input fusion",
    "kOutput": "output fusion",
    "kCustom": "custom fusion",
}


@dataclass
class Entry:
    """What is known of one op; see OPS_COLUMNS."""

    program: str | None
    program_id: str | None
    op: str
    hlo: bool
    facts: families.OpFacts
    category: str | None = None
    near_stack: str | None = None
    flops: int | None = None
    bytes_accessed: int | None = None


@dataclass
class Catalog:
    """Numbers ops as they are met. Keys are (program id, name) with HLO, anything hashable without."""

    entries: list[Entry] = field(default_factory=list)
    _ids: dict[Any, int] = field(default_factory=dict)

    def op_id(self, key: Any, make: Callable[[], Entry]) -> int:
        """The number of an op, described by ``make`` when it is new."""
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.entries)
            self.entries.append(make())
        return found

    def frame(self, *, distillation: bool = False) -> pl.DataFrame:
        """Trace.ops for this file, op_id from 0; ``distillation`` if the run is known to have a teacher."""
        programs: dict[str | None, list[families.OpFacts]] = {}
        for entry in self.entries:
            programs.setdefault(entry.program_id, []).append(entry.facts)
        contexts = {
            program: families.program_facts(facts, distillation=distillation) for program, facts in programs.items()
        }
        rows: dict[str, list[Any]] = {name: [] for name in OPS_COLUMNS}
        for op_id, entry in enumerate(self.entries):
            facts = entry.facts
            family = families.family(facts)
            for name, value in (
                ("op_id", op_id),
                ("program", entry.program),
                ("program_id", entry.program_id),
                ("op", entry.op),
                ("hlo", entry.hlo),
                ("category", entry.category),
                ("opcode", families.opcode_of(facts)),
                ("family", family),
                ("rank", families.rank(family)),
                ("phase", families.phase(facts, contexts[entry.program_id])),
                ("kernel", families.kernel_name(facts)),
                ("name_stack", None if entry.near_stack else facts.name_stack),
                ("near_stack", entry.near_stack),
                ("source", facts.source),
                ("shape", facts.shape),
                ("hlo_text", facts.hlo_text),
                ("groups", groups_text(facts.hlo_text) if families.rank(family) == families.COMMUNICATION else None),
                ("flops", entry.flops),
                ("bytes_accessed", entry.bytes_accessed),
            ):
                rows[name].append(value)
        return pl.DataFrame(rows, schema={name: getattr(pl, kind) for name, kind in OPS_COLUMNS.items()})


@lru_cache(maxsize=1 << 16)
def _category(opcode: str, fusion_kind: str | None) -> str:
    return FUSION_CATEGORY.get(fusion_kind or "", "fusion") if opcode == "fusion" else opcode


def instruction_entry(
    module: HloModule,
    program_id: str,
    instruction: Instruction,
    *,
    hlo: bool,
    kernel: str | None = None,
    op: str | None = None,
) -> Entry:
    """An op described by its HLO instruction: GPU kernels, CPU ops. ``op`` names it where its own name would not do."""
    near = None if instruction.op_name or instruction.fused_op_names else near_op_name(instruction)
    return Entry(
        program=module.name,
        program_id=program_id if hlo else None,
        op=op or instruction.name,
        hlo=hlo,
        facts=families.OpFacts(
            name=instruction.name,
            opcode=instruction.opcode,
            category=(category := _category(instruction.opcode, instruction.fusion_kind)),
            name_stack=instruction.op_name or near,
            shape=instruction.shape,
            custom_call_target=instruction.custom_call_target or None,
            kernel=kernel,
            fused_opcodes=instruction.fused_opcodes,
            fused_op_names=instruction.fused_op_names,
            source=instruction.source or None,
        ),
        category=category,
        near_stack=near,
        flops=_bounded(instruction.flops),
        bytes_accessed=_bounded(instruction.bytes_accessed),
    )


def _bounded(value: float | None) -> int | None:
    """A count that fits 64 bits; a damaged shape can claim more."""
    return int(value) if value is not None and 0 <= value < 2**62 else None
