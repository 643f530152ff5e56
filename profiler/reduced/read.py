"""A reduced run, read: its hosts without their spans, and the devices whose spans it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
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
from profiler.trace import OPS_COLUMNS, AllocatorPeaks, Marks, Timeline
from profiler.xplane.locate import MANIFEST

SPANS_COLUMNS: dict[str, Any] = {
    "start_ps": pl.Int64,
    "duration_ps": pl.Int64,
    "op": pl.Int32,
    "lane": pl.Int32,
    "counted": pl.Boolean,
    "run": pl.Int64,
}
_HOSTS_COLUMNS = {"host": pl.Int32, "facts": pl.String}
_OPS_COLUMNS = {name: getattr(pl, kind) for name, kind in OPS_COLUMNS.items()}
_MODULES_COLUMNS = {"start_ps": pl.Int64, "end_ps": pl.Int64, "name": pl.String}
_PROGRAMS_COLUMNS = {"digest": pl.String, "proto": pl.Binary}
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
        return _table(self.folder / OPS, {"table": pl.Int32, **_OPS_COLUMNS}, pl.col("table") == self.table).drop(
            "table"
        )


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
        if not isinstance(found, dict):
            raise UnreadableError("is no manifest of a reduced run", file=self.folder / MANIFEST, remedy=_REMEDY)
        if found.get("version") != VERSION:
            what = f"has version {found.get('version')!r} of the format, this profiler reads {VERSION}"
            raise UnreadableError(what, file=self.folder, remedy="read it with the profiler that wrote it")
        with _whole(self.folder / MANIFEST):
            files = [str(PurePath(host["file"]).name) for host in found["hosts"]]
            lanes = [(one["host"], one["device"], "".join(one["lanes"])) for one in found["kept"]]
            if not files or "\0" in "".join(files) or any(not 0 <= host < len(files) for host, *_ in lanes):
                raise ValueError("hosts and kept do not fit")
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the hosts' files are called."""
        if self._names is not None:
            return tuple(self._names)
        return tuple(str(self.folder / PurePath(host["file"]).name) for host in self.manifest["hosts"])

    @cached_property
    def _facts(self) -> dict[int, dict[str, Any]]:
        with _whole(self.folder / HOSTS):
            return {host: json.loads(text) for host, text in _table(self.folder / HOSTS, _HOSTS_COLUMNS).iter_rows()}

    @cached_property
    def _steps(self) -> pl.DataFrame:
        return _table(self.folder / STEPS, {"host": pl.Int32, **host_tables.STEPS_COLUMNS})

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
        with _whole(self.folder / HOSTS):
            ops, info = StoredOps(self.folder, int(facts["ops"])), self._infos[facts["run_info"]]
            return host_tables.host_part(self.names[host], facts, self._steps[first:last], ops, info)

    def spans(self, host: int, only: str | None, *, timelines: bool) -> FilePart:
        """One host with the spans that are kept; see profiler.reduce.sources.Source.

        Raises:
            UsageError: the spans of a device that is asked for are not kept.
        """
        part = self.part(host)
        if isinstance(part, Failure):
            raise part.error()
        chosen = [(number, each) for number, each in enumerate(part.devices) if only in (None, each.name)]
        columns = {"host": pl.Int32, **host_tables.SUMS_COLUMNS}
        sums = _table(self.folder / sums_name(host), columns, pl.col("host") == host)
        ops = part.ops.frame()
        devices = []
        for number, each in chosen:
            timeline, modules = _NOTHING, None
            if timelines:
                timeline, modules = self._kept(host, number, part, each)
            own = sums.filter(pl.col("device") == number).drop("host", "device")
            if max(timeline.op.max(initial=-1), own["op_id"].max() or -1) >= ops.height:
                raise UnreadableError("lacks ops that ran", file=self.folder / OPS, remedy=_REMEDY)
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
            ops=ops,
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
            with _whole(self.folder / MANIFEST):
                names = [self._facts[one]["devices"][device]["name"] for one, device in lanes]
                hosts = [self._facts[one]["hosts"][0] for one, _ in lanes]
            kept = ", ".join(f"{one}/{name}" for one, name in zip(hosts[:3], names[:3], strict=True))
            raise UsageError(
                f"the spans of {part.hosts[0]}/{each.name} are not kept, only those of {kept or 'no device'}",
                file=self.folder,
                remedy="profiler reduce --keep all keeps those of every device",
            )
        place = self.folder / SPANS / device_name(host, number)
        table = _table(place, SPANS_COLUMNS)
        if not table.height:
            raise UnreadableError("holds no spans", file=place, remedy=_REMEDY)
        timeline = _timeline(table, lanes[host, number])
        place = self.folder / MODULES / device_name(host, number)
        if not place.exists():
            return timeline, None
        found = _table(place, _MODULES_COLUMNS)
        return timeline, Marks(found["start_ps"].to_numpy(), found["end_ps"].to_numpy(), tuple(found["name"].to_list()))

    def _programs(self, part: HostPart) -> dict[str, bytes]:
        wanted = pl.col("digest").is_in(list(set(part.programs.values())))
        protos: dict[str, bytes] = dict(_table(self.folder / PROGRAMS, _PROGRAMS_COLUMNS, wanted).iter_rows())
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


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    """What is made from a file that holds other than it should is the file's fault."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"is damaged ({error!r})", file=file, remedy=_REMEDY) from error


def _table(path: Path, columns: Mapping[str, Any], rows: pl.Expr | None = None) -> pl.DataFrame:
    """The columns of a table, or those of its rows that are wanted."""
    try:
        scan = pl.scan_parquet(path)
        if dict(scan.collect_schema()) | dict(columns) != dict(scan.collect_schema()):
            raise UnreadableError("has other columns than it should", file=path, remedy=_REMEDY)
        return (scan if rows is None else scan.filter(rows)).select(*columns).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UnreadableError("cannot be read, or is damaged", file=path, remedy=_REMEDY) from error
