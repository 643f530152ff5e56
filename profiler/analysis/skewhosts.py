"""Hosts of a run whose file is not here: by the numbering of the others, by the mesh, by the number of processes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from profiler.fleet import Fleet
from profiler.runinfo import number

MOST_NAMES = 20
MIN_NUMBERED = 3
MIN_FULL = 0.5  # of a numbering: numbers that are mostly absent are none
PROCESSES = ("process_count", "num_processes", "hosts", "num_hosts")
_LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


def missing_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names between those that are there, at most 20: host-2 of host-0, host-1 and host-3."""
    numbered: dict[tuple[str, str], dict[int, int]] = {}
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        if match and len(match[2]) <= 9:
            numbered.setdefault((match[1], match[3]), {})[int(match[2])] = len(match[2])
    found: list[str] = []
    for (before, after), widths in numbered.items():
        first, last = min(widths), max(widths)
        if len(widths) < MIN_NUMBERED or len(widths) < MIN_FULL * (last - first + 1):
            continue
        padded = min(widths.values()) if len(set(widths.values())) == 1 else 1
        lacking = (each for each in range(first, last + 1) if each not in widths)
        found += [f"{before}{each:0{padded}}{after}" for each in lacking]
    return tuple(found[:MOST_NAMES])


def expected(run_info: Mapping[str, Any] | None, fleet: Fleet) -> tuple[int | None, int | None]:
    """Devices by the mesh and processes by the run info, each where it is more than there is here."""
    info = run_info or {}
    mesh = info.get("mesh")
    sizes = [number(size) for size in mesh.values()] if isinstance(mesh, Mapping) else []
    devices = int(math.prod(size for size in sizes if size)) if sizes and None not in sizes else 0
    processes = int(next((found for key in PROCESSES if (found := number(info.get(key)))), 0))
    here = len(fleet.devices) + len(fleet.idle_devices)
    return (
        devices if devices > here else None,
        processes if processes > len(fleet.read) else None,
    )
