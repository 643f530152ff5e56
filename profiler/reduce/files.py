"""One .xplane.pb file, reduced: its devices, their ops and spans, and what could not be told."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from profiler.errors import UnreadableError
from profiler.reduce import gpu, host, tpu
from profiler.reduce.catalog import Catalog
from profiler.reduce.part import DevicePart, Programs
from profiler.results import Note
from profiler.trace import AllocatorPeaks, Marks
from profiler.xplane import scan
from profiler.xplane.locate import host_name
from profiler.xplane.read import PlaneNames, SharedNames, opened, plane_names

RUN_INFO_PLANE = "/host:run_info"
HLO_STAT = "Hlo Proto"
HLO_PLANE = "/host:metadata"
ENVIRONMENT_PLANE = "Task Environment"
MAX_RECORDER_NOTES = 20


@dataclass(frozen=True)
class FilePart:
    """One reduced file.

    ``bytes`` is its size, unpacked; ``origin_ns`` the time that its spans count from; ``started_ns`` when the recording
    began, ns since 1970, where it says so.
    """

    file: str
    hosts: tuple[str, ...]
    devices: tuple[DevicePart, ...]
    idle: tuple[DevicePart, ...]
    ops: pl.DataFrame
    annotations: Marks | None
    allocator: AllocatorPeaks
    programs: Programs
    run_info: dict[str, Any] | None
    versions: Mapping[str, str]
    notes: tuple[Note, ...]
    bytes: int
    origin_ns: int = 0
    started_ns: int | None = None


def reduce_file(file: Path, *, timelines: bool = True) -> FilePart:
    """Reduces one .xplane.pb file; see load."""
    with opened(file) as (buffer, packing):
        return reduce_opened(file, buffer, packing, timelines=timelines)


def host_names(buffer: Any, file: Path) -> tuple[str, ...]:
    """The hosts that an opened file is of."""
    return scan.index(buffer).hostnames or (host_name(file),)


def reduce_opened(
    file: Path, buffer: Any, packing: tuple[Note, ...], *, timelines: bool = True, threads: int | None = None
) -> FilePart:
    """Reduces a file that profiler.xplane.read opened; ``threads`` scan its lines, one a core unless given."""
    space = scan.index(buffer)
    if not space.planes:
        raise UnreadableError(
            "is not an xplane profile", file=file, remedy="profiles are jax.profiler's *.xplane.pb files"
        )
    notes = [*packing, *_damage(space)]
    shared = SharedNames()
    tables = [(plane, plane_names(buffer, plane, shared)) for plane in space.planes]
    if any(names.damaged for _, names in tables):
        notes.append(Note("damaged", "some names or stats could not be decoded and are left out"))
    stamps = [line.timestamp_ns for plane in space.planes for line in plane.lines if line.timestamp_ns > 0]
    origin_ns = min(stamps, default=0)
    programs = _programs(tables)
    catalog = Catalog()
    hosts = [(plane, names) for plane, names in tables if plane.name.startswith("/host:")]
    parts = _tpu_parts(buffer, tables, catalog, programs, origin_ns, timelines=timelines, threads=threads)
    parts += [
        gpu.device_part(buffer, plane, names, catalog, programs, origin_ns)
        for plane, names in tables
        if gpu.PLANE.fullmatch(plane.name)
    ]
    if not any(part.sums.height for part in parts):
        for plane, names in hosts:
            if host.PLANE.match(plane.name):
                parts += host.cpu_parts(buffer, plane, names, catalog, programs, origin_ns)
    run_info, more = _run_info(tables, file)
    ops = catalog.frame(distillation=run_info is not None and bool(run_info.get("distillation")))
    busy = [part for part in parts if _recorded_ops(part, ops)]
    idle = [part for part in parts if not any(part is other for other in busy)]
    notes += _part_notes(parts, busy, ops, programs)
    return FilePart(
        file=str(file),
        hosts=space.hostnames or (host_name(file),),
        devices=tuple(busy),
        idle=tuple(idle),
        ops=ops,
        annotations=host.step_marks(buffer, hosts, origin_ns) if timelines else None,
        allocator=host.allocator_peaks(buffer, hosts) if timelines else AllocatorPeaks(),
        programs=programs,
        run_info=run_info,
        versions=_versions(tables),
        notes=(*notes, *more, *programs.notes),
        bytes=len(buffer),
        origin_ns=origin_ns,
        started_ns=_started(tables),
    )


def _started(tables: list[tuple[scan.Plane, PlaneNames]]) -> int | None:
    for plane, names in tables:
        if plane.name == ENVIRONMENT_PLANE:
            value = names.stats.get("profile_start_time")
            return value if isinstance(value, int) and value > 0 else None
    return None


def _tpu_parts(
    buffer: Any,
    tables: list[tuple[scan.Plane, PlaneNames]],
    catalog: Catalog,
    programs: Programs,
    origin_ns: int,
    *,
    timelines: bool,
    threads: int | None,
) -> list[DevicePart]:
    cores = [(plane, names) for plane, names in tables if tpu.PLANE.fullmatch(plane.name)]
    first = {plane.name: plane for plane, _ in reversed(cores)}  # a SparseCore goes to the first plane of its chip
    sparse = [(plane, names) for plane, names in tables if tpu.SPARSE_CORE_PLANE.fullmatch(plane.name)]
    names_by_id = tpu.module_names(cores, buffer)
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        scans = tpu.Scans(buffer, origin_ns, pool, spans_wanted=timelines)
        for plane, names in [*cores, *sparse]:
            scans.start(plane, names)
        return [
            tpu.device_part(
                buffer,
                plane,
                names,
                [
                    (there, them)
                    for there, them in sparse
                    if there.name.startswith(f"{plane.name} ") and first[plane.name] is plane
                ],
                catalog,
                programs,
                names_by_id,
                scans,
            )
            for plane, names in cores
        ]


def _programs(tables: list[tuple[scan.Plane, PlaneNames]]) -> Programs:
    """HLO protos by program id; the id stands in a stat (newer) or at the end of the name."""
    protos: dict[str, bytes] = {}
    for plane, names in tables:
        if plane.name != HLO_PLANE:
            continue
        for key, event in names.events():
            proto = event.stats.get(HLO_STAT)
            if not isinstance(proto, bytes):
                continue
            program_id = event.stats.get("program_id")
            if not isinstance(program_id, int):
                _, text = tpu.split_program(event.name)
                program_id = int(text) if text else key
            protos[str(program_id % 2**64)] = proto
    return Programs(protos)


def program_protos(file: Path) -> dict[str, bytes]:
    """The HLO protos of a file by the SHA-256 of each."""
    with opened(file) as (buffer, _):
        space = scan.index(buffer)
        tables = [(plane, plane_names(buffer, plane)) for plane in space.planes if plane.name == HLO_PLANE]
        return {hashlib.sha256(proto).hexdigest(): proto for proto in _programs(tables).protos.values()}


def _recorded_ops(part: DevicePart, ops: pl.DataFrame) -> bool:
    """Whether a device ran ops, not just copies by the runtime."""
    if part.platform != "gpu":
        return part.sums.height > 0
    mine = ops[part.sums["op_id"]]
    return any(hlo or not gpu.is_copy(op) for hlo, op in zip(mine["hlo"], mine["op"], strict=True))


def _damage(space: scan.Space) -> list[Note]:
    notes = []
    for code, texts in (("recorder_error", space.errors), ("recorder_warning", space.warnings)):
        notes += [Note(code, text) for text in texts[:MAX_RECORDER_NOTES]]
        if len(texts) > MAX_RECORDER_NOTES:
            notes.append(Note(code, f"and {len(texts) - MAX_RECORDER_NOTES:,} more of these from the recorder"))
    if space.truncated:
        notes.append(Note("truncated", "the file ends inside a message: what comes after the cut is missing"))
    if space.damaged:
        notes.append(Note("damaged", f"{space.damaged:,} parts of the file are malformed and left out"))
    return notes


def _part_notes(parts: list[DevicePart], busy: list[DevicePart], ops: pl.DataFrame, programs: Programs) -> list[Note]:
    notes = []
    damaged = sum(part.damaged for part in parts)
    if damaged:
        notes.append(Note("damaged_events", f"{damaged:,} device events are malformed and left out"))
    idle = [part.name for part in parts if not any(part is other for other in busy)]
    if idle and busy:
        notes.append(
            Note(
                "devices_without_ops",
                f"ops were recorded on {len(busy)} of {len(parts)} devices; nothing but copies, or nothing at all, on "
                + ", ".join(idle),
            )
        )
    if busy and any(part.platform != "tpu" for part in busy):
        notes += _hlo_notes(busy, ops, programs)
    return notes


def _hlo_notes(busy: list[DevicePart], ops: pl.DataFrame, programs: Programs) -> list[Note]:
    """What cannot be told for want of HLO on GPUs and CPUs, where names and shapes come from it alone."""
    sums = pl.concat([part.sums for part in busy]).join(ops, on="op_id", maintain_order="left")
    total = int(sums["self_time_ps"].sum())
    if not sums["hlo"].any():
        return [Note("no_hlo_ops", "no event names its HLO op: ops are kernels, families come from kernel names alone")]
    notes = []
    loose = sums.filter(~pl.col("hlo"))
    share = int(loose["self_time_ps"].sum()) / total if total else 0.0
    if share > 0.01:
        notes.append(
            Note(
                "kernels_without_hlo",
                f"{share:.1%} of device time is kernels or copies without an HLO op (runtime copies, or launched "
                "from a command buffer; to see those ops, profile with XLA_FLAGS=--xla_gpu_enable_command_buffer=)",
            )
        )
    known = sums.filter(pl.col("hlo"))["program_id"]
    missing = sorted({name for name in known if name and programs.find(name) is None})
    if missing:
        notes.append(
            Note(
                "no_hlo_proto",
                f"the trace holds no HLO for {len(missing)} program(s): no name stacks, shapes or FLOPs for their ops",
            )
        )
    return notes


def _run_info(tables: list[tuple[scan.Plane, PlaneNames]], file: Path) -> tuple[dict[str, Any] | None, list[Note]]:
    """The JSON document of the run-info plane, if the trace carries one."""
    for plane, names in tables:
        if plane.name == RUN_INFO_PLANE:
            try:
                info = json.loads(names.stats.get("run_info", ""))
            except (TypeError, ValueError, RecursionError):
                info = None
            if isinstance(info, dict):
                return info, []
            return None, [Note("run_info_unreadable", f"{file.name}: the run info in the trace is not a JSON object")]
    return None, []


def _versions(tables: list[tuple[scan.Plane, PlaneNames]]) -> dict[str, str]:
    return {
        key: str(value)
        for plane, names in tables
        if plane.name == HLO_PLANE
        for key, value in names.stats.items()
        if key.endswith("_version")
    }
