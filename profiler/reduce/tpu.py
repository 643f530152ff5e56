"""TPU planes: lines ``XLA Ops`` and its kin, parity with XProf's hlo_stats (rules in docs/times.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from profiler.analysis import families
from profiler.reduce.catalog import Catalog, Entry
from profiler.reduce.columns import distinct
from profiler.reduce.pairs import with_pairs
from profiler.reduce.part import DevicePart, Programs, sums_frame, timeline
from profiler.trace import Marks
from profiler.xplane import scan
from profiler.xplane.read import EventName, PlaneNames

PLANE = re.compile(r"/device:TPU:(\d+)")
SPARSE_CORE_PLANE = re.compile(r"/device:TPU:(\d+) SparseCore (\d+)")
OP_LINES = ("XLA Ops", "Framework Ops", "Sparse Core Ops")
ASYNC_LINES = ("Async XLA Ops",)
_INSTRUCTION = re.compile(r"%?([\w.\-]+) = ")
_PROGRAM = re.compile(r"(?P<name>.*)\((?P<id>\d+)\)")
_DONE = re.compile(r"(-done|-update)(\.|$)")


def device_part(
    buffer: Any,
    plane: scan.Plane,
    names: PlaneNames,
    satellites: Sequence[tuple[scan.Plane, PlaneNames]],
    catalog: Catalog,
    programs: Programs,
    module_names: dict[str, str],
    scans: Scans,
) -> DevicePart:
    """Reduces one TensorCore's plane, with the SparseCore planes of the same chip as further lanes.

    The op table uses the device's own clock (``device_offset_ps``) as XProf does; spans use the profiler's common clock
    (``offset_ps``), in which modules, steps and host events are given too.
    """
    reader = _Names(names, catalog, programs, module_names)
    sums: list[tuple[int, int, int, int]] = []
    columns = _Columns()
    damaged, resorted = 0, False
    for line in plane.lines:
        if line.name in OP_LINES:
            table = scans.op_sums(line)
            damaged, resorted = damaged + table.damaged, resorted or table.resorted
            sums += reader.sums(table)
        if scans.spans_wanted and line.name in OP_LINES + ASYNC_LINES:
            columns.add(scans.spans(line), reader, line.name, in_flight=line.name in ASYNC_LINES)
    for satellite, satellite_names in satellites:
        reader_there = _Names(satellite_names, catalog, programs, module_names)
        core = satellite.name.removeprefix(plane.name).strip()
        for line in satellite.lines:
            if scans.spans_wanted and line.name in OP_LINES + ASYNC_LINES:
                name = f"{core}: {line.name}"
                columns.add(scans.spans(line), reader_there, name, in_flight=line.name in ASYNC_LINES)
    number = PLANE.match(plane.name)
    return DevicePart(
        name=f"TPU:{number[1]}" if number else plane.name,
        plane=plane.name,
        platform="tpu",
        stats=names.stats,
        timeline=with_pairs(columns.timeline(), catalog.entries),
        sums=sums_frame(sums),
        steps=marks(buffer, plane, names, "Steps", scans.origin_ns),
        modules=marks(buffer, plane, names, "XLA Modules", scans.origin_ns),
        damaged=damaged,
        resorted=resorted,
    )


class Scans:
    """Line scans of one file, started ahead on a thread pool: the scanner works with the GIL released."""

    def __init__(self, buffer: Any, origin_ns: int, pool: Executor, *, spans_wanted: bool) -> None:
        self.buffer, self.origin_ns, self.pool, self.spans_wanted = buffer, origin_ns, pool, spans_wanted
        self._sums: dict[int, Future[scan.OpSums]] = {}
        self._spans: dict[int, Future[scan.Events]] = {}

    def start(self, plane: scan.Plane, names: PlaneNames) -> None:
        """Starts the scans that device_part will ask for."""
        stats = scan.SpanStats(
            *(names.stat_id(name) for name in ("device_offset_ps", "device_duration_ps", "program_id", "symbol_id"))
        )
        for line in plane.lines:
            if line.name in OP_LINES:
                self._sums[line.start] = self.pool.submit(scan.op_sums, self.buffer, line, stats, self.origin_ns)
            if self.spans_wanted and line.name in OP_LINES + ASYNC_LINES:
                self._spans[line.start] = self.pool.submit(
                    scan.events, self.buffer, line, scan.SpanStats(), (), self.origin_ns
                )

    def op_sums(self, line: scan.Line) -> scan.OpSums:
        """Per-op sums in the device's own clock."""
        return self._sums.pop(line.start).result()

    def spans(self, line: scan.Line) -> scan.Events:
        """Spans in the profiler's common clock."""
        return self._spans.pop(line.start).result()


