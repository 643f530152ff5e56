"""Files of one side, put together; hosts and equal plane names stay apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from profiler import hardware
from profiler.errors import UnreadableError, UsageError
from profiler.fleet import DAMAGED, READ, Host
from profiler.hlo import HloModule
from profiler.reduce import tpu
from profiler.reduce.files import FilePart
from profiler.reduce.part import DevicePart
from profiler.reduce.steps import drawn, windows
from profiler.results import Note
from profiler.runinfo import flat
from profiler.trace import AllocatorPeaks, Device, Trace, Windows
from profiler.xplane.locate import Recording, Side

MOST_KEYS = 3  # named in a warning
LEAST_SHARED = 0.5  # of the ops of programs of one name, where two hosts run the same
_OF_A_HOST = re.compile(r"(?i)host|process|rank|node|address|port|user|path|dir|file|time|date|seed|run_name")
DAMAGE_CODES = ("truncated", "gzip_damaged", "damaged", "damaged_events")


def merge(
    side: Side, parts: list[tuple[Recording, FilePart]], device: str | None, notes: list[Note], *, timelines: bool
) -> Trace:
    """The Trace of a side from its reduced files; see profiler.reduce.load."""
    several_hosts = len({host for _, part in parts for host in part.hosts}) > 1
    several_runs = len(side.recordings) > 1
    devices: list[Device] = []
    idle: list[Device] = []
    frames, sums, lines, steps, executions = [], [], [], [], []
    programs: dict[tuple[str, str], HloModule] = {}
    offset = 0
    known: list[str] = []
    for at, (recording, part) in enumerate(parts):
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
            described = describe(len(devices), name, part, each, at)
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
                found, more = device_windows(part, each, modules)
                notes += more
                steps.append(found)
                executions.append(each.modules)
                lines.append(replace(each.timeline, op=(each.timeline.op + offset).astype(np.int32)))
        idle += [describe(-1, each.name, part, each, at) for each in part.idle]
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
        kind="compiled" if is_compiled(run_info) else "recorded",
        devices=tuple(devices),
        idle_devices=tuple(idle),
        ops=pl.concat(frames),
        op_sums=pl.concat(sums),
        timelines=tuple(lines),
        windows=tuple(steps),
        allocator=_largest([(part.hosts[0], part.allocator) for _, part in parts]),
        programs=programs,
        run_info=run_info,
        versions={key: value for _, part in parts for key, value in part.versions.items()},
        warnings=tuple(dict.fromkeys(notes)),
        recordings=len(side.recordings),
        modules=tuple(executions),
        file_bytes=tuple(part.bytes for _, part in parts),
        hosts=tuple(host_of(part, side.recordings.index(recording)) for recording, part in parts),
    )


def device_windows(part: FilePart, device: DevicePart, modules: Mapping[str, HloModule]) -> tuple[Windows, list[Note]]:
    """The steady steps of one device of a file; ``modules`` are the file's programs."""
    found = device.windows or (drawn(device.steps) if is_compiled(part.run_info) else None)
    if found is not None:
        return found, []
    return windows(device.timeline, part.ops, device.steps, part.annotations, device.modules, modules)


def host_of(part: FilePart, recording: int) -> Host:
    """What is known of a host whose file was read."""
    damage = next((note.message for note in part.notes if note.code in DAMAGE_CODES), None)
    return Host(
        name=part.hosts[0],
        file=part.file,
        recording=recording,
        status=DAMAGED if damage else READ,
        why=damage,
        bytes=part.bytes,
        origin_ns=part.origin_ns,
        allocator=part.allocator,
    )


def is_compiled(run_info: Mapping[str, Any] | None) -> bool:
    """Whether a profile was laid out from a compile."""
    return run_info is not None and run_info.get("kind") == "compiled"


def _oddities(devices: list[Device], parts: list[tuple[Recording, FilePart]]) -> list[Note]:
    """What makes the devices of one side a strange set; devices of different kinds are refused."""
    types = sorted({each.type for each in devices if each.type})
    if len({each.platform for each in devices}) > 1 or len(types) > 1:
        raise UsageError(
            f"one side holds different devices: {', '.join(types)}",
            file=parts[0][1].file,
            remedy="give recordings of one kind of device, or choose with --device",
        )
    notes = []
    files = [str(Path(part.file).resolve()) for _, part in parts]
    if len(set(files)) < len(files):
        notes.append(Note("file_twice", "the same file was given more than once on one side, and counts as often"))
    for index, (recording, part) in enumerate(parts):
        first = next(other for each, other in parts[: index + 1] if each is recording)
        why = _difference(first, part) if first is not part else None
        if why:
            text = f"{Path(first.file).name} and {Path(part.file).name} are taken as hosts of one run, but {why}"
            notes.append(Note("files_of_different_runs", f"{text}: figures mix both. Give one file, or compare them"))
            break
    return notes


def _difference(one: FilePart, other: FilePart) -> str | None:
    """What two hosts of one run would not differ in; None where nothing says that these are none."""
    first, second = (flat((part.run_info or {}).get("config")) for part in (one, other))
    keys = sorted(
        key for key in first.keys() & second.keys() if first[key] != second[key] and not _OF_A_HOST.search(key)
    )
    if keys:
        more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
        return f"their configurations differ ({', '.join(keys[:MOST_KEYS])}{more})"
    names = [set(part.ops["program"].drop_nulls()) for part in (one, other)]
    if all(names) and not names[0] & names[1]:
        return f"they run different programs ({min(names[0])}, {min(names[1])})"
    shared = pl.col("program").is_in(list(names[0] & names[1])) | pl.col("program").is_null()
    ops = [set(part.ops.filter(shared).select("program", "op").iter_rows()) for part in (one, other)]
    if all(ops) and len(ops[0] & ops[1]) < LEAST_SHARED * min(map(len, ops)):
        return "their programs of one name hold different ops"
    return None


def describe(index: int, name: str, part: FilePart, each: DevicePart, host_index: int) -> Device:
    """A device as the trace has it."""
    stats = dict(each.stats)
    chip, kind = hardware.of_plane(each.platform, stats)
    trace_peak = tpu.type_and_peak(stats)[1] if each.platform == "tpu" else None
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
        host_index=host_index,
    )


def _largest(found: list[tuple[str, AllocatorPeaks]]) -> AllocatorPeaks:
    peaks = [each for _, each in found]

    def largest(values: list[int | None]) -> int | None:
        return max((value for value in values if value), default=None)

    return AllocatorPeaks(
        largest([each.window_peak_bytes for each in peaks]),
        largest([each.lifetime_peak_bytes for each in peaks]),
        largest([each.capacity_bytes for each in peaks]),
        tuple(replace(one, host=host) for host, each in found for one in each.allocators),
    )
