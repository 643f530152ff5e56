"""A small builder of HLO modules, so that a test states only what it is about."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.hlo.schema import hlo

F32, S32, PRED, TUPLE = 11, 4, 1, 13


class Builder:
    """Builds one HloModuleProto; instructions are named, operands and callees given by name."""

    def __init__(self) -> None:
        self.module = hlo().HloModuleProto(name=b"jit_step", id=7)
        self.instruction_ids: dict[str, int] = {}
        self.computation_ids: dict[str, int] = {}

    def computation(self, name: str, *rows: tuple[str, str, tuple[str, ...], dict[str, Any]]) -> None:
        """Rows are (name, opcode, operands, fields); the last is the root, the last computation the entry."""
        computation = self.module.computations.add(name=name.encode(), id=self._id(self.computation_ids, name))
        for row, opcode, operands, fields in rows:
            instruction = computation.instructions.add(name=row.encode(), opcode=opcode.encode())
            instruction.id = computation.root_id = self._id(self.instruction_ids, row)
            instruction.operand_ids.extend(self._id(self.instruction_ids, o) for o in operands)
            for key, value in fields.items():
                if key == "calls":
                    instruction.called_computation_ids.extend(self._id(self.computation_ids, c) for c in value)
                elif key == "op_name":
                    instruction.metadata.op_name = value.encode()
                elif key == "dims":
                    instruction.shape.element_type = F32
                    instruction.shape.dimensions.extend(value)
                elif key == "constant":
                    instruction.shape.element_type = S32
                    instruction.literal = hlo().LiteralProto(s32s=[value]).SerializeToString()
                else:
                    setattr(instruction, key, value)
        self.module.entry_computation_name, self.module.entry_computation_id = name.encode(), computation.id

    @staticmethod
    def _id(table: dict[str, int], name: str) -> int:
        return table.setdefault(name, len(table) + 1)

    def bytes(self) -> bytes:
        return self.module.SerializeToString()


@pytest.fixture
def builder() -> Builder:
    return Builder()
