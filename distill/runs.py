"""Runs of ``distill train``, each in a process of its own.

A process of its own gives each run its own compiler flags, its own memory, and a recording that holds its own program
only; and two processes cannot share a TPU, so alternating blocks of steps of two live processes would not work there.
Runs follow each other, and repeats are ordered so that what drifts slowly on the machine (other load, temperature)
falls on all sides alike: forth and back, base opt opt base.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distill import metrics
from profiler.errors import ProfilerError

CONFIG_FILE = "config.yml"


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run every configuration.

    Attributes:
        steps: optimizer steps of a run.
        repeats: runs of each configuration.
        devices: CPU devices to simulate; None for the machine's own.
        overrides: ``key=value`` for every run.
    """

    steps: int
    repeats: int = 2
    devices: int | None = None
    overrides: tuple[str, ...] = ()

    def order(self, sides: int) -> list[tuple[int, int]]:
        """(side, repeat) of every run: forth and back in turn."""
        return [
            (side, repeat)
            for repeat in range(self.repeats)
            for side in (range(sides) if repeat % 2 == 0 else reversed(range(sides)))
        ]

    @property
    def all_overrides(self) -> tuple[str, ...]:
        """The overrides, and what the plan itself overrides."""
        return (*self.overrides, f"steps={self.steps}", "enable_checkpointing=false")


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its folder holds metrics, configuration and recording."""

    folder: Path

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Metrics of every step."""
        return metrics.read(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        """Every key of the configuration."""
        config: dict[str, Any] = yaml.safe_load((self.folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return config

    @property
    def step_s(self) -> float:
        """Median seconds of a steady step: those before the recording's are left out, as the recording does."""
        first = self.config["skip_first_n_steps_for_profiler"]
        steps = self.steps
        return statistics.median(each["step_time_s"] for each in steps[first:] or steps)


def run(recipe: str, folder: Path, plan: Plan, overrides: Sequence[str] = ()) -> Run:
    """Trains one recipe in a process of its own, whose progress and errors go where ours go.

    Raises:
        ProfilerError: the run failed; it has said why.
        KeyboardInterrupt: it was interrupted, and has saved what it had.
    """
    # Comparing again replaces the runs that are here from before; nothing else lies in a run's folder.
    if (folder / CONFIG_FILE).is_file():
        shutil.rmtree(folder)
    command = [sys.executable, "-m", "distill", "train", recipe, *plan.all_overrides, *overrides, "-o", str(folder)]
    if plan.devices is not None:
        command += ["--devices", str(plan.devices)]
    # The package is found where it was found for us, also when it is not installed.
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the run as well
            process.wait()
            raise
    if code:
        raise ProfilerError(f"the run ended with exit code {code}", file=folder, remedy="its own message is above")
    return Run(folder)
