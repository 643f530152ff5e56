"""The grid and block shapes of a compiled Pallas call, from the kernel that the HLO carries.

``backend_config.custom_call_config.body`` holds the kernel as MLIR bytecode. Its entry function says how often the
kernel runs (``iteration_bounds``) and which block of each operand and output a grid step sees (``window_params``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

_BODY = re.compile(rb'"body"\s*:\s*"([A-Za-z0-9+/=\\]*)"')
_BOUNDS = re.compile(r"iteration_bounds = array<i64: ([-\d, ]+)>")
_WINDOW = re.compile(r"window_bounds = array<i64: ([-\d, ]+)>")
_PREFETCH = re.compile(r"scalar_prefetch = (\d+)")
_NUMBER = re.compile(r"(dimension_numbers<[^>]*>)|\d+")
_DYNAMIC = -(2**63)  # MLIR's kDynamic


@dataclass(frozen=True, slots=True)
class Body:
    """What a kernel's entry function says of itself.

    Attributes:
        grid: iterations per grid dimension, outermost first; None where they depend on an operand.
        windows: block shapes of the operands behind the prefetched scalars, then of the outputs.
        prefetched: operands that are prefetched scalars.
    """

    grid: tuple[int | None, ...]
    windows: tuple[tuple[int, ...], ...]
    prefetched: int


def body_of(backend_config: bytes) -> Body | None:
    """The grid and blocks of a Pallas call; None without a body, or for one that cannot be read here."""
    found = (parse_attributes(function) for function in _functions(backend_config))
    return next((each for each in found if each is not None), None)


def structure_of(backend_config: bytes) -> str | None:
    """A digest of the kernel's operations that is blind to all numbers but the axes of its matmuls; None as in
    ``body_of``."""
    functions = _functions(backend_config)
    text = _NUMBER.sub(lambda match: match[1] or "0", "\n".join(functions))
    return hashlib.sha256(text.encode()).hexdigest() if functions else None


def _functions(backend_config: bytes) -> tuple[str, ...]:
    """The functions of a kernel as text; none where there is no kernel, or one that cannot be read here."""
    match = _BODY.search(backend_config)
    if match is None:
        return ()
    try:
        return _read(base64.b64decode(match[1].replace(b"\\", b""), validate=True))
    except binascii.Error:
        return ()


@lru_cache(maxsize=64)
def _read(code: bytes) -> tuple[str, ...]:
    try:
        tpu = import_module("jax._src.lib").tpu  # Mosaic's dialect has no public name
        from jaxlib.mlir import ir
    except (ImportError, AttributeError):  # moved, or jax is not there: the caller has a coarser estimate
        return ()
    context = ir.Context()
    context.allow_unregistered_dialects = True
    tpu.register_dialect(context)
    try:
        module = ir.Module.parse(code, context)
    except ir.MLIRError:  # bytecode of another version
        return ()
    return tuple(str(each.operation.get_asm(large_elements_limit=8)) for each in module.body.operations)


def parse_attributes(text: str) -> Body | None:
    """The attributes of an entry function in its printed form; None for other functions, which have none."""
    bounds, windows = _BOUNDS.search(text), _WINDOW.findall(text)
    if bounds is None or not windows:
        return None
    prefetched = _PREFETCH.search(text)
    return Body(
        grid=tuple(None if size == _DYNAMIC else size for size in _numbers(bounds[1])),
        windows=tuple(_numbers(window) for window in windows),
        prefetched=int(prefetched[1]) if prefetched else 0,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
