"""A reduced run, read: its hosts without their spans, and the devices whose spans it keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from profiler.errors import UnreadableError, UsageError
from profiler.reduce.files import FilePart
from profiler.reduce.host_part import DeviceTimes, Failure, HostPart
from profiler.reduce.part import DevicePart, Programs
from profiler.reduced import (
    HOSTS,
    MODULES,
    OPS,
    PROGRAMS,
    RUN_INFO,
    SPANS,
    STEPS,
    VERSION,
    device_name,
    host_tables,
    sums_name,
)
from profiler.trace import AllocatorPeaks, Marks, Timeline
from profiler.xplane.locate import MANIFEST

SPANS_COLUMNS: dict[str, Any] = {
    "start_ps": pl.Int64,
    "duration_ps": pl.Int64,
    "op": pl.Int32,
    "lane": pl.Int32,
    "counted": pl.Boolean,
    "run": pl.Int64,
}
_REMEDY = "write it anew with profiler reduce"


@dataclass(frozen=True)
class StoredOps:
    """One table of ops of a reduced run, read when it is asked for."""

    folder: Path
    table: int

    @property
    def digest(self) -> str:
        """What tells it from another."""
        return f"{self.folder}:{self.table}"

    def frame(self) -> pl.DataFrame:
        """Trace.ops of a file."""
        ops = _table(self.folder / OPS, pl.col("table") == self.table)
        return ops.drop("table")


class ReducedRun:
    """The folder of a reduced run.

    Args:
        folder: where it lies.
        names: what its hosts' files are called; None for names in the folder.

    Raises:
        UnreadableError: a table is missing or damaged, here or where one is read.
    """

    def __init__(self, folder: Path, names: Sequence[str] | None = None):
        self.folder = folder
        self._names = names

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest; see docs/reduced.md."""
        found = self._json(MANIFEST)
        if not isinstance(found, dict) or not isinstance(found.get("hosts"), list):
            raise UnreadableError("is no manifest of a reduced run", file=self.folder / MANIFEST, remedy=_REMEDY)
        if found.get("version") != VERSION:
            what = f"has version {found.get('version')!r} of the format, this profiler reads {VERSION}"
            raise UnreadableError(what, file=self.folder, remedy="read it with the profiler that wrote it")
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the hosts' files are called."""
        if self._names is not None:
            return tuple(self._names)
        return tuple(str(self.folder / str(host.get("file"))) for host in self.manifest["hosts"])

    @cached_property
    def _facts(self) -> dict[int, dict[str, Any]]:
        return {host: json.loads(text) for host, text in _table(self.folder / HOSTS).iter_rows()}

    @cached_property
    def _steps(self) -> pl.DataFrame:
        return _table(self.folder / STEPS)

    @cached_property
    def _infos(self) -> list[Any]:
        found = self._json(RUN_INFO)
        return found if isinstance(found, list) else []

    def part(self, host: int) -> HostPart | Failure:
        """One host without its spans; what was wrong with it where it could not be read."""
        facts = self._facts.get(host)
        if facts is None:
            return Failure(self.names[host], str(self.manifest["hosts"][host].get("why")))
        first, last = np.searchsorted(self._steps["host"].to_numpy(), [host, host + 1])
        try:
            ops, info = StoredOps(self.folder, facts["ops"]), self._infos[facts["run_info"]]
            return host_tables.host_part(self.names[host], facts, self._steps[first:last], ops, info)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UnreadableError(f"is damaged ({error!r})", file=self.folder / HOSTS, remedy=_REMEDY) from error

    def spans(self, host: int, only: str | None, *, timelines: bool) -> FilePart:
        """One host with the spans that are kept; see profiler.reduce.sources.Source.

        Raises:
            UsageError: the spans of a device that is asked for are not kept.
        """
        part = self.part(host)
        if isinstance(part, Failure):
            raise part.error()
        chosen = [(number, each) for number, each in enumerate(part.devices) if only in (None, each.name)]
        sums = _table(self.folder / sums_name(host), pl.col("host") == host)
        devices = []
        for number, each in chosen:
            timeline, modules = _NOTHING, None
            if timelines:
                timeline, modules = self._kept(host, number, part, each)
            own = sums.filter(pl.col("device") == number).drop("host", "device")
            devices.append(
                DevicePart(
                    each.name,
                    each.plane,
                    each.platform,
                    each.stats,
                    timeline,
                    own,
                    modules=modules,
                    windows=each.windows,
                )
            )
        return FilePart(
            file=part.file,
            hosts=part.hosts,
            devices=tuple(devices),
            idle=tuple(_idle(each) for each in part.idle),
            ops=part.ops.frame(),
            annotations=None,
            allocator=part.allocator if timelines else AllocatorPeaks(),
            programs=Programs(self._programs(part)),
            run_info=part.run_info,
            versions=part.versions,
            notes=part.notes,
            bytes=part.bytes,
            origin_ns=part.origin_ns,
            started_ns=part.started_ns,
        )

    def _kept(self, host: int, number: int, part: HostPart, each: DeviceTimes) -> tuple[Timeline, Marks | None]:
        lanes = {(one["host"], one["device"]): one["lanes"] for one in self.manifest["kept"]}
        if (host, number) not in lanes:
            names = [self._facts[one]["devices"][device]["name"] for one, device in lanes]
            hosts = [self._facts[one]["hosts"][0] for one, _ in lanes]
            kept = ", ".join(f"{one}/{name}" for one, name in zip(hosts[:3], names[:3], strict=True))
            raise UsageError(
                f"the spans of {part.hosts[0]}/{each.name} are not kept, only those of {kept or 'no device'}",
                file=self.folder,
                remedy="profiler reduce --keep all keeps those of every device",
            )
        table = _table(self.folder / SPANS / device_name(host, number))
        timeline = _timeline(table, lanes[host, number])
        place = self.folder / MODULES / device_name(host, number)
        if not place.exists():
            return timeline, None
        found = _table(place)
        return timeline, Marks(found["start_ps"].to_numpy(), found["end_ps"].to_numpy(), tuple(found["name"].to_list()))

    def _programs(self, part: HostPart) -> dict[str, bytes]:
        wanted = pl.col("digest").is_in(list(set(part.programs.values())))
        protos: dict[str, bytes] = dict(_table(self.folder / PROGRAMS, wanted).iter_rows())
        return {name: protos[digest] for name, digest in part.programs.items() if digest in protos}

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            what = error.strerror if isinstance(error, OSError) and error.strerror else "no JSON"
            raise UnreadableError(f"cannot be read: {what}", file=self.folder / name, remedy=_REMEDY) from error


def _timeline(table: pl.DataFrame, lanes: Sequence[str]) -> Timeline:
    start, duration, op, lane, counted, run = (table[name].to_numpy() for name in SPANS_COLUMNS)
    return Timeline(start, duration, op, lane, counted, run, tuple(lanes))


_NOTHING = _timeline(pl.DataFrame(schema=SPANS_COLUMNS), ())


def _idle(each: DeviceTimes) -> DevicePart:
    none = pl.DataFrame(schema=host_tables.SUMS_COLUMNS).drop("device")
    return DevicePart(each.name, each.plane, each.platform, each.stats, _NOTHING, none)


def _table(path: Path, rows: pl.Expr | None = None) -> pl.DataFrame:
    """A table, or those of its rows that are wanted."""
    try:
        scan = pl.scan_parquet(path)
        return (scan if rows is None else scan.filter(rows)).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UnreadableError("cannot be read, or is damaged", file=path, remedy=_REMEDY) from error
