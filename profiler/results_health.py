"""What ``profiler health`` says: how far to trust the figures of one recording; see profiler.results for units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.results import StepStats


@dataclass(frozen=True, slots=True)
class HealthFile:
    """One file that was read; ``bytes`` of its content, unpacked. None where nobody counted."""

    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class HealthDevice:
    """One device that recorded ops.

    ``events`` are all its spans, ``ops`` how many different ops they are of, ``steps`` its steady steps, 0 for a device
    that is left out of the times per step. ``clock_ppm`` is how much shorter (negative) or longer the ops are by the
    device's own clock than by the profiler's common one, in millionths; None where there is one clock.
    """

    name: str
    host: str
    plane: str
    type: str | None
    events: int
    ops: int
    steps: int
    step_source: str
    clock_ppm: float | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of how many ops something is known, and of how much of their exclusive time per device and step.

    ``covered_ps`` + ``uncovered_ps`` is the busy time of the step where ``scope`` is "all ops", else the exclusive time
    of the ops that the scope names. Fractions are None where there is nothing to cover. ``without`` says what the
    uncovered part cannot be told.
    """

    name: str
    scope: str
    covered_ps: float
    uncovered_ps: float
    fraction: float | None
    covered_ops: int
    ops: int
    ops_fraction: float | None
    without: str


@dataclass(frozen=True, slots=True)
class Presence:
    """Something that a recording has or lacks: ``detail`` says what there is, ``without`` what is lacking."""

    name: str
    present: bool
    detail: str | None
    without: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """A figure that no event tells, and who says it.

    ``unit`` is "TFLOP/s", "TFLOP", "bytes", "bytes/s" or "tokens"; per device. ``origin`` is "trace", "run info",
    "--config", "command line", "chip table" or "unknown".
    """

    name: str
    value: float | None
    unit: str
    origin: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A warning with its group ("lost", "assumed" or "worth knowing") and what helps, where something does."""

    group: str
    code: str
    message: str
    remedy: str | None


@dataclass(frozen=True, slots=True)
class Grade:
    """The answer to a question: "yes", "with care", "no", or "nothing to tell" where the question does not arise."""

    question: str
    answer: str
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What one recording lost, lacks and assumes.

    ``busy_ps`` is the mean step without its idle time, per device: what the coverage is a share of. ``programs`` counts
    HLO programs that the recording holds; ``scanner`` is "compiled" or "python".
    """

    file: str
    label: str
    kind: str  # "recorded" | "compiled"
    recordings: int
    files: tuple[HealthFile, ...]
    hosts: tuple[str, ...]
    devices: tuple[HealthDevice, ...]
    idle_devices: tuple[str, ...]
    steps: StepStats
    busy_ps: float
    programs: int
    versions: Mapping[str, str]
    scanner: str
    grades: tuple[Grade, ...]
    coverage: tuple[Coverage, ...]
    presence: tuple[Presence, ...]
    assumptions: tuple[Assumption, ...]
    problems: tuple[Problem, ...]
