"""Which steps of which devices an export of the timeline holds, and where its time 0 is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from profiler.analysis.timeline import devices, rows
from profiler.errors import UsageError
from profiler.results_timeline import ExportedDevice, ExportedSide, TimelineDevice, TimelineExport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.analysis.summary import Measured

Step = int | Literal["all"] | None
ROLES = ("baseline", "optimized")
OP_COLUMNS = ("op", "family", "phase", "kernel", "name_stack", "source", "program")


def export(
    sides: Sequence[Measured], step: Step = None, only: Sequence[tuple[int, Step]] | None = None
) -> TimelineExport:
    """Steps of one recording, or of baseline and optimized, ready to be written.

    Args:
        sides: one side or two.
        step: a steady step by its number, "all" of them, or None for the one nearest the median length.
        only: for each side the index of one device, and its step, instead of all devices.

    Raises:
        UsageError: a side has no such step.
    """
    roles = ROLES if len(sides) > 1 else (None,)
    chosen: Sequence[tuple[int | None, Step]] = only or [(None, step)] * len(sides)
    return TimelineExport(
        tuple(_side(measured, role, *each) for measured, role, each in zip(sides, roles, chosen, strict=True)),
        tuple(dict.fromkeys(note for measured in sides for note in measured.summary.warnings)),
    )


def _side(measured: Measured, role: str | None, device: int | None, step: Step) -> ExportedSide:
    trace = measured.trace
    there = [each for each in devices(measured) if device in (None, each.index)]
    chosen = {each.index: found for each in there if (found := _chosen(each, there[0].default, step))}
    if not chosen:
        count = max((len(each.steps) for each in there), default=0)
        raise UsageError(f"no step {step}", file=trace.label, remedy=f"there are {count} steady steps, from 0")
    # Devices of one file share a clock and keep it; those of different files do not, and each file begins at 0.
    origin: dict[str, int] = {}
    for index, steps in chosen.items():
        file, begin = trace.devices[index].file, min(start for start, _ in steps.values())
        origin[file] = min(origin.get(file, begin), begin)
    several_hosts = trace.run_fleet is not None or len({each.host for each in trace.devices}) > 1
    return ExportedSide(
        role=role,
        label=trace.label,
        kind=trace.kind,
        file=", ".join(trace.files),
        devices=tuple(
            ExportedDevice(
                name=each.name,
                host=trace.devices[each.index].host if several_hosts else None,
                rows=rows(trace, each.index),
                steps=chosen[each.index],
                unit=each.unit,
                origin_ps=origin[trace.devices[each.index].file],
            )
            for each in there
            if each.index in chosen
        ),
        ops=trace.ops.select(OP_COLUMNS),
    )


def _chosen(device: TimelineDevice, default: int, step: Step) -> dict[int, tuple[int, int]]:
    """The steps to export of a device by number; none where it has fewer."""
    spans = {number: (int(start), int(end)) for number, (start, end) in enumerate(device.steps)}
    if step == "all":
        return spans
    number = default if step is None else step
    return {number: spans[number]} if number in spans else {}
