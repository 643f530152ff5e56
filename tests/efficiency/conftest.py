"""TPU programs by hand: instructions with shapes, name stacks and attributes, and the spans in which they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from profiler.hlo.schema import ELEMENT_TYPES, hlo
from profiler.xplane.write import SpaceBuilder

TYPES = {name: number for number, (name, _) in ELEMENT_TYPES.items()}
US = 10**6
SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"


@dataclass
class Program:
    """One computation that runs once a step, op after op, on one device."""

    device: str = "TPU v6 Lite"
    ops: list[dict[str, Any]] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)
    module: Any = field(default_factory=lambda: hlo().HloModuleProto(name=b"jit_step", id=7, entry_computation_id=1))

    def __post_init__(self) -> None:
        self.computation = self.module.computations.add(name=b"main", id=1)
        self.module.entry_computation_name = b"main"

    def op(
        self,
        name: str,
        opcode: str,
        shape: str | tuple[str, ...],
        operands: tuple[str, ...] = (),
        *,
        us: float = 0,
        stack: str = "",
        **more: Any,
    ) -> Program:
        """Adds an instruction; ``us`` > 0 runs it. Shapes are "bf16[4,8]".

        ``more``: config, attributes and target of the instruction; flops, bytes, category and text of the op.
        """
        proto = self.computation.instructions.add(name=name.encode(), opcode=opcode.encode())
        proto.id = self.computation.root_id = self._ids.setdefault(name, len(self._ids) + 1)
        proto.operand_ids.extend(self._ids[each] for each in operands)
        proto.metadata.op_name = stack.encode()
        if isinstance(shape, str):
            _fill(proto.shape, shape)
        else:
            proto.shape.element_type = 13
            for part in shape:
                _fill(proto.shape.tuple_shapes.add(), part)
        if opcode == "custom-call":
            proto.custom_call_target = more.get("target", "tpu_custom_call").encode()
        proto.backend_config = more.get("config", b"")
        proto.tuple_index = more.get("index", 0)
        for key, value in more.get("attributes", {}).items():
            proto.frontend_attributes.map.add(key=key.encode(), value=value.encode())
        if us:
            self.ops.append({"name": name, "opcode": opcode, "us": us, "stack": stack, **more})
        return self

    def write(self, path: Path, *, steps: int = 3, hlo_proto: bool = True, run_info: Any = None) -> str:
        """The recording: ``steps`` equal steps without gaps."""
        space = SpaceBuilder(hostnames=("host-0",))
        plane = space.plane("/device:TPU:0", stats={"device_type_string": self.device})
        marks, line = plane.line("Steps"), plane.line("XLA Ops")
        now = 0
        for step in range(steps):
            begin = now
            for number, op in enumerate(self.ops, 1):
                duration = round(op["us"] * US)
                line.event(
                    op.get("text") or f"%{op['name']} = f32[8]{{0}} {op['opcode']}(f32[8]{{0}} %x)",
                    now,
                    duration,
                    display_name=op["name"],
                    metadata_stats={
                        "program_id": 7,
                        "symbol_id": number,
                        "hlo_category": op.get("category", op["opcode"]),
                        "flops": op.get("flops", 0),
                        "bytes_accessed": op.get("bytes", 0),
                        "tf_op": f"{op['stack']}:",
                    },
                )
                now += duration
            marks.event(str(step), begin, now - begin)
        if hlo_proto:
            space.hlo_proto("jit_step", 7, self.module.SerializeToString())
        if run_info is not None:
            space.plane("/host:run_info", stats={"run_info": json.dumps(run_info)})
        return str(space.write(path))


def _fill(shape: Any, text: str) -> None:
    kind, _, dims = text.partition("[")
    shape.element_type = TYPES[kind]
    shape.dimensions.extend(int(size) for size in dims.rstrip("]").split(",") if size)


@pytest.fixture
def program() -> Callable[..., Program]:
    return Program


@pytest.fixture(scope="session")
def valid() -> Callable[[bytes, str], Any]:
    """Checks JSON output against its schema, every key described, and gives it back."""

    def closed(node: Any) -> Any:
        if isinstance(node, dict):
            node = {key: closed(value) for key, value in node.items()}
            return {**node, "additionalProperties": False} if "properties" in node else node
        return [closed(item) for item in node] if isinstance(node, list) else node

    def check(text: bytes, name: str) -> Any:
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        data = json.loads(text)
        jsonschema.validate(data, closed(schema), cls=jsonschema.Draft202012Validator)
        return data

    return check
