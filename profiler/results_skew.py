"""What ``profiler hosts`` says: which host or chip the others wait for; see profiler.results for units.

The steady step of a device is ``work_ps`` (compute and exposed transfers) + ``host_ps`` (idle, or waiting for input:
the host has given it nothing to do) + ``wait_ps`` (exposed communication and waiting for other ops), exactly. Its *own*
time is what it takes until the others can go on: work and host, or the work alone where no communication is seen, since
idle time may then be waiting too.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiler.results import Note


@dataclass(frozen=True, slots=True)
class SkewDevice:
    """One device: means over its steady steps, ps.

    ``excess_ps`` is the own time above that of the median device. ``longest_steps`` counts the steps in which no device
    took longer, ``mean_rank`` is its mean place among all devices (1 is the longest). None where steps cannot be put
    beside each other.
    """

    name: str
    host: str
    steps: int
    step_ps: float
    least_ps: float
    most_ps: float
    work_ps: float
    host_ps: float
    wait_ps: float
    excess_ps: float
    longest_steps: int | None
    mean_rank: float | None


@dataclass(frozen=True, slots=True)
class SkewHost:
    """One file of the run; times are means over its devices, None where it has none that could be timed.

    ``start_ps`` is how much later than on the median device its steps begin by its own clock: another clock and a late
    start cannot be told apart. ``start_spread_ps`` is how far that moves (10 % to 90 % of the steps), which no clock
    does. None where the steps have no names that two hosts share, and for the host of the median device.
    """

    host: str
    status: str  # "read" | "damaged" | "failed"
    why: str | None
    devices: int
    steps: int | None
    step_ps: float | None
    work_ps: float | None
    host_ps: float | None
    wait_ps: float | None
    excess_ps: float | None
    longest_steps: int | None
    start_ps: float | None
    start_spread_ps: float | None


@dataclass(frozen=True, slots=True)
class SkewStep:
    """One steady step of all devices: the ``longest`` is the device that the others wait for.

    ``step_ps``, ``median_own_ps`` and ``wait_ps`` are those of the median device. ``clear`` says whether the longest
    stands out of the noise.
    """

    step: str
    step_ps: float
    longest: str
    own_ps: float
    median_own_ps: float
    wait_ps: float
    clear: bool


@dataclass(frozen=True, slots=True)
class SkewFamily:
    """What one family takes on slow devices above the median of all devices; ``ratio`` None where the median is 0."""

    category: str
    family: str
    excess_ps: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Straggler:
    """A host or chip that is slow in all of the recording.

    Attributes:
        kind: "host" (most of its devices are slow) or "chip".
        name: the host, or the device.
        devices: the devices that are slow.
        cause: "input" (its host gives it work late), "all compute" (clocks, power or heat), "one family" (other work or
            other data) or "several families".
        excess_ps: own time above that of the median device.
        ratio: work of its devices against that of the median device; with cause "input" their own time.
        slow_steps: steps of ``steps`` in which its devices took longer than the median of all; of several the mean.
        p_value: how likely noise alone makes a device of this run look as slow, all devices taken into account.
        families: where the excess is, largest first.
        gain_ps: by how much the step would be shorter if it alone ran as the median device: an estimate.
    """

    kind: str
    name: str
    host: str
    devices: tuple[str, ...]
    cause: str
    excess_ps: float
    ratio: float | None
    slow_steps: int
    steps: int
    p_value: float
    families: tuple[SkewFamily, ...]
    gain_ps: float


@dataclass(frozen=True, slots=True)
class SkewCount:
    """In how many steps a device stood out."""

    device: str
    steps: int


@dataclass(frozen=True, slots=True)
class Spikes:
    """Steps in which a device takes far longer than it mostly does, and the others wait: a straggler that moves.

    ``steps`` of ``of`` have one; ``gain_ps`` is what a mean step would be shorter without: an estimate.
    """

    steps: int
    of: int
    devices: tuple[SkewCount, ...]
    gain_ps: float


@dataclass(frozen=True, slots=True)
class ExpertSpread:
    """How unequal the grouped matmuls of the experts are over the devices.

    ``imbalance`` is the time of the longest device against the mean over the devices, the mean over the steps;
    ``worst`` is the device that is the longest most often, in ``worst_steps`` of ``steps``.
    """

    family: str
    mean_ps: float
    imbalance: float
    worst: str
    worst_steps: int
    steps: int


@dataclass(frozen=True, slots=True)
class HostsReport:
    """All devices of a run beside each other.

    Attributes:
        file: the file, or the folder of those of all hosts.
        verdict: the answer in a sentence.
        unit: "step", or "run" where nothing repeats.
        matched: how steps of two devices are put beside each other: "names" (step numbers), "order" (all have equally
            many) or None (they cannot be).
        step_ps: mean step of the median device.
        waits_seen: whether communication is seen: where not, nobody can be said to wait.
        gain_ps: by how much the step would be shorter if all stragglers ran as the median device: an estimate. None
            where nothing can be compared.
        missing_hosts: names that the numbering of the others lacks, at most 20.
        expected_devices: devices of the run by its mesh, where these are more than there are here.
        expected_hosts: processes by the run info, where these are more than there are here.
        experts: per family; empty where there is no grouped matmul. The spread is of whole steps: layers are not told.
    """

    file: str
    label: str
    kind: str
    verdict: str
    unit: str
    matched: str | None
    step_ps: float | None
    waits_seen: bool
    gain_ps: float | None
    stragglers: tuple[Straggler, ...]
    spikes: Spikes | None
    hosts: tuple[SkewHost, ...]
    devices: tuple[SkewDevice, ...]
    steps: tuple[SkewStep, ...]
    experts: tuple[ExpertSpread, ...]
    missing_hosts: tuple[str, ...] = ()
    expected_devices: int | None = None
    expected_hosts: int | None = None
    warnings: tuple[Note, ...] = ()
