"""Files of one side, put together; hosts and equal plane names stay apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from profiler import hardware
from profiler.errors import UnreadableError, UsageError
from profiler.fleet import DAMAGED, READ, Host
from profiler.hlo import HloModule
from profiler.reduce import tpu
from profiler.reduce.files import FilePart
from profiler.reduce.names import device_names, is_called
from profiler.reduce.oddities import odd_files, refuse_mixed
from profiler.reduce.part import DevicePart
from profiler.reduce.steps import drawn, windows
from profiler.results import Note
from profiler.trace import AllocatorPeaks, Device, Trace, Windows
from profiler.xplane.locate import Recording, Side

if TYPE_CHECKING:
    from profiler.reduce.host_part import DeviceTimes, HostPart

MOST_NAMES = 32  # in a message
DAMAGE_CODES = ("truncated", "gzip_damaged", "damaged", "damaged_events")


@dataclass(frozen=True)
class Chosen:
    """A file of which some devices go into a trace: ``devices`` by name, ``host_index`` its place among the hosts."""

    part: FilePart
    devices: tuple[tuple[str, DevicePart], ...]
    host_index: int


def merge(
    side: Side,
    parts: list[tuple[Recording, FilePart]],
    device: str | None,
    notes: list[Note],
    hosts: tuple[Host, ...],
    *,
    timelines: bool,
) -> Trace:
    """The Trace of a side of which every device is in memory; see profiler.reduce.load."""
    several_runs = len(side.recordings) > 1
    names = device_names(parts, several_runs)
    chosen = [
        Chosen(
            part,
            tuple(
                (name, each)
                for name, each in zip(own, part.devices, strict=True)
                if device is None or is_called(device, name, each.name)
            ),
            index,
        )
        for index, ((_, part), own) in enumerate(zip(parts, names, strict=True))
    ]
    refuse_none(side, [part for _, part in parts], [name for own in names for name in own], device, chosen)
    trace = assemble(side, chosen, notes, timelines=timelines)
    refuse_mixed(trace.devices, trace.files[0])
    return replace(trace, warnings=tuple(dict.fromkeys((*trace.warnings, *odd_files(parts)))), hosts=hosts)


def assemble(side: Side, chosen: Sequence[Chosen], notes: Sequence[Note], *, timelines: bool) -> Trace:
    """The Trace of the chosen devices; its warnings are ``notes``, then those of the files."""
    devices: list[Device] = []
    idle: list[Device] = []
    frames, sums, lines, steps, executions = [], [], [], [], []
    programs: dict[tuple[str, str], HloModule] = {}
    warnings = list(notes)
    offset = 0
    for each in chosen:
        part = each.part
        warnings += part.notes
        frames.append(part.ops.with_columns(op_id=(pl.col("op_id") + offset).cast(pl.Int32)))
        modules = ((name, part.programs.find(name)) for name in part.programs)
        programs |= {(part.file, name): module for name, module in modules if module is not None}
        for name, device in each.devices:
            described = describe(len(devices), name, part, device, each.host_index)
            sums.append(
                device.sums.select(
                    pl.lit(described.index, pl.Int32).alias("device"),
                    (pl.col("op_id") + offset).cast(pl.Int32),
                    "occurrences",
                    "total_time_ps",
                    "self_time_ps",
                )
            )
            devices.append(described)
            if timelines:
                found, more = device_windows(part, device)
                warnings += more
                steps.append(found)
                executions.append(device.modules)
                lines.append(replace(device.timeline, op=(device.timeline.op + offset).astype(np.int32)))
        idle += [describe(-1, device.name, part, device, each.host_index) for device in part.idle]
        offset += part.ops.height
    parts = [each.part for each in chosen]
    run_info = next((part.run_info for part in parts if part.run_info), None)
    return Trace(
        label=side.label,
        files=tuple(part.file for part in parts),
        kind="compiled" if is_compiled(run_info) else "recorded",
        devices=tuple(devices),
        idle_devices=tuple(idle),
        ops=pl.concat(frames),
        op_sums=pl.concat(sums),
        timelines=tuple(lines),
        windows=tuple(steps),
        allocator=largest([(part.hosts[0], part.allocator) for part in parts]),
        programs=programs,
        run_info=run_info,
        versions={key: value for part in parts for key, value in part.versions.items()},
        warnings=tuple(dict.fromkeys(warnings)),
        recordings=len(side.recordings),
        modules=tuple(executions),
        file_bytes=tuple(part.bytes for part in parts),
    )


def refuse_none(
    side: Side, parts: Sequence[FilePart | HostPart], known: Sequence[str], device: str | None, chosen: Sequence[Any]
) -> None:
    """Raises what is wrong where no device is chosen."""
    if any(each.devices for each in chosen):
        return
    if known:
        raise UsageError(f"no device {device!r}", file=side.label, remedy=f"there are: {listed(known)}")
    damage = [note.message for part in parts for note in part.notes if note.code in DAMAGE_CODES]
    raise UnreadableError(
        "holds no device ops that can be read" if damage else "holds no device ops",
        file=parts[0].file,
        remedy=damage[0] if damage else "was it recorded on the host only, or stopped before a step ran?",
    )


def listed(names: Sequence[str]) -> str:
    """Names in a message, not all of thousands."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def is_compiled(run_info: Mapping[str, Any] | None) -> bool:
    """Whether a profile was laid out from a compile."""
    return run_info is not None and run_info.get("kind") == "compiled"


def device_windows(part: FilePart, device: DevicePart) -> tuple[Windows, list[Note]]:
    """The steady steps of one device of a file."""
    found = device.windows or (drawn(device.steps) if is_compiled(part.run_info) else None)
    if found is not None:
        return found, []
    return windows(device.timeline, part.ops, device.steps, part.annotations, device.modules, part.programs)


def host_of(part: FilePart | HostPart, recording: int) -> Host:
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


def describe(
    index: int, name: str, part: FilePart | HostPart, each: DevicePart | DeviceTimes, host_index: int
) -> Device:
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


def largest(found: Sequence[tuple[str, AllocatorPeaks]]) -> AllocatorPeaks:
    """The allocators of several hosts, and their largest figures."""
    peaks = [each for _, each in found]

    def most(values: list[int | None]) -> int | None:
        return max((value for value in values if value), default=None)

    return AllocatorPeaks(
        most([each.window_peak_bytes for each in peaks]),
        most([each.lifetime_peak_bytes for each in peaks]),
        most([each.capacity_bytes for each in peaks]),
        tuple(replace(one, host=host) for host, each in found for one in each.allocators),
    )
