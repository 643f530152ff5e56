"""What a timeline shows: columns of spans, bounded by what a screen can tell apart.

Times are picoseconds of the device's clock as in ``Timeline``. A *row* is a lane at one depth of nesting; spans of a
row do not overlap, save in a row that is ``crowded``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from profiler.results import Note


@dataclass(frozen=True, slots=True)
class TimelineDevice:
    """A device with its steps: ``steps`` (n, 2) int64 [start, end), ``default`` the one nearest the median length.

    ``bounds_ps`` are the first and the last moment of its spans and steps; ``unit`` is "step", or "run" where no step
    repeats and the whole recording is the one.
    """

    index: int
    name: str
    spans: int
    steps: np.ndarray
    default: int
    unit: str
    bounds_ps: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One line of a drawing: ``depth`` 0 is what nothing else on the lane contains."""

    lane: int
    name: str
    depth: int
    crowded: bool = False


@dataclass(frozen=True, slots=True)
class TimelineRows:
    """All spans of a device in drawing order: row by row, each by start.

    ``edges`` (rows + 1) are where each row begins in the columns ``start_ps``, ``duration_ps`` and ``op``;
    ``longest_ps`` the longest span of each row; ``families`` the names behind ``family`` (int16, by op id).
    """

    rows: tuple[TimelineRow, ...]
    edges: np.ndarray
    start_ps: np.ndarray
    duration_ps: np.ndarray
    op: np.ndarray
    longest_ps: np.ndarray
    family: np.ndarray
    families: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True, slots=True)
class TimelineView:
    """What is seen of a device between ``start_ps`` and ``end_ps``, for a drawing ``pixels`` wide.

    A span at least a pixel wide is itself. Narrower ones that begin in one pixel are one block. Columns, row by row, by
    start: ``row`` (index into ``rows``); ``start_ps`` and ``end_ps``, the first and last moment; ``busy_ps``, the sum
    of the spans' durations, whole even where the window cuts them; ``count``, how many they are; ``op``, −1 for
    several; ``family`` (index into ``families``), of several the one with the most time. No span in the window is left
    out: over a row ``busy_ps`` and ``count`` are those of its spans.
    """

    start: int
    end: int
    pixels: int
    rows: tuple[TimelineRow, ...]
    families: tuple[str, ...]
    row: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray
    busy_ps: np.ndarray
    count: np.ndarray
    op: np.ndarray
    family: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True, slots=True)
class TimelineOp:
    """What is known of an op, for a hover; ``scopes`` is its name stack."""

    op_id: int
    op: str
    family: str
    phase: str | None
    kernel: str | None
    scopes: str | None
    source: str | None
    program: str | None
    shape: str | None


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """One span of the longest in a view, or a block of ``count`` narrow ones."""

    lane: str
    depth: int
    start_ps: int
    busy_ps: int
    count: int
    op_id: int
    family: str


@dataclass(frozen=True, slots=True)
class ExportedDevice:
    """Steps of one device: ``steps`` maps the number of each to its [start, end); time counts from ``origin_ps``."""

    name: str
    host: str | None
    rows: TimelineRows
    steps: Mapping[int, tuple[int, int]]
    unit: str
    origin_ps: int


@dataclass(frozen=True, slots=True)
class ExportedSide:
    """One recording to export; ``role`` is "baseline", "optimized" or None for one alone.

    ``ops`` has the columns ``op``, ``family``, ``phase``, ``kernel``, ``name_stack``, ``source`` and ``program``; its
    rows are the ops that the devices' spans refer to.
    """

    role: str | None
    label: str
    kind: str  # "recorded" | "compiled"
    file: str
    devices: tuple[ExportedDevice, ...]
    ops: pl.DataFrame


@dataclass(frozen=True, slots=True)
class TimelineExport:
    """Steps of one recording or of two, ready to be written."""

    sides: tuple[ExportedSide, ...]
    warnings: tuple[Note, ...] = ()
