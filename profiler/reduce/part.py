"""What one device plane reduces to, before files are merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiler.errors import UnreadableError
from profiler.hlo import HloModule, parse
from profiler.results import Note
from profiler.trace import OP_SUMS_COLUMNS, Marks, Timeline, Windows


@dataclass(eq=False)
class DevicePart:
    """One device of one file. ``sums`` has the columns of OP_SUMS_COLUMNS without ``device``.

    ``windows`` are its steady steps where they are known already; else they are found from the other fields.
    """

    name: str
    plane: str
    platform: str
    stats: Mapping[str, Any]
    timeline: Timeline
    sums: pl.DataFrame
    steps: Marks | None = None
    modules: Marks | None = None
    damaged: int = 0
    resorted: bool = False
    windows: Windows | None = None


@dataclass
class Programs(Mapping[str, HloModule]):
    """The HLO modules of a file by program id, parsed when first asked for."""

    protos: dict[str, bytes]
    notes: list[Note] = field(default_factory=list)
    _parsed: dict[str, HloModule | None] = field(default_factory=dict)

    def __getitem__(self, program_id: str) -> HloModule:
        if program_id not in self._parsed:
            try:
                self._parsed[program_id] = parse(self.protos[program_id])
            except UnreadableError as error:
                self._parsed[program_id] = None
                self.notes.append(Note("hlo_unreadable", f"HLO of program {program_id} left out: {error}"))
        module = self._parsed[program_id]
        if module is None:
            raise KeyError(program_id)
        return module

    def __iter__(self) -> Iterator[str]:
        return iter(self.protos)

    def __len__(self) -> int:
        return len(self.protos)

    def find(self, program_id: str | None) -> HloModule | None:
        """The module, None where the file lacks it or it cannot be read."""
        try:
            return self[program_id] if program_id is not None else None
        except KeyError:
            return None


def sums_frame(rows: list[tuple[int, int, int, int]]) -> pl.DataFrame:
    """(op_id, occurrences, total_time_ps, self_time_ps) rows as a frame, ops of equal number added up."""
    schema = {name: getattr(pl, kind) for name, kind in OP_SUMS_COLUMNS.items() if name != "device"}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.group_by("op_id", maintain_order=True).sum() if frame.height else frame


def timeline(
    start: list[NDArray[np.int64]],
    duration: list[NDArray[np.int64]],
    op: list[NDArray[np.int64]],
    lane: list[int],
    counted: list[NDArray[np.bool_]],
    run: list[NDArray[np.int64]] | None = None,
    *,
    names: Sequence[str],
) -> Timeline:
    """Joins per-line columns, one lane number per line; ``names`` are those of the lines by lane number."""
    sizes = [len(column) for column in start]
    joined = _join(start, np.int64)
    return Timeline(
        start_ps=joined,
        duration_ps=_join(duration, np.int64),
        op=_join(op, np.int32),
        lane=np.repeat(np.array(lane, np.int32), sizes),
        counted=_join(counted, np.bool_),
        run=_join(run, np.int64) if run else np.full(len(joined), -1, np.int64),
        lanes=tuple(names),
    )


def _join(columns: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.asarray(column, dtype) for column in columns]) if columns else np.zeros(0, dtype)
