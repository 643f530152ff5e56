"""A compile as a profile: what ``profiler`` and XProf open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.aot.bundles import KernelCode
from distill.aot.compiler import Compiled
from distill.aot.dump import read_schedule
from distill.aot.model_constants import Constant
from distill.aot.profile import write_profile
from distill.flops import CONVENTION, step_flops
from distill.mesh import AXES, mesh_shape

# What JAX calls the devices, by the chip's key; the profile's device type.
DEVICE_KINDS = {
    "tpu-v4": "TPU v4",
    "tpu-v5e": "TPU v5 lite",
    "tpu-v5p": "TPU v5",
    "tpu-v6e": "TPU v6 lite",
    "tpu-v7x": "TPU7x",
}
_CYCLES = re.compile(rb'("estimated_cycles"\s*:\s*"?)(\d+)')


def export_profile(
    compiled: Compiled,
    asked: Mapping[str, Any],
    path: Path,
    *,
    coarse: bool = False,
    constants: Mapping[str, Constant] | None = None,
    kernels: KernelCode | None = None,
) -> Path | None:
    """Writes the profile of a compile; None where the compiler gave up before there was a program.

    Args:
        compiled: what the compiler said.
        asked: the configuration as the user gave it, for the run info.
        path: the file; gzipped if it ends in ``.gz``.
        coarse: take no more than a quick compile has for the times, so that they can be held against one's.
        constants: of the estimates, where a recording knows better (distill.aot.calibrate).
        kernels: what was read from the code of the program's kernels (distill.aot.bundles.kernel_code).
    """
    if compiled.hlo_proto is None or compiled.memory is None or not compiled.fits:
        return None
    slice_, config = compiled.topology, compiled.config
    program = compiled.hlo_proto.read_bytes()
    flops = step_flops(config)
    return write_profile(
        _without_cycles(program) if coarse else program,
        read_schedule(compiled.schedule) if compiled.schedule else None,
        chip=DEVICE_KINDS[slice_.chip.key],
        topology=slice_.libtpu_name,
        run_info={
            "model_tflops_per_device_per_step": flops.total / 1e12,
            "student_tflops_per_device_per_step": flops.student / 1e12,
            "teacher_tflops_per_device_per_step": flops.teacher / 1e12,
            "convention": CONVENTION,
            "tokens_per_step": config.tokens_per_step(slice_.devices),
            "layers": config.student.num_layers,
            "distillation": True,
            "config": dict(asked),
            "mesh": dict(zip(AXES, mesh_shape(config, slice_.devices), strict=True)),
            "kernels": list(compiled.kernels),
            "xla_flags": compiled.flags.split(),
            "versions": {name: version for name, version in compiled.versions.items() if version},
            "quick": compiled.quick or coarse,
            "hbm_capacity_bytes": compiled.capacity_bytes,
        },
        static_peak_bytes=compiled.memory.peak_bytes,
        host_bytes=compiled.memory.host_bytes,
        path=path,
        constants=constants,
        kernels=kernels,
    )


def _without_cycles(program: bytes) -> bytes:
    """A program whose instructions have no cycles of the compiler's: 0 is how it writes that it has none."""
    return _CYCLES.sub(lambda match: match[1] + b"0" * len(match[2]), program)
