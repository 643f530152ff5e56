"""From the bytes of one side's recordings to a Trace."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from profiler import hardware
from profiler.errors import UnreadableError, UsageError
from profiler.hlo import HloModule
from profiler.reduce import gpu, host, tpu
from profiler.reduce.catalog import Catalog
from profiler.reduce.part import DevicePart, Programs
from profiler.reduce.steps import windows
from profiler.results import Note
from profiler.trace import AllocatorPeaks, Device, Marks, Trace, Windows
from profiler.xplane import scan
from profiler.xplane.locate import Recording, Side, host_name
from profiler.xplane.read import PlaneNames, SharedNames, opened, plane_names

RUN_INFO_PLANE = "/host:run_info"
HLO_STAT = "Hlo Proto"
HLO_PLANE = "/host:metadata"
DAMAGE_CODES = ("truncated", "gzip_damaged", "damaged", "damaged_events")
MAX_RECORDER_NOTES = 20


@dataclass(frozen=True)
class FilePart:
    """One reduced file."""

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


def load(side: Side, *, host: str | None = None, device: str | None = None, timelines: bool = True) -> Trace:
    """Reads and reduces one side.

    Args:
        side: its recordings.
        host: keep only the files and devices of this host.
        device: keep only this device, "TPU:0".
        timelines: false skips spans and steps, for the op table alone: no column per event is then made.

    Raises:
        UnreadableError: a file cannot be read, or none holds a device op.
        UsageError: ``host`` or ``device`` names nothing here.
    """
    notice = scan.notice()
    notes = [Note("python_scanner", notice)] if notice else []
    parts = [
        (recording, reduce_file(file, timelines=timelines)) for recording in side.recordings for file in recording.files
    ]
    if host is not None:
        known = sorted({name for _, part in parts for name in part.hosts})
        parts = [(recording, part) for recording, part in parts if host in part.hosts]
        if not parts:
            raise UsageError(f"no host {host!r}", file=side.label, remedy=f"there are: {', '.join(known)}")
    return _merge(side, parts, device, notes, timelines=timelines)


def reduce_file(file: Path, *, timelines: bool = True) -> FilePart:
    """Reduces one .xplane.pb file; see load."""
    with opened(file) as (buffer, packing):
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
        parts = _tpu_parts(buffer, tables, catalog, programs, origin_ns, timelines=timelines)
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
        )


def _tpu_parts(
    buffer: Any,
    tables: list[tuple[scan.Plane, PlaneNames]],
    catalog: Catalog,
    programs: Programs,
    origin_ns: int,
    *,
    timelines: bool,
) -> list[DevicePart]:
    cores = [(plane, names) for plane, names in tables if tpu.PLANE.fullmatch(plane.name)]
    first = {plane.name: plane for plane, _ in reversed(cores)}  # a SparseCore goes to the first plane of its chip
    sparse = [(plane, names) for plane, names in tables if tpu.SPARSE_CORE_PLANE.fullmatch(plane.name)]
    names_by_id = tpu.module_names(cores, buffer)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
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


def _merge(
    side: Side, parts: list[tuple[Recording, FilePart]], device: str | None, notes: list[Note], *, timelines: bool
) -> Trace:
    several_hosts = len({host for _, part in parts for host in part.hosts}) > 1
    several_runs = len(side.recordings) > 1
    devices: list[Device] = []
    idle: list[Device] = []
    frames, sums, lines, steps = [], [], [], []
    programs: dict[tuple[str, str], HloModule] = {}
    offset = 0
    known: list[str] = []
    for recording, part in parts:
        prefix = "/".join([recording.name] * several_runs + [part.hosts[0]] * several_hosts)
        notes += part.notes
        frames.append(part.ops.with_columns(op_id=(pl.col("op_id") + offset).cast(pl.Int32)))
        modules = {name: module for name in part.programs if (module := part.programs.find(name)) is not None}
        programs |= {(part.file, name): module for name, module in modules.items()}
        for each in part.devices:
            name = f"{prefix}/{each.name}" if prefix else each.name
            if name in known:  # one file twice, or planes of one name: still devices of their own
                name = next(other for number in count(2) if (other := f"{name}#{number}") not in known)
            known.append(name)
            if device is not None and device.lower() not in (name.lower(), each.name.lower()):
                continue
            described = _device(len(devices), name, part, each)
            sums.append(
                each.sums.select(
                    pl.lit(described.index, pl.Int32).alias("device"),
                    (pl.col("op_id") + offset).cast(pl.Int32),
                    "occurrences",
                    "total_time_ps",
                    "self_time_ps",
                )
            )
            devices.append(described)
            if timelines:
                found, more = windows(each.timeline, part.ops, each.steps, part.annotations, each.modules, modules)
                notes += more
                steps.append(found)
                lines.append(replace(each.timeline, op=(each.timeline.op + offset).astype(np.int32)))
        idle += [_device(-1, each.name, part, each) for each in part.idle]
        offset += part.ops.height
    if not devices:
        if known:
            raise UsageError(f"no device {device!r}", file=side.label, remedy=f"there are: {', '.join(known)}")
        damage = [note.message for note in notes if note.code in DAMAGE_CODES]
        raise UnreadableError(
            "holds no device ops that can be read" if damage else "holds no device ops",
            file=parts[0][1].file,
            remedy=damage[0] if damage else "was it recorded on the host only, or stopped before a step ran?",
        )
    notes += _oddities(devices, parts)
    run_info = next((part.run_info for _, part in parts if part.run_info), None)
    return Trace(
        label=side.label,
        files=tuple(part.file for _, part in parts),
        kind="compiled" if run_info and run_info.get("kind") == "compiled" else "recorded",
        devices=tuple(devices),
        idle_devices=tuple(idle),
        ops=pl.concat(frames),
        op_sums=pl.concat(sums),
        timelines=tuple(lines),
        windows=tuple(steps),
        allocator=_largest([part.allocator for _, part in parts]),
        programs=programs,
        run_info=run_info,
        versions={key: value for _, part in parts for key, value in part.versions.items()},
        warnings=tuple(dict.fromkeys(notes)),
        recordings=len(side.recordings),
    )


def _oddities(devices: list[Device], parts: list[tuple[Recording, FilePart]]) -> list[Note]:
    """What makes the devices of one side a strange set; devices of different kinds are refused."""
    types = sorted({each.type for each in devices if each.type})
    if len({each.platform for each in devices}) > 1 or len(types) > 1:
        raise UsageError(
            f"one side holds different devices: {', '.join(types)}",
            file=parts[0][1].file,
            remedy="give recordings of one kind of device, or choose with --device",
        )
    files = [str(Path(part.file).resolve()) for _, part in parts]
    if len(set(files)) < len(files):
        return [Note("file_twice", "the same file was given more than once on one side, and counts as often")]
    return []


def _device(index: int, name: str, part: FilePart, each: DevicePart) -> Device:
    kind, trace_peak, chip = None, None, None
    stats = dict(each.stats)
    if each.platform == "tpu":
        kind, trace_peak = tpu.type_and_peak(stats)
        chip = hardware.identify_tpu(kind) if kind else None
    elif each.platform == "gpu":
        vendor = str(stats.get("device_vendor", ""))
        major, minor = stats.get("compute_cap_major"), stats.get("compute_cap_minor")
        cores, memory = stats.get("core_count"), stats.get("memory_size")
        if isinstance(major, int) and isinstance(minor, int) and isinstance(cores, int) and isinstance(memory, int):
            clock = stats.get("clock_rate")
            clock_khz = clock if isinstance(clock, int) else None
            chip = hardware.identify_gpu(vendor, (major, minor), cores, memory, clock_rate_khz=clock_khz)
            kind = chip.name if chip else f"{vendor or 'GPU'} {major}.{minor}, {cores} cores".strip()
    memory = stats.get("memory_size")
    return Device(
        index=index,
        name=name,
        file=part.file,
        host=part.hosts[0],
        plane=each.plane,
        platform=each.platform,
        type=kind if kind else ("CPU" if each.platform == "cpu" else None),
        peak_tflops=chip.peak_tflops if chip else None,
        trace_peak_tflops=trace_peak,
        hbm_bytes=chip.hbm_bytes if chip else (memory if isinstance(memory, int) and memory > 0 else None),
    )


def _largest(peaks: list[AllocatorPeaks]) -> AllocatorPeaks:
    def largest(values: list[int | None]) -> int | None:
        return max((value for value in values if value), default=None)

    return AllocatorPeaks(
        largest([each.window_peak_bytes for each in peaks]),
        largest([each.lifetime_peak_bytes for each in peaks]),
        largest([each.capacity_bytes for each in peaks]),
    )


__all__ = ["FilePart", "Windows", "load", "reduce_file"]
