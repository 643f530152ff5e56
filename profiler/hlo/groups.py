"""Replica groups: which devices take part in a collective together, and which axes of a mesh that is.

XLA writes them as lists of ids, as a transposed iota (``[2,4]<=[4,2]T(1,0)``), or by the axes of a mesh that it names.
Ids count the devices in the order of the mesh, row-major, as JAX assigns them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from profiler.hlo.module import Instruction

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
               "collective-broadcast")  # fmt: skip
MOST_IDS = 1 << 20
_MADE_UP = re.compile(r"_?axis_?\d+$")
_LISTS = re.compile(r"replica_groups=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{} ]*\})\}")


@dataclass(frozen=True)
class Groups:
    """Groups of device ids; ``axes`` are the mesh axes that the program names, empty where it names none.

    ``pairs`` of a permute: (source, target) each. No groups at all: every device is in one.
    """

    ids: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...] = ()
    pairs: bool = False

    @property
    def size(self) -> int | None:
        """Devices in a group; None where groups differ, are all devices, or are pairs."""
        sizes = {len(each) for each in self.ids}
        return sizes.pop() if len(sizes) == 1 and not self.pairs else None


def groups_of(instruction: Instruction) -> Groups | None:
    """The groups of a collective, or of the one that an asynchronous op or a call holds; None for any other op."""
    found = _collective(instruction)
    return _read(found.proto) if found is not None else None


def _collective(instruction: Instruction) -> Instruction | None:
    pending, seen = [instruction], set()
    while pending:
        each = pending.pop()
        if each.opcode.removesuffix("-start") in COLLECTIVES:
            return each
        if each.opcode in ("while", "conditional"):
            continue
        for name in each.called:
            computation = each.module.computations.get(name)
            if computation is not None and name not in seen:
                seen.add(name)
                pending.extend(computation.instructions)
    return None


def _read(proto: Any) -> Groups | None:
    if proto.source_target_pairs:
        return Groups(tuple((each.source, each.target) for each in proto.source_target_pairs), pairs=True)
    lists = proto.collective_device_list.replica_groups or proto.replica_groups
    if lists:
        return Groups(tuple(tuple(each.replica_ids) for each in lists))
    iota = iota_of(proto)
    if iota.num_replica_groups:
        shape = (iota.num_replica_groups, iota.num_devices_per_group)
        ids = _iota(shape, tuple(iota.iota_reshape_dims), tuple(iota.iota_transpose_perm))
        return Groups(ids) if ids is not None else None
    named = proto.mesh_axes_replica_group_list
    if named.mesh.axes:
        return _by_axes(named)
    return Groups(())


def iota_of(proto: Any) -> Any:
    """The transposed iota that says a collective's groups; older programs keep it in the list of devices."""
    newer = proto.iota_collective_device_list
    return newer if newer.num_replica_groups else proto.collective_device_list.iota_replica_group_list


def _by_axes(named: Any) -> Groups | None:
    """Groups that are given as axes of a mesh; parts of an axis stay unnamed."""
    names = [each.name.decode("utf-8", "replace") for each in named.mesh.axes]
    sizes = [each.size for each in named.mesh.axes]
    used = [each.mesh_axis_index for each in named.axes]
    if math.prod(sizes) > MOST_IDS or min(sizes) <= 0 or len(set(used)) < len(used):
        return None
    if any(not 0 <= index < len(sizes) for index in used):
        return None
    if any(each.sub_axis_info for each in named.axes) or named.mesh.device_ids:
        return None
    rest = [index for index in range(len(sizes)) if index not in used]
    ids = np.arange(math.prod(sizes)).reshape(sizes).transpose(rest + used)
    members = math.prod(sizes[index] for index in used)
    return Groups(tuple(map(tuple, ids.reshape(-1, members).tolist())), tuple(names[index] for index in used))


def groups_text(hlo_text: str | None) -> str | None:
    """The part of an instruction's HLO text that says its groups; None where it says none."""
    for pattern in (_LISTS, _IOTA, _PAIRS):
        found = pattern.search(hlo_text or "")
        if found:
            return found[0]
    return None


@lru_cache(maxsize=1 << 12)
def parse_groups(text: str) -> Groups | None:
    """The groups that ``groups_text`` found."""
    iota = _IOTA.search(text)
    if iota:
        dims, order = (tuple(map(int, part.split(","))) if part else () for part in (iota[3], iota[4]))
        ids = _iota((int(iota[1]), int(iota[2])), dims, order)
        return Groups(ids) if ids is not None else None
    found = _LISTS.search(text) or _PAIRS.search(text)
    if not found:
        return None
    lists = tuple(tuple(map(int, part.split(","))) for part in re.findall(r"\{([\d,]+)\}", found[1].replace(" ", "")))
    return Groups(lists, pairs=found.re is _PAIRS)


def _iota(shape: tuple[int, int], dims: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    count = math.prod(dims)
    if count != math.prod(shape) or not 0 < count <= MOST_IDS or min(*dims, *shape) <= 0:
        return None
    if order and sorted(order) != list(range(len(dims))):
        return None
    ids: NDArray[np.int64] = np.arange(count).reshape(dims)
    return tuple(map(tuple, (ids.transpose(order) if order else ids).reshape(shape).tolist()))


def axes_of(groups: Groups, mesh: Mapping[str, int]) -> str | None:
    """The mesh axes along which the members of a group differ: "fsdp", "data, fsdp", "part of fsdp".

    By the mesh that is given, else by the program's own names. None where that is unknown or not that of the groups.
    """
    names, sizes = tuple(mesh), tuple(mesh.values())
    devices = math.prod(sizes) if sizes else 0
    if not devices or devices > MOST_IDS:
        # Names that XLA made up say nothing.
        return ", ".join(groups.axes) if groups.axes and not any(map(_MADE_UP.match, groups.axes)) else None
    ids = groups.ids or (tuple(range(devices)),)
    if sum(len(each) for each in ids) != devices and not groups.pairs:
        return None
    if any(not 0 <= number < devices for each in ids for number in each):
        return None
    spanned = _spanned(ids, sizes)
    used = [index for index, size in enumerate(sizes) if spanned[index] and size > 1]
    if not used:
        return None
    text = ", ".join(names[index] for index in used)
    whole = math.prod(sizes[index] for index in used)
    return text if groups.pairs or all(len(each) == whole for each in ids) else f"part of {text}"


def _spanned(ids: Sequence[Sequence[int]], sizes: tuple[int, ...]) -> list[bool]:
    """Per axis, whether the coordinate differs within any group."""
    spanned = [False] * len(sizes)
    for each in ids:
        coordinates = np.unravel_index(np.asarray(each, np.int64), sizes)
        for axis, values in enumerate(coordinates if len(each) else ()):
            spanned[axis] = spanned[axis] or bool((values != values[0]).any())
    return spanned
