"""What one collective or transfer moves, and between whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from profiler.analysis.families import COMMUNICATION, TRANSFER
from profiler.hlo.groups import Groups, axes_of, groups_of, parse_groups
from profiler.hlo.schema import ELEMENT_TYPES
from profiler.trace import Trace

TO_HOST, FROM_HOST, INFEED, OUTFEED = "to host", "from host", "infeed", "outfeed"
_BITS = dict(ELEMENT_TYPES.values())
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_PLACE = re.compile(r"\w\[[^\]]*\](@?)")  # the first array of a shape, "@" for one in host memory
_HALF = re.compile(r"[-_](done|update)(?=\.|$)")
_PLAIN = re.compile(r"(copy|slice|dynamic-slice|dynamic-update-slice)([-.]|$)")  # asynchronous, and nothing more
_START = re.compile(r"([-_])start(?=[.\-_]|$)")


@dataclass(frozen=True)
class Moved:
    """One op: ``where`` is a mesh axis or a direction; ``bytes`` per call, what a device sends or moves; None unknown.

    ``half`` marks the done of an asynchronous pair, whose start counts the call and its bytes. ``members`` of a
    collective are the devices in a group.
    """

    where: str | None
    bytes: float | None
    half: bool = False
    members: int | None = None


def moved(trace: Trace) -> dict[int, Moved]:
    """The ops of a trace that move data, by op_id; both halves of an asynchronous pair are of one place."""
    rows = trace.ops.filter(trace.ops["rank"].is_between(COMMUNICATION, TRANSFER)).to_dicts()
    by_name = {(row["program_id"], row["op"]): row for row in rows}
    modules = {name: module for (_, name), module in trace.programs.items()}
    mesh = mesh_of(trace)
    found: dict[int, Moved] = {}
    for row in sorted(rows, key=_is_half):
        half = _is_half(row)
        other = _other_half(row, by_name)
        if half and other is not None and other["op_id"] in found:
            found[row["op_id"]] = replace(found[other["op_id"]], half=True)
        else:
            result = other["shape"] if other is not None and not half else None
            found[row["op_id"]] = replace(_moved(row, result or row["shape"], modules, mesh), half=half)
    return found


def _is_half(row: Mapping[str, Any]) -> bool:
    opcode = row["opcode"] or ""
    return opcode.endswith(("-done", "-update")) or _HALF.search(row["op"]) is not None


def _other_half(row: Mapping[str, Any], by_name: Mapping[Any, dict[str, Any]]) -> dict[str, Any] | None:
    """The done of a start, the start of a done, by their names."""
    if _is_half(row):
        name = _HALF.sub(lambda match: f"{match[0][0]}start", row["op"])
    else:
        name = _START.sub(r"\1done", row["op"])
    return by_name.get((row["program_id"], name)) if name != row["op"] else None


def mesh_of(trace: Trace) -> dict[str, int]:
    """Axis → size, as the run info has it; empty if it has none."""
    mesh = (trace.run_info or {}).get("mesh")
    if not isinstance(mesh, Mapping):
        return {}
    sizes = {str(axis): size for axis, size in mesh.items()}
    return sizes if all(isinstance(size, int) and size > 0 for size in sizes.values()) else {}


def _moved(row: dict[str, Any], result: str | None, modules: Mapping[str, Any], mesh: Mapping[str, int]) -> Moved:
    """What an op moves; ``result`` is the shape of what it gives, of a start that of its done."""
    if row["rank"] != COMMUNICATION:
        plain = row["opcode"] == "copy-start" or _PLAIN.match(row["op"]) is not None
        return Moved(_direction(row, result), _slice(row["shape"]) if plain else None)
    groups = _groups(row, modules)
    members = _members(groups, mesh)
    axes = axes_of(groups, mesh) if groups is not None else None
    return Moved(axes, sent(row["family"], _largest(result), members), members=members)


def _groups(row: dict[str, Any], modules: Mapping[str, Any]) -> Groups | None:
    if row["groups"]:
        return parse_groups(row["groups"])
    module = modules.get(row["program_id"])
    instruction = module.instructions.get(row["op"]) if module is not None else None
    return groups_of(instruction) if instruction is not None else None


def _members(groups: Groups | None, mesh: Mapping[str, int]) -> int | None:
    if groups is None:
        return None
    if groups.pairs:
        return 2
    return groups.size if groups.ids else prod(mesh.values()) if mesh else None


def sent(kind: str, result: int | None, members: int | None) -> float | None:
    """Bytes that a device sends in a ring of ``members``, from the bytes of the result; None if unknown.

    The bandwidth convention of NCCL's tests: an all-gather or all-to-all of S bytes sends (n−1)/n · S, an all-reduce
    twice that, a reduce-scatter, whose result is S/n, (n−1) times its result, a permute S.
    """
    if kind == "collective-permute":
        return None if result is None else float(result)
    if result is None or not members:
        return None
    share = (members - 1) / members
    factor = {"all-gather": share, "all-to-all": share, "all-reduce": 2 * share, "reduce-scatter": members - 1}.get(
        kind
    )
    return None if factor is None else factor * result


def _direction(row: dict[str, Any], result: str | None) -> str | None:
    """Which way a host transfer goes, by where its result lies; None for copies within the device."""
    opcode, op = row["opcode"] or "", row["op"]
    if opcode.startswith(("infeed", "outfeed")):
        return INFEED if opcode.startswith("infeed") else OUTFEED
    if row["family"] != "host transfer":
        return None
    if "H2D" in op or "HostToDevice" in op:
        return FROM_HOST
    if "D2H" in op or "DeviceToHost" in op:
        return TO_HOST
    if opcode.startswith("send"):
        return TO_HOST
    if opcode.startswith("recv"):
        return FROM_HOST
    shape = _LAYOUT.sub(lambda match: "@" if "S(5)" in match[0] else "", result or "")
    if shape.startswith("(("):  # ((operands), result, …)
        shape = shape.partition("), ")[2]
    found = _PLACE.search(shape)
    return None if found is None else TO_HOST if found[1] else FROM_HOST


@lru_cache(maxsize=1 << 12)
def _arrays(shape: str) -> tuple[tuple[int, int, str], ...]:
    """(rank, bytes, layout) of each array in a shape text; tokens and opaque values are left out."""
    found = []
    for kind, dims, layout in _ARRAY.findall(shape):
        if kind in _BITS:
            sizes = [int(size.lstrip("<=")) for size in dims.split(",")] if dims else []
            found.append((len(sizes), (prod(sizes) * _BITS[kind] + 7) // 8, layout))
    return tuple(found)


def _largest(shape: str | None) -> int | None:
    """Bytes of the result of a collective: all arrays of a combined one; of a start, which lists operands too, the
    largest.
    """
    arrays = _arrays(shape or "")
    if not arrays:
        return None
    nested = (shape or "").startswith("((")
    return max(size for _, size, _ in arrays) if nested else sum(size for _, size, _ in arrays)


def _slice(shape: str | None) -> float | None:
    """Bytes that a copy moves: of a slice out of, or into, something larger those of the slice."""
    arrays = _arrays(shape or "")
    most = max((rank for rank, _, _ in arrays), default=0)
    sizes = [size for rank, size, _ in arrays if rank == most and size]
    return float(min(sizes)) if sizes else None
