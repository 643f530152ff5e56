"""Sides of which only device time means anything.

Where nobody marked steps, they are repeats of a program. If the devices are mostly idle between them, that time is the
host's (a prompt, a benchmark loop that waits), and a comparison of the steps would compare the hosts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profiler.analysis.stepspread import DeviceSteps, device_steps
from profiler.analysis.summary import Measured
from profiler.reduce.steps import REPEATS

MOSTLY_IDLE = 0.5


def unmarked_and_idle(measured: Measured) -> bool:
    """Whether steps are repeats of a program with mostly idle time between."""
    return measured.times.source.startswith(REPEATS) and measured.summary.busy_fraction < MOSTLY_IDLE


def busy_device_steps(measured: Measured) -> tuple[DeviceSteps, ...]:
    """The steps of every device, as long as it was busy in them."""
    return device_steps(without_idle(measured))


def without_idle(measured: Measured) -> Measured:
    """The same side with executions as long as the device was busy in them."""
    times, summary = measured.times, measured.summary
    busy = times.busy_ps
    step = times.step_ps - times.idle_ps
    families = tuple(
        replace(row, fraction=row.time_ps_per_step / step if step else 0.0)
        for row in summary.families
        if row.category != "idle"
    )
    phases = tuple(replace(row, fraction=row.time_ps_per_step / step if step else 0.0) for row in summary.phases)
    flops, peak = measured.model_flops, measured.peak_tflops
    return replace(
        measured,
        times=replace(times, step_ps=step, idle_ps=0.0, lengths_ps=busy),
        summary=replace(
            summary,
            steps=replace(
                summary.steps,
                source=f"{summary.steps.source}; device time, without idle",
                mean_ps=step,
                median_ps=float(np.median(busy)),
                p10_ps=float(np.percentile(busy, 10)),
                p90_ps=float(np.percentile(busy, 90)),
            ),
            busy_fraction=1.0,
            mfu=flops / (step * peak) if flops and peak and step else None,  # TFLOP/s is FLOP/ps
            hfu=None,
            mfu_inputs=replace(summary.mfu_inputs, step_time_ps=step),
            families=families,
            phases=phases,
            remat=replace(summary.remat, fraction=summary.remat.rerun_time_ps_per_step / step if step else 0.0),
            tokens_per_s=None,
        ),
    )
