"""What `distill compile` prints: an answer first, then the figures behind it."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from distill.aot.compiler import Compiled, Progress
from distill.aot.errors import OutOfMemory, OutOfVmem
from profiler.analysis.memory import LiveBuffer

GIB = 1 << 30
_MOST_BUFFERS = 12
_EVERY_S = 10  # between two lines, where stderr is no terminal


def to_dict(compiled: Compiled) -> dict[str, Any]:
    """Everything but the program, as JSON values; bytes, seconds."""
    memory, error = compiled.memory, compiled.error
    return {
        "schema": "distill.compile/1",
        "topology": compiled.topology.name,
        "chip": compiled.topology.chip.key,
        "devices": compiled.topology.devices,
        "fits": compiled.fits,
        "quick": compiled.quick,
        "from_cache": compiled.from_cache,
        "capacity_bytes": compiled.capacity_bytes,
        "peak_bytes": memory.peak_bytes if memory else None,
        "allocated_bytes": memory.allocated_bytes if memory else None,
        "argument_bytes": memory.argument_bytes if memory else None,
        "host_bytes": memory.host_bytes if memory else None,
        "error": _error(error),
        "live": [_live(each) for each in memory.live[:_MOST_BUFFERS]] if memory else [],
        "calls": [
            {"family": each.family, "phase": each.phase, "kernels": list(each.kernels), "calls": each.calls}
            for each in compiled.calls
        ],
        "seconds": dict(compiled.seconds),
        "process_peak_bytes": compiled.process_peak_bytes,
        "memory_analysis": dict(compiled.analysis),
        "kernels": list(compiled.kernels),
        "notes": list(compiled.notes),
        "versions": dict(compiled.versions),
        "flags": compiled.flags,
        "files": {
            "hlo_proto": str(compiled.hlo_proto) if compiled.hlo_proto else None,
            "schedule": str(compiled.schedule) if compiled.schedule else None,
        },
    }


def _live(each: LiveBuffer) -> dict[str, Any]:
    return {
        "part": each.place.part,
        "tensor": each.place.tensor,
        "shape": each.shape,
        "bytes": each.bytes,
        "count": each.count,
        "op_name": each.op_name,
    }


def _error(error: OutOfMemory | OutOfVmem | None) -> dict[str, Any] | None:
    if error is None:
        return None
    facts: dict[str, Any] = {"needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
    if isinstance(error, OutOfMemory):
        return {"kind": "out of memory", **facts}
    return {"kind": "out of VMEM", **facts, "kernel": error.kernel, "op_name": error.op_name, "knobs": error.knobs}


def to_json(compiled: Compiled) -> str:
    """``to_dict`` as text."""
    return json.dumps(to_dict(compiled), indent=2) + "\n"


def to_text(compiled: Compiled) -> str:
    """The report for a person."""
    parts = [[_verdict(compiled)], _why(compiled), _memory(compiled), _calls(compiled), _origin(compiled)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _verdict(compiled: Compiled) -> str:
    where = f"{compiled.topology.name}, {compiled.topology.devices} devices ({compiled.topology.chip.name})"
    error, memory, capacity = compiled.error, compiled.memory, compiled.capacity_bytes
    if isinstance(error, OutOfMemory):
        over = error.needed_bytes - error.available_bytes
        return (
            f"Does not fit {where}: needs {_gib(error.needed_bytes)} of HBM per device, {_gib(error.available_bytes)} "
            f"are available, {_gib(over)} too much"
        )
    if error is not None:
        return (
            f"Does not compile for {where}: {error.kernel} needs {_mib(error.needed_bytes)} of VMEM, "
            f"{_mib(error.available_bytes)} are allowed"
        )
    if memory is None or capacity is None:
        return f"Compiles for {where}"
    room = capacity - memory.allocated_bytes
    return f"Fits {where}: {_gib(memory.allocated_bytes)} of {_gib(capacity)} per device, {_gib(room)} left"


def _why(compiled: Compiled) -> list[str]:
    error = compiled.error
    if isinstance(error, OutOfMemory):
        return ["What can be changed", *(f"  {remedy}" for remedy in _remedies(compiled, error))]
    if isinstance(error, OutOfVmem):
        lines = [f"Smaller blocks or tiles: {', '.join(_setting(compiled, key) for key in error.knobs)}"] * bool(
            error.knobs
        )
        lines.append("Or a higher limit in xla_flags: --xla_tpu_scoped_vmem_limit_kib=N")
        return [*lines, f"The kernel: {error.op_name}"]
    return []


def _remedies(compiled: Compiled, error: OutOfMemory) -> list[str]:
    """What frees memory and is not done yet, roughly by what it costs; docs/distill/compile.md has what was tried."""
    config, batch = compiled.config, _batch_that_fits(compiled, error)
    custom = "" if config.remat_policy == "custom" else "remat_policy=custom "
    chunks = 2 * config.loss_chunks
    keeps_context = config.remat_policy == "custom" and config.context == "device"
    known = (
        (
            True,
            f"loss_chunks={chunks}: logits exist a part of the sequence at a time, and are computed twice",
        ),
        (keeps_context, "context=remat: attention runs forward a second time"),
        (  # beside a kept context it freed nothing where it was tried
            not keeps_context and (config.remat_policy != "custom" or config.decoder_layer_input == "device"),
            f"{custom}decoder_layer_input=offload: what every layer is given goes to host memory",
        ),
        (batch > 0, f"per_device_batch_size={batch}, if all but the arguments shrinks with it"),
        (
            True,
            "a larger slice, with more devices along ici_fsdp_parallelism: they share parameters and optimizer state",
        ),
    )
    return [text for helps, text in known if helps]


def _batch_that_fits(compiled: Compiled, error: OutOfMemory) -> int:
    """The largest smaller batch whose share of what is no argument fits; 0 for none."""
    batch = compiled.config.per_device_batch_size
    lasting = compiled.memory.argument_bytes if compiled.memory else 0
    if error.needed_bytes <= lasting:
        return 0
    return min(batch - 1, int(batch * (error.available_bytes - lasting) / (error.needed_bytes - lasting)))


def _setting(compiled: Compiled, key: str) -> str:
    return f"{key}={getattr(compiled.config, key)}"


def _memory(compiled: Compiled) -> list[str]:
    memory = compiled.memory
    if memory is None:
        return []
    lines = [
        f"HBM peak        {_gib(memory.peak_bytes):>11}   {_gib(memory.argument_bytes)} of it arguments",
        f"HBM allocated   {_gib(memory.allocated_bytes):>11}   with the gaps of packing: what has to fit",
        f"host memory     {_gib(memory.host_bytes):>11}",
        "",
        "Largest at the peak",
    ]
    for each in memory.live[:_MOST_BUFFERS]:
        name = " ".join(filter(None, (each.place.part, each.place.tensor))) or each.instruction
        count = f"{each.count} × " if each.count > 1 else ""
        lines.append(f"  {_gib(each.bytes):>11}  {name}  {count}{each.shape}")
    return lines


def _calls(compiled: Compiled) -> list[str]:
    if not compiled.calls:
        return []
    lines = ["Kernel calls per step"]
    for each in compiled.calls:
        calls = "n/a" if each.calls is None else str(each.calls)
        lines.append(f"  {calls:>6}  {each.family:24} {each.phase:17} {', '.join(each.kernels)}")
    return lines


def _origin(compiled: Compiled) -> list[str]:
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in compiled.seconds.items())
    versions = ", ".join(f"{name} {version}" for name, version in compiled.versions.items() if version)
    kind = (
        "to the buffer assignment (--quick)" if compiled.quick else "to the end" if compiled.fits else "until it failed"
    )
    lines = [
        f"Compiled {kind}{', from the cache' if compiled.from_cache else ''}: {seconds}",
        f"By {versions}; {', '.join(compiled.kernels)}",
    ]
    return [*lines, *(f"Note: {note}" for note in compiled.notes), f"Files: {compiled.folder}"]


def stderr_progress() -> Progress:
    """Progress for stderr: one line that changes on a terminal, a line now and then elsewhere."""
    terminal, last, said = sys.stderr.isatty(), "", time.monotonic()

    def show(phase: str, elapsed_s: float, memory_bytes: int | None) -> None:
        nonlocal last, said
        held = f", {memory_bytes / GIB:.1f} GiB" if memory_bytes is not None else ""
        text = f"distill: {phase}, {elapsed_s:.0f} s{held}"
        if terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif phase != last or time.monotonic() - said > _EVERY_S:
            print(text, file=sys.stderr, flush=True)
            said = time.monotonic()
        last = phase

    return show


def end_progress() -> None:
    """Clears the line that changes."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 or not size else f"{size / (1 << 20):.2f} MiB"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
