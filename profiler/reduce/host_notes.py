"""The warnings of many hosts in few lines: what holds for all of them once, what holds for some with their names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from profiler.fleet import FAILED, Fleet, Host
from profiler.reduce.host_part import HostPart
from profiler.results import Note
from profiler.runinfo import number

MOST_HOSTS = 5  # named in a warning


def host_notes(fleet: Fleet, parts: Sequence[HostPart]) -> list[Note]:
    """Warnings about hosts that failed or lack, then those of the files, in the order in which they first occur.

    Args:
        fleet: all hosts.
        parts: those that were read.
    """
    return [*unreadable(fleet.hosts), *_without_ops(parts), *_missing(fleet, parts), *_of_files(parts)]


def unreadable(hosts: Sequence[Host]) -> list[Note]:
    """The hosts that could not be read."""
    failed = [host for host in hosts if host.status == FAILED]
    if not failed:
        return []
    text = _named([f"{host.name} ({host.why})" for host in failed])
    what = "host is left out since it" if len(failed) == 1 else "hosts are left out since they"
    message = f"{len(failed):,} of {len(hosts):,} {what} cannot be read: {text}"
    return [Note("hosts_unreadable", message, tuple(host.name for host in failed[:MOST_HOSTS]))]


def _without_ops(parts: Sequence[HostPart]) -> list[Note]:
    empty = [part.hosts[0] for part in parts if not part.devices]
    if not empty or len(empty) == len(parts):
        return []
    return [Note("hosts_without_ops", f"no device ops {_where(empty, len(parts))}", tuple(empty[:MOST_HOSTS]))]


def _missing(fleet: Fleet, parts: Sequence[HostPart]) -> list[Note]:
    """Devices of the mesh that no file has: a host's file was perhaps not copied."""
    notes = []
    for recording in sorted({host.recording for host in fleet.read}):
        files = {host.file for host in fleet.read if host.recording == recording}
        mine = [part for part in parts if part.file in files]
        mesh = next((_size((part.run_info or {}).get("mesh")) for part in mine if part.run_info), None)
        found = sum(len(part.devices) + len(part.idle) for part in mine)
        if mesh and found < mesh:
            notes.append(
                Note(
                    "hosts_missing", f"the run had {mesh:,} devices by its mesh, these files have {found:,}: files lack"
                )
            )
    return notes


def _size(mesh: Any) -> int | None:
    """Devices of a mesh."""
    sizes = [number(size) for size in mesh.values()] if isinstance(mesh, Mapping) else []
    return int(math.prod(size for size in sizes if size)) if sizes and None not in sizes else None


def _of_files(parts: Sequence[HostPart]) -> list[Note]:
    hosts: dict[Note, list[str]] = {}
    for part in parts:
        for note in part.notes:
            hosts.setdefault(note, []).append(part.hosts[0])
    return [
        note
        if len(names) == len(parts)
        else Note(note.code, f"{note.message} ({_where(names, len(parts))})", tuple(names[:MOST_HOSTS]))
        for note, names in hosts.items()
    ]


def _where(names: Sequence[str], count: int) -> str:
    """ "on host-3", "on 7 of 64 hosts: a, b, c, d, e and 2 more"."""
    return f"on {names[0]}" if len(names) == 1 else f"on {len(names):,} of {count:,} hosts: {_named(names)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_HOSTS:,} more" if len(names) > MOST_HOSTS else ""
    return ", ".join(names[:MOST_HOSTS]) + more
