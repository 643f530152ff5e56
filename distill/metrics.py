"""What a run says about each step: metrics.jsonl, one JSON object a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from profiler.errors import ProfilerError, UnreadableError
from profiler.hardware import CHIPS, identify_tpu

FILE_NAME = "metrics.jsonl"

# JAX's device_kind of GPUs, which is the driver's product name, and the chip of profiler.hardware.
_GPU_KINDS = {
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
}


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step. None is unknown; losses are in nats and means over unmasked tokens of the global batch.

    Attributes:
        step: number of the step, from 0.
        tokens: tokens trained on so far, this step included.
        loss: what was minimised: the weighted sum of the next five.
        kl: distillation loss, τ² · KL(teacher ‖ student).
        cross_entropy: against the data's own next tokens.
        feature_loss: mean cosine distance of chosen layers' outputs.
        load_balance_loss: 1 · experts per token when experts are used evenly.
        z_loss: mean squared log-partition of the student.
        perplexity: exp(cross_entropy).
        learning_rate: of this step.
        grad_norm: global L2 norm of the student's gradient, before clipping.
        step_time_s: wall seconds from dispatch until the new state is there. The first step holds the compile.
        tokens_per_s: all devices together.
        model_tflops_per_s: model TFLOP/s per device.
        mfu: of the device's dense bf16 peak; None where that is unknown, as on a CPU.
    """

    step: int
    tokens: int
    loss: float
    kl: float
    cross_entropy: float
    feature_loss: float
    load_balance_loss: float
    z_loss: float
    perplexity: float
    learning_rate: float
    grad_norm: float
    step_time_s: float
    tokens_per_s: float
    model_tflops_per_s: float
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Meter:
    """Turns a step's losses and its wall time into metrics.

    Attributes:
        tokens_per_step: all devices together.
        model_tflops: model TFLOP per device and step.
        peak_tflops: dense bf16 TFLOP/s per device, None if unknown.
    """

    tokens_per_step: int
    model_tflops: float
    peak_tflops: float | None

    def measure(self, step: int, values: Mapping[str, Any], seconds: float) -> StepMetrics:
        """The metrics of a step; ``values`` are the scalars that the step returned."""
        numbers = {name: float(value) for name, value in values.items()}
        rate = self.model_tflops / seconds
        return StepMetrics(
            step=step,
            tokens=(step + 1) * self.tokens_per_step,
            perplexity=_exp(numbers["cross_entropy"]),
            step_time_s=seconds,
            tokens_per_s=self.tokens_per_step / seconds,
            model_tflops_per_s=rate,
            mfu=rate / self.peak_tflops if self.peak_tflops else None,
            **numbers,
        )


class MetricsFile:
    """metrics.jsonl of a run, written line by line; use as a context manager.

    A run that is resumed at ``first_step`` takes the place of what an earlier process wrote from there on, so that the
    file holds every step once.
    """

    def __init__(self, folder: Path, first_step: int = 0):
        path = folder / FILE_NAME
        kept = [each for each in read(folder) if each["step"] < first_step] if first_step and path.exists() else []
        try:
            temporary = path.with_name(f".{FILE_NAME}.{os.getpid()}")
            temporary.write_text("".join(_line(each) for each in kept), encoding="utf-8")
            temporary.replace(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error
        self._path = path

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, metrics: StepMetrics) -> None:
        """Appends a step; it is in the file when this returns."""
        try:
            self._file.write(_line(asdict(metrics)))
            self._file.flush()
        except OSError as error:
            raise _unwritable(self._path, error) from error


def read(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run's metrics.jsonl. A last line that a killed process left unfinished is left out.

    Raises:
        UnreadableError: there is no such file, or it is something else.
    """
    path = folder / FILE_NAME
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}", file=path) from error
    try:
        return [json.loads(line) for line in lines[:-1]]
    except ValueError as error:
        raise UnreadableError("is no list of JSON objects, one a line", file=path) from error


def peak_tflops(device: jax.Device) -> float | None:
    """Dense bf16 TFLOP/s of a device; None where it is unknown, as for every CPU."""
    chip = identify_tpu(device.device_kind)
    if chip is None:
        key = _GPU_KINDS.get(device.device_kind)
        chip = next((each for each in CHIPS if each.key == key), None)
    return chip.peak_tflops if chip else None


def _exp(value: float) -> float:
    """exp, infinite where it overflows."""
    return math.exp(value) if value < 700 else math.inf


def _line(values: Mapping[str, Any]) -> str:
    """JSON has no NaN and no infinity: they become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


def _unwritable(path: Path, error: OSError) -> ProfilerError:
    return ProfilerError(f"cannot be written: {error.strerror or error}", file=path, remedy="name a folder with -o")
