"""A Pallas call of a compiled program as something that compiles alone: its code, operands and results."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from distill.aot.model import GroupedMatmul
from distill.aot.model_body import structure_of
from distill.aot.model_calls import describe
from profiler.hlo import Instruction
from profiler.hlo.schema import ELEMENT_TYPES, TUPLE

# What a kernel's author says to the compiler. The rest of a finished program's config are the compiler's own notes,
# some of which it does not read back.
_CONFIG = (
    "body", "serialization_format", "needs_layout_passes", "needs_hlo_passes", "allow_input_fusion",
    "internal_scratch_in_bytes", "disable_bounds_checks", "disable_semaphore_checks", "shape_invariant_numerics",
    "skip_device_barrier",
)  # fmt: skip
_OUTER = ("flag_configs", "scoped_memory_configs", "device_type")

Call = dict[str, Any]


@cache
def call_alone(instruction: Instruction) -> Call | None:
    """``config``, ``operands`` and ``results`` (type, dimensions); None for a call that is not one kernel on arrays."""
    try:
        config = json.loads(instruction.backend_config)
        custom = config["custom_call_config"]
        body = custom["body"]
    except (ValueError, KeyError, TypeError):
        return None
    shape = instruction.proto.shape
    results = list(shape.tuple_shapes) if shape.element_type == TUPLE else [shape]
    arrays = [*(each.shape for each in instruction.operand_protos), *results]
    if not body or any(each.element_type == TUPLE for each in arrays):
        return None
    kept = {name: config[name] for name in _OUTER if config.get(name)}
    kept["custom_call_config"] = {name: custom[name] for name in _CONFIG if custom.get(name) not in (None, [])}
    described = [(ELEMENT_TYPES.get(each.element_type, ("", 0))[0], list(each.dimensions)) for each in arrays]
    count = len(instruction.operand_protos)
    return {"config": kept, "operands": described[:count], "results": described[count:]}


@cache
def kernel_key(instruction: Instruction) -> str | None:
    """A name that calls share whose code differs in nothing but batch size or rows; None if it cannot compile alone."""
    call, found, structure = call_alone(instruction), describe(instruction), structure_of(instruction.backend_config)
    if call is None or found is None or structure is None:
        return None
    alike = replace(found, m=0) if isinstance(found, GroupedMatmul) else replace(found, heads=0)
    arrays = [(kind, len(dims)) for kind, dims in (*call["operands"], *call["results"])]
    facts = [structure, asdict(alike), arrays, call["config"].get("flag_configs")]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
