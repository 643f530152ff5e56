"""Write: a compiled program as a profile, so that everything that opens a recording opens it.

The planes, lines and stats are those of a TPU recording. Which ops run, how often and in which order are facts of the
compiler; how long they take are estimates (docs/distill/estimates.md), and the run info says so (kind "compiled").
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distill.aot import profile_program, profile_text
from distill.aot.bundles import KernelCode
from distill.aot.dump import Schedule
from distill.aot.model_calls import tiles_of
from distill.aot.model_constants import Constant, Constants, constants_of
from distill.aot.profile_layout import Step, lay_out, step_ps
from distill.aot.timing import SOURCES, Timer
from distill.aot.timing_schedule import cycles_of
from distill.tracing import RUN_INFO_PLANE
from profiler import hlo
from profiler.errors import UsageError
from profiler.hardware import Chip, identify_tpu
from profiler.hlo import HloModule
from profiler.xplane.write import PlaneBuilder, SpaceBuilder

DEVICE_PLANE = "/device:TPU:0"

# Knobs whose effect on the time is in no estimate, and why (docs/distill/estimates.md).
UNSEEN_KNOBS = dict.fromkeys(
    ("sa_q_layout", "sa_k_layout", "sa_v_layout"),
    "what a layout changes in the attention kernels at run time is in no estimate, only what it changes in their code",
)


def write_profile(
    hlo_proto: bytes,
    schedule: Schedule | None,
    *,
    chip: str,
    topology: str,
    run_info: Mapping[str, Any],
    static_peak_bytes: int | None,
    host_bytes: int | None,
    path: Path,
    constants: Mapping[str, Constant] | None = None,
    kernels: KernelCode | None = None,
) -> Path:
    """Writes a compiled program as an ``.xplane.pb`` file.

    Args:
        hlo_proto: the final program, an ``HloProto`` or ``HloModuleProto``, with its schedule.
        schedule: the plan of the compiler's scheduler (distill.aot.dump.read_schedule); None without one.
        chip: as JAX names the device kind, "TPU7x".
        topology: as the compiler was given it, "tpu7x:4x4x4".
        run_info: keys of docs/run-info.md; ``kind`` and ``estimates`` are added.
        static_peak_bytes: device memory that the program occupies; None if not known.
        host_bytes: memory that it occupies on the host; None if not known.
        path: the file; gzipped if it ends in ``.gz``.
        constants: of the estimates, where they are known better than by default (distill.aot.model_constants).
        kernels: what was read from the code of the program's kernels (distill.aot.bundles.kernel_code).

    Raises:
        UsageError: a chip without a peak.
    """
    found = identify_tpu(chip)
    if found is None:
        raise UsageError(f"no peak figures for the chip {chip!r}", remedy="`profiler peaks` lists the known chips")
    module = hlo.parse(hlo_proto)
    plan = cycles_of(schedule)
    if "compiler_cycles" in (constants or {}):  # measured, where the plan has the clock that the compiler assumes
        plan = replace(plan, cycles_per_us=None)
    kernels = kernels or KernelCode()
    timer = Timer(found, constants_of(found, constants), plan, kernels.cycles)
    step = lay_out(module, timer)
    program = profile_program.stripped(hlo_proto, static_peak_bytes, host_bytes, tiles_of(module))
    program_id = profile_program.fingerprint(program)
    space = SpaceBuilder()
    plane = _device_plane(space, chip, found)
    ids = _metadata(plane, step, program_id)
    _draw(plane, step, ids, f"{module.name}({program_id})")
    space.hlo_proto(module.name, program_id, program)
    info = {
        **run_info,
        "kind": "compiled",
        "topology": topology,
        "static_peak_bytes": static_peak_bytes,
        "host_bytes": host_bytes,
        "estimates": _estimates(module, timer, step),
        "notes": [
            "one device of the program is drawn: all run the same",
            "one step is drawn: a compile knows no differences between steps",
            *step.notes,
            *kernels.notes,
        ],
    }
    space.plane(RUN_INFO_PLANE, stats={"run_info": json.dumps(info)})
    return space.write(path)


def _device_plane(space: SpaceBuilder, device_type: str, chip: Chip) -> PlaneBuilder:
    return space.plane(
        DEVICE_PLANE,
        stats={
            "device_type_string": device_type,
            "peak_teraflops_per_second": chip.peak_tflops,
            "peak_hbm_bw_gigabytes_per_second": chip.hbm_bytes_per_s / 1e9,
        },
    )


def _metadata(plane: PlaneBuilder, step: Step, program_id: int) -> list[int]:
    """Event metadata of every instruction that appears, in the order of their numbers."""
    return [
        plane.metadata(
            profile_text.hlo_text(each),
            display_name=each.name,
            stats=profile_text.stats(each, program_id, number, step.sources[each.name]),
        )
        for number, each in enumerate(step.instructions, start=1)
    ]


def _draw(plane: PlaneBuilder, step: Step, ids: list[int], program: str) -> None:
    """One step; ``ids`` are the event metadata of its instructions."""
    marks, modules, core, in_flight = (
        plane.line(name) for name in ("Steps", "XLA Modules", "XLA Ops", "Async XLA Ops")
    )
    marks.event("0", 0, step.duration_ps)
    modules.event(program, 0, step.duration_ps, stats={"run_id": 1})
    for line, spans in ((core, step.core), (in_flight, step.in_flight)):
        for op, start, duration in zip(spans.op, spans.start_ps, spans.duration_ps, strict=True):
            line.event(ids[op], start, duration)


def _estimates(module: HloModule, timer: Timer, step: Step) -> dict[str, Any]:
    """What the run info says of the times: band, sensitivity, time by source, constants, what is left out."""
    own, calls = Counter[str](), Counter[str]()
    for op, duration in zip(step.core.op, step.core.duration_ps, strict=True):
        source = step.sources[step.instructions[op].name]
        calls[source] += 1
        if source != "contents":  # contains the others
            # What a start op starts is in flight: on the core its wait counts.
            own[source] += duration
    return {
        "step_s": step.duration_ps / 1e12,
        "step_s_band": [step_ps(module, timer.at(end)) / 1e12 for end in ("fast", "slow")],
        "sensitivity": _sensitivity(module, timer),
        "sources": {
            source: {"meaning": SOURCES[source], "core_s": own[source] / 1e12, "events": calls[source]}
            for source in SOURCES
            if calls[source]
        },
        "constants": {name: constant.to_dict() for name, constant in timer.constants.table.items()},
        "unseen_knobs": UNSEEN_KNOBS,
        "not_estimated": [
            "gaps between ops, and what the host adds to a step",
            "stragglers and skew between devices",
            "uneven experts: every device is taken to get the mean number of rows",
            "what a layout (sa_q_layout and its like) changes at run time",
        ],
    }


def _sensitivity(module: HloModule, timer: Timer) -> dict[str, list[float]]:
    """Uncertain constant → seconds of a step with it alone at the (fast, slow) end of its range."""
    table = timer.constants.table
    return {
        name: [
            step_ps(module, replace(timer, constants=Constants({**table, name: replace(each, value=end)}))) / 1e12
            for end in (each.fast, each.slow)
        ]
        for name, each in table.items()
        if each.fast != each.slow
    }
