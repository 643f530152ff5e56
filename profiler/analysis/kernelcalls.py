"""Custom calls as the program states them: the arrays they take and give, and the tiles of their kernels.

From the HLO instruction, else from the HLO text that TPU recordings have as the op's name. Tiles come, best first, from
``kernel_tiles`` (a JSON object that ``distill compile`` leaves beside the call), from the settings that tokamax notes
in ``kernel_metadata`` and ``xprof_metadata``, and from names that hold them (``RPA-bq_32-bkvp_64-p_64-``). Pallas keeps
the tiles of all other kernels in byte code, which nothing here reads: they are unknown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from profiler.hlo import Instruction
from profiler.hlo.schema import ELEMENT_TYPES

TILES_ATTRIBUTE = "kernel_tiles"
BLOCKS = ("executed_blocks", "blocks")  # in the same object: of splash's square, how many blocks run, and of how many
LAYOUTS = {1: "HEAD_DIM_MINOR", 2: "SEQ_MINOR"}  # tokamax's QKVLayout
Tile = int | str | list[int]
Tiles = dict[str, Tile]

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_SETTING = re.compile(r'\\*"([a-z]\w*)\\*":\s*(\d+|true|false)')
# "…_512_5120_2560.64" and "RPA-bq_32-bkvp_64-p_64-.1": sizes at the end of a name, a counter behind them.
_SIZES = re.compile(r"((?:_\d+){2,})(?:\.\d+)*$")
_NAMED_SIZES = re.compile(r"[-_]([a-z]+)[_=](\d+)(?=[-_.]|$)")
_SUFFIXES = {"splash backward (dq)": "_dq", "splash backward (dkv)": "_dkv", "splash backward (fused)": "_dkv"}
_BITS = dict(ELEMENT_TYPES.values())
_INTEGERS = re.compile(r"(s|u)\d+$|pred$")


@dataclass(frozen=True, slots=True)
class Array:
    """One array: element type as HLO prints it, and dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Size without padding."""
        return (self.size * _BITS.get(self.dtype, 0) + 7) // 8

    @property
    def is_integer(self) -> bool:
        """Whether it holds indices, masks or sizes rather than values."""
        return _INTEGERS.match(self.dtype) is not None


@dataclass(frozen=True)
class Call:
    """A custom call: its name, what it takes and gives, and what was noted beside it."""

    name: str
    operands: tuple[Array, ...]
    outputs: tuple[Array, ...]
    attributes: Mapping[str, str]

    @cached_property
    def values(self) -> tuple[Array, ...]:
        """The operands that hold values."""
        return tuple(each for each in self.operands if not each.is_integer)

    @cached_property
    def settings(self) -> dict[str, int]:
        """Numbers among the noted settings; ``true`` is 1. Both attributes are JSON inside JSON, with raw newlines."""
        notes = " ".join(text for key, text in self.attributes.items() if key.endswith("_metadata"))
        return {key: int(value) if value.isdigit() else int(value == "true") for key, value in _SETTING.findall(notes)}

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The ``kernel_tiles`` object; empty if there is none or it is damaged."""
        try:
            found = json.loads(self.attributes.get(TILES_ATTRIBUTE) or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def tiles(self, family: str) -> Tiles:
        """Tile sizes, blocks and layouts; empty where nothing says."""
        noted = {str(key): value for key, value in self.facts.items() if key not in BLOCKS and _is_tile(value)}
        settings = _splash(self.settings, family) if "splash" in family else {}
        return {**settings, **noted} or _in_name(self.name)


def of_instruction(instruction: Instruction) -> Call:
    """A custom call of an HLO module."""
    shape = instruction.proto.shape
    outputs = shape.tuple_shapes or [shape]
    return Call(
        instruction.name,
        tuple(_array(each.shape) for each in instruction.operand_protos),
        tuple(_array(each) for each in outputs),
        instruction.frontend_attributes,
    )


def of_text(name: str, text: str) -> Call:
    """A custom call from its HLO text; attributes stay unread, since the profiler cuts long texts."""
    made, _, rest = text.partition(" = ")[2].partition(" custom-call(")
    return Call(name, _arrays(rest.partition("), ")[0]), _arrays(made), {})


def _array(shape: Any) -> Array:
    return Array(ELEMENT_TYPES.get(shape.element_type, ("invalid", 0))[0], tuple(shape.dimensions))


def _arrays(text: str) -> tuple[Array, ...]:
    found = _ARRAY.findall(text)
    return tuple(Array(kind, tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)) for kind, dims in found)


def _is_tile(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, int) for each in value)
    return isinstance(value, int | str) and not isinstance(value, bool)


def _splash(settings: Mapping[str, int], family: str) -> Tiles:
    """Blocks of the pass that the call is, under the names of the forward pass, and layouts."""
    suffix = _SUFFIXES.get(family, "")
    names = {f"block_q{suffix}": "block_q", f"block_kv{suffix}": "block_kv"}
    names["block_kv_compute" if not suffix else f"block_kv{suffix}_compute"] = "block_kv_compute"
    found: Tiles = {plain: settings[key] for key, plain in names.items() if settings.get(key)}
    for key in ("q_layout", "k_layout", "v_layout") if found else ():
        if settings.get(key) in LAYOUTS:
            found[key] = LAYOUTS[settings[key]]
    return found


def _in_name(name: str) -> Tiles:
    sizes = _SIZES.search(name)
    if sizes:
        return {"block": [int(size) for size in sizes[1].strip("_").split("_")]}
    return {key: int(size) for key, size in _NAMED_SIZES.findall(name)}