def marks(buffer: Any, plane: scan.Plane, names: PlaneNames, line_name: str, origin_ns: int) -> Marks | None:
    """The spans of a step or module line, None where the plane has none."""
    lines = [line for line in plane.lines if line.name == line_name and line.events]
    if not lines:
        return None
    found = [scan.events(buffer, line, scan.SpanStats(), (), origin_ns) for line in lines]
    start = np.concatenate([part.start_ps for part in found])
    end = start + np.concatenate([part.duration_ps for part in found])
    ids = np.concatenate([part.metadata_id for part in found])
    order = np.argsort(start, kind="stable")
    texts = {int(key): (event.short if (event := names.event(int(key))) else str(key)) for key in np.unique(ids)}
    return Marks(start[order], end[order], tuple(texts[int(key)] for key in ids[order]))


class _Columns:
    """Collects the spans of one device, line by line."""

    def __init__(self) -> None:
        self.start: list[Any] = []
        self.duration: list[Any] = []
        self.op: list[Any] = []
        self.lane: list[int] = []
        self.counted: list[Any] = []
        self.names: list[str] = []

    def add(self, events: scan.Events, reader: _Names, name: str, *, in_flight: bool) -> None:
        ids, code = distinct(events.metadata_id)
        op_ids = np.array([reader.op_id(int(key), in_flight=in_flight) for key in ids], np.int32)
        calls = np.array([not in_flight and not reader.is_done(int(key)) for key in ids], np.bool_)
        self.start.append(events.start_ps)
        self.duration.append(events.duration_ps)
        self.op.append(op_ids[code])
        self.lane.append(-1 if in_flight else len(self.lane))
        self.counted.append(calls[code])
        self.names.append(name)

    def timeline(self) -> Any:
        return timeline(self.start, self.duration, self.op, self.lane, self.counted, names=self.names)


