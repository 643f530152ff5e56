"""One host without its spans as tables and plain facts, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import numpy as np
import polars as pl

from profiler.reduce.host_part import DeviceTimes, HostPart, Ops
from profiler.results import Note
from profiler.trace import OP_SUMS_COLUMNS, Allocator, AllocatorPeaks, Windows

STEPS_COLUMNS: dict[str, Any] = {
    "device": pl.Int32,
    "start_ps": pl.Int64,
    "end_ps": pl.Int64,
    "name": pl.String,
    "group_ps": pl.List(pl.Float64),
}
SUMS_COLUMNS = {name: getattr(pl, kind) for name, kind in OP_SUMS_COLUMNS.items()}
_OF_SUMS = [name for name in OP_SUMS_COLUMNS if name != "device"]


def facts(part: HostPart) -> dict[str, Any]:
    """Everything but steps, op sums, ops and run info, as JSON data."""
    return {
        "file": PurePath(part.file).name,
        "hosts": list(part.hosts),
        "bytes": part.bytes,
        "digest": part.digest,
        "origin_ns": part.origin_ns,
        "started_ns": part.started_ns,
        "devices": [
            {**_plane(each), "source": each.windows.source, "unit": each.windows.unit} for each in part.devices
        ],
        "idle": [_plane(each) for each in part.idle],
        "groups": [list(group) for group in part.groups],
        "programs": dict(part.programs),
        "versions": dict(part.versions),
        "notes": [[note.code, note.message] for note in part.notes],
        "allocator": asdict(part.allocator),
    }


def _plane(device: DeviceTimes) -> dict[str, Any]:
    stats = {
        key: value
        for key, value in device.stats.items()
        if not isinstance(value, float) or math.isfinite(value)  # JSON has no others
    }
    return {"name": device.name, "plane": device.plane, "platform": device.platform, "stats": stats}


def steps(part: HostPart) -> pl.DataFrame:
    """The steady steps of all devices, with the exclusive time of every group of the host in each, idle last."""
    rows = [
        (number, start, end, each.windows.names[at] if each.windows.names else None, times)
        for number, each in enumerate(part.devices)
        for at, ((start, end), times) in enumerate(
            zip(each.windows.spans.tolist(), each.group_steps.tolist(), strict=True)
        )
    ]
    return pl.DataFrame(rows, STEPS_COLUMNS, orient="row")


def sums(part: HostPart) -> pl.DataFrame:
    """The op sums of all devices."""
    frames = [
        each.sums.select(pl.lit(number, pl.Int32).alias("device"), *_OF_SUMS)
        for number, each in enumerate(part.devices)
        if each.sums is not None
    ]
    return pl.concat([pl.DataFrame(schema=SUMS_COLUMNS), *frames])


def host_part(
    name: str, known: Mapping[str, Any], table: pl.DataFrame, ops: Ops, run_info: dict[str, Any] | None
) -> HostPart:
    """The host again, without its op sums.

    Args:
        name: what its file is called now.
        known: as ``facts`` gave them.
        table: its steps.
        ops, run_info: its ops, and what the run says of itself.
    """
    groups = tuple((category, family, phase) for category, family, phase in known["groups"])
    width = len(groups) + 1
    times = table["group_ps"].explode().to_numpy().reshape(-1, width) if table.height else np.zeros((0, width))
    owner, spans = table["device"].to_numpy(), table.select("start_ps", "end_ps").to_numpy()
    names = table["name"].to_list()
    if not known["hosts"] or owner.max(initial=-1) >= len(known["devices"]):
        raise ValueError("steps and devices do not fit")
    devices = []
    for number, each in enumerate(known["devices"]):
        first, last = np.searchsorted(owner, [number, number + 1])
        own = tuple(names[first:last])
        windows = Windows(spans[first:last], each["source"], each["unit"], own if None not in own else ())
        devices.append(DeviceTimes(**_planes(each), windows=windows, group_steps=times[first:last]))
    none = Windows(np.zeros((0, 2), np.int64), "no ops", "run")
    return HostPart(
        file=name,
        hosts=tuple(known["hosts"]),
        devices=tuple(devices),
        idle=tuple(
            DeviceTimes(**_planes(each), windows=none, group_steps=np.zeros((0, width))) for each in known["idle"]
        ),
        groups=groups,
        ops=ops,
        allocator=_allocator(known["allocator"]),
        programs=dict(known["programs"]),
        run_info=run_info,
        versions=dict(known["versions"]),
        notes=tuple(Note(code, message) for code, message in known["notes"]),
        bytes=int(known["bytes"]),
        origin_ns=int(known["origin_ns"]),
        digest=known["digest"],
        started_ns=known.get("started_ns"),
    )


def _planes(each: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each[key] for key in ("name", "plane", "platform", "stats")}


def _allocator(known: Mapping[str, Any]) -> AllocatorPeaks:
    each: Sequence[Mapping[str, Any]] = known["allocators"]
    return AllocatorPeaks(**{**known, "allocators": tuple(Allocator(**one) for one in each)})
