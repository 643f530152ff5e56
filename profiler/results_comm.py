"""What the analysis of communication and transfers says; part of ``profiler.results``, which has the house rules.

Times are of one device and step. *In flight* is the union of the spans over all lines, *exposed* the part of it that
``profiler diff`` calls exposed: no compute runs, and the time is given to this row. *Hidden* is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.results import DeviceInfo, Note


@dataclass(frozen=True, slots=True)
class CommRow:
    """One kind of collective along one mesh axis, or one kind of transfer in one direction.

    ``category`` is "communication" or "transfer"; ``where`` the mesh axis or the direction; ``group_size`` the devices
    in a group, None where groups differ. ``bytes_per_step`` is what a device sends (collectives) or moves (transfers),
    ``bytes_per_s`` that over the time in flight, ``link_fraction`` of what the chip's links can send.
    ``in_flight_ps`` = ``exposed_ps`` + ``hidden_ps``.
    """

    category: str
    kind: str
    where: str | None
    group_size: int | None
    calls_per_step: float
    bytes_per_step: float | None
    in_flight_ps: float
    exposed_ps: float
    hidden_ps: float
    bytes_per_s: float | None
    link_fraction: float | None


@dataclass(frozen=True, slots=True)
class CommTotal:
    """All rows of a category, or of both (None): time in flight counts once however many are in flight."""

    category: str | None
    in_flight_ps: float
    exposed_ps: float
    hidden_ps: float


@dataclass(frozen=True, slots=True)
class WaitRow:
    """Time in which a device does nothing, by its cause; with exposed time and compute these sum to the step."""

    cause: str
    time_ps: float
    fraction: float


@dataclass(frozen=True, slots=True)
class WholeRow:
    """Exposed time of one kind over the whole recording, per device, and its shares."""

    category: str
    kind: str
    time_ps: float
    fraction: float
    busy_fraction: float


@dataclass(frozen=True, slots=True)
class WholeRecording:
    """The same from the first to the last op of each device, gaps between programs included."""

    length_ps: float
    busy_ps: float
    rows: tuple[WholeRow, ...]


@dataclass(frozen=True, slots=True)
class CommReport:
    """Communication, transfers and waiting of one recording.

    ``link_bytes_per_s`` is what all links of a chip together can send, one way; ``link_source`` is the chip. ``mesh``
    is the run info's.
    """

    file: str
    label: str
    kind: str
    devices: tuple[DeviceInfo, ...]
    unit: str
    step_ps: float
    busy_ps: float
    compute_ps: float
    rows: tuple[CommRow, ...]
    totals: tuple[CommTotal, ...]
    waits: tuple[WaitRow, ...]
    whole: WholeRecording | None
    link_bytes_per_s: float | None
    link_source: str | None
    mesh: dict[str, int] | None
    warnings: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class CommDeltaRow:
    """One kind on both sides. Times are per device, for the work of one baseline step; None for a side without it."""

    category: str
    kind: str
    where: str | None
    baseline_calls: float | None
    optimized_calls: float | None
    baseline_in_flight_ps: float | None
    optimized_in_flight_ps: float | None
    baseline_exposed_ps: float | None
    optimized_exposed_ps: float | None
    baseline_hidden_ps: float | None
    optimized_hidden_ps: float | None


@dataclass(frozen=True, slots=True)
class CommDelta:
    """Communication and transfers of both sides. Exposed times per kind sum to those of the contributions."""

    rows: tuple[CommDeltaRow, ...]