class _Names:
    """From the event ids of one plane to numbered ops."""

    def __init__(self, names: PlaneNames, catalog: Catalog, programs: Programs, module_names: dict[str, str]) -> None:
        self.names, self.catalog, self.programs, self.module_names = names, catalog, programs, module_names
        self._op_ids: dict[tuple[int, bool], int] = {}

    def op_id(self, metadata_id: int, *, in_flight: bool = False) -> int:
        """The op of an event id. Async lines name spans after the kind of transfer: take the instruction's name."""
        found = self._op_ids.get((metadata_id, in_flight))
        if found is None:
            event = self.names.event(metadata_id)
            if event is None:
                found = self.catalog.op_id(("unnamed", metadata_id), lambda: _unnamed(metadata_id))
            else:
                found = self._numbered(event, event.stats.get("program_id"), in_flight=in_flight)
            self._op_ids[metadata_id, in_flight] = found
        return found

    def is_done(self, metadata_id: int) -> bool:
        """Whether the event is the second half of an async pair: a wait, not another call."""
        event = self.names.event(metadata_id)
        return event is not None and _DONE.search(event.short) is not None

    def sums(self, table: scan.OpSums) -> list[tuple[int, int, int, int]]:
        """XProf's rows: ops without program or symbol get none; within a core the first name of a symbol stands."""
        rows: dict[tuple[int, int], tuple[int, int, int]] = {}
        first: dict[tuple[int, int], tuple[int, int]] = {}
        loose: list[tuple[int, int, int, int]] = []
        for metadata_id, event_program, event_symbol, has_program, has_symbol, count, total, own, begin in zip(
            table.metadata_id.tolist(),
            table.program_id.tolist(),
            table.symbol_id.tolist(),
            table.has_program.tolist(),
            table.has_symbol.tolist(),
            table.occurrences.tolist(),
            table.total_ps.tolist(),
            table.self_ps.tolist(),
            table.first_start_ps.tolist(),
            strict=True,
        ):
            if total < 0:  # a damaged file can hold spans whose sum leaves 64 bits
                continue
            event = self.names.event(metadata_id)
            known = event.stats if event else {}
            program = event_program if has_program else known.get("program_id")
            symbol = event_symbol if has_symbol else known.get("symbol_id")
            if not isinstance(program, int) or not isinstance(symbol, int) or not symbol:
                loose.append((self.op_id(metadata_id), count, total, own))
                continue
            key = (program % 2**64, symbol % 2**64)
            before = rows.get(key, (0, 0, 0))
            rows[key] = (before[0] + count, before[1] + total, before[2] + own)
            if key not in first or begin < first[key][0]:
                first[key] = (begin, metadata_id)
        named: list[tuple[int, int, int, int]] = []
        for key, row in rows.items():
            event = self.names.event(first[key][1])
            assert event is not None
            named.append((self._numbered(event, key[0], in_flight=False, in_table=True), *row))
        return named + loose

    def _numbered(self, event: EventName, program: Any, *, in_flight: bool, in_table: bool = False) -> int:
        instruction = _INSTRUCTION.match(event.name) if in_flight else None
        name = instruction[1] if instruction else event.short
        if not isinstance(program, int):
            return self.catalog.op_id((None, name), lambda: self._entry(event, None, name, hlo=False))
        program_id = str(program % 2**64)
        listed = in_table or bool(event.stats.get("symbol_id"))
        key = (program_id, name) if listed else (program_id, name, "unlisted")
        return self.catalog.op_id(key, lambda: self._entry(event, program_id, name, hlo=listed))

    def _entry(self, event: EventName, program_id: str | None, name: str, *, hlo: bool) -> Entry:
        stats = event.stats
        category = _text(stats.get("hlo_category"))
        facts = families.OpFacts(
            name=name,
            opcode=None,
            category=category,
            name_stack=_name_stack(stats.get("tf_op")),
            hlo_text=event.name if " = " in event.name else None,
            shape=_text(stats.get("shape_with_layout")),
            source=_text(stats.get("source")),
        )
        flops = _count(stats.get("flops"))
        if not flops and category in ("custom-call", "custom fusion"):
            flops = self._estimated_flops(program_id, name)
        return Entry(
            program=self.module_names.get(program_id or ""),
            program_id=program_id,
            op=name,
            hlo=hlo,
            facts=facts,
            category=category,
            flops=flops,
            bytes_accessed=_count(stats.get("bytes_accessed")),
        )

    def _estimated_flops(self, program_id: str | None, name: str) -> int | None:
        """XLA counts 0 for custom calls: take the kernel's own estimate, else say that it is unknown."""
        module = self.programs.find(program_id) if program_id in self.programs else None
        instruction = module.instructions.get(name) if module else None
        estimate = instruction.flops if instruction else None
        return int(estimate) if estimate else None


def split_program(name: str) -> tuple[str, str | None]:
    """``jit_f(123)`` as its name and program id."""
    match = _PROGRAM.fullmatch(name)
    return (match["name"], match["id"]) if match else (name, None)


def _unnamed(metadata_id: int) -> Entry:
    name = f"op {metadata_id}"
    return Entry(None, None, name, hlo=False, facts=families.OpFacts(name=name))


def _name_stack(tf_op: Any) -> str | None:
    """``a/b/c:type`` without the type."""
    value = _text(tf_op)
    return value.rsplit(":", 1)[0] or None if value else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def module_names(parts: Sequence[tuple[scan.Plane, PlaneNames]], buffer: Any) -> dict[str, str]:
    """Program id → program name, from the module lines (their names end in the id)."""
    found: dict[str, str] = {}
    for plane, names in parts:
        modules = marks(buffer, plane, names, "XLA Modules", 0)
        for name in dict.fromkeys(modules.names if modules else ()):
            program, program_id = split_program(name)
            if program_id is not None:
                found.setdefault(program_id, program)
    return found


def type_and_peak(stats: dict[str, Any]) -> tuple[str | None, float | None]:
    """The device type and the peak that the plane itself states, TFLOP/s."""
    peak = stats.get("peak_teraflops_per_second")
    return _text(stats.get("device_type_string")), float(peak) if isinstance(peak, int | float) and peak > 0 else None
