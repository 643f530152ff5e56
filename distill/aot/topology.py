"""Slices by the names that the TPU world writes, and by the names that libtpu understands.

A name is a generation and either a size (``v5e-16``, ``v5p-8``, ``tpu7x-128``) or a shape in chips (``tpu7x-4x4x4``).
A size counts what Google Cloud counts: TensorCores on v4, v5p and tpu7x, which have two a chip, chips on v5e and v6e.
Sources: https://docs.cloud.google.com/tpu/docs/v4, …/v5e, …/v5p, …/v6e and …/tpu7x for names, sizes and shapes; what
libtpu 0.0.42 accepts was tried.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from profiler.errors import UsageError
from profiler.hardware import CHIPS, Chip

Shape = tuple[int, ...]

# Shapes that a size means, smallest first. Of two shapes in the vendor's tables the more cubic one counts.
_FLAT: tuple[Shape, ...] = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBES: tuple[Shape, ...] = (
    (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16), (8, 16, 16),
)  # fmt: skip
_HOST = (2, 2, 1)  # chips of one host; libtpu takes whole hosts only, or a host of one chip


@dataclass(frozen=True)
class _Generation:
    name: str
    libtpu: str  # how libtpu writes it
    chip: str  # key in profiler.hardware
    cores: int  # what a size counts per chip
    shapes: tuple[Shape, ...]
    most: int  # chips of the largest slice
    aliases: tuple[str, ...] = ()


_GENERATIONS = (
    _Generation("v4", "v4", "tpu-v4", 2, _CUBES, 4096, ("tpu-v4",)),
    _Generation("v5e", "v5e", "tpu-v5e", 1, _FLAT, 256, ("v5litepod", "tpu-v5e")),
    _Generation("v5p", "v5p", "tpu-v5p", 2, _CUBES, 8960, ("tpu-v5p",)),
    _Generation("v6e", "v6e", "tpu-v6e", 1, _FLAT, 256, ("tpu-v6e",)),
    _Generation("tpu7x", "tpu7x", "tpu-v7x", 2, ((1, 1, 1), *_CUBES), 9216, ("v7x", "tpu-v7x", "tpu-7x")),
)
_BY_NAME = {name: each for each in _GENERATIONS for name in (each.name, *each.aliases)}
_CHIPS = {chip.key: chip for chip in CHIPS}


@dataclass(frozen=True)
class Topology:
    """One slice.

    Attributes:
        name: the generation and the shape, the same for every spelling: ``tpu7x-4x4x4``.
        size_name: the generation and the size: ``tpu7x-128``.
        libtpu_name: what libtpu calls it: ``tpu7x:4x4x4``.
        shape: chips along each axis of the torus.
        devices: JAX devices: one per chip, two on tpu7x.
        chip: the product, with its peaks.
    """

    name: str
    size_name: str
    libtpu_name: str
    shape: Shape
    devices: int
    chip: Chip

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.shape)

    @property
    def options(self) -> dict[str, Any]:
        """What ``jax.experimental.topologies.get_topology_desc`` needs besides the name."""
        options: dict[str, Any] = {}
        if self.chips == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        if self.chip.key == "tpu-v4":
            options["chip_config_name"] = "megacore"  # one device per chip, as jax shows them on hardware
        return options


def topologies() -> tuple[Topology, ...]:
    """The usual slices, by generation and size."""
    return tuple(_topology(each, shape) for each in _GENERATIONS for shape in each.shapes)


def find(name: str) -> Topology:
    """The slice of a name: ``v5e-16``, ``v5p-8``, ``tpu7x-4x4x4``, ``tpu7x:4x4x4``.

    Raises:
        UsageError: no such generation, or a size or shape that it does not have.
    """
    match = re.fullmatch(r"(.+?)[-:](\d+(?:x\d+)*)", name.strip().lower())
    generation = _BY_NAME.get(match[1]) if match else None
    if match is None or generation is None:
        raise UsageError(
            f"no such topology: {name!r}",
            remedy="write v5e-16, v5p-8, v6e-8 or tpu7x-4x4x4; `distill topologies` lists them",
        )
    if "x" in match[2]:
        return _topology(generation, _checked(generation, tuple(map(int, match[2].split("x"))), name))
    size = int(match[2])
    shapes = {math.prod(shape) * generation.cores: shape for shape in generation.shapes}
    if size not in shapes:
        unit = "chips" if generation.cores == 1 else f"TensorCores, {generation.cores} a chip"
        raise UsageError(
            f"{generation.name} has no slice of size {size}",
            remedy=f"sizes, in {unit}: {', '.join(map(str, shapes))}; or a shape in chips",
        )
    return _topology(generation, shapes[size])


def _checked(generation: _Generation, shape: Shape, name: str) -> Shape:
    """The shape, if a slice can have it."""
    axes = len(generation.shapes[0])
    whole = all(length > 0 and length % host == 0 for length, host in zip(shape, _HOST, strict=False))
    if len(shape) != axes or not (whole or shape in generation.shapes) or math.prod(shape) > generation.most:
        example = "x".join(map(str, generation.shapes[3]))
        raise UsageError(
            f"{generation.name} has no slice {name!r}",
            remedy=f"{axes} axes in chips, the first two even, {generation.most} chips at most: {example}",
        )
    return shape


def _topology(generation: _Generation, shape: Shape) -> Topology:
    chip = _CHIPS[generation.chip]
    text, chips = "x".join(map(str, shape)), math.prod(shape)
    return Topology(
        name=f"{generation.name}-{text}",
        size_name=f"{generation.name}-{chips * generation.cores}",
        libtpu_name=f"{generation.libtpu}:{text}",
        shape=shape,
        devices=chips * chip.devices_per_chip,
        chip=chip,
    )
