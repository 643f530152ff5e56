"""What ``profiler memory`` says: three peaks, the room that is left, what fills the peak, and how it comes about."""

from __future__ import annotations

from collections.abc import Iterable

from profiler.analysis.memory import TEMPORARIES
from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Notes,
    Preformatted,
    Table,
    capped,
    label,
    limit,
    name,
)
from profiler.report.plot import Plot, plot_lines
from profiler.results import (
    MemoryCurve,
    MemoryGroup,
    MemoryPoint,
    MemoryReport,
    MemoryTensor,
)

DEFAULT_ROWS = 20
DEFAULT_PROGRAMS = 5
OUTSIDE = "outside the layers"
SMALL = 0.0005  # of the peak: shows as 0.0 %


def memory_document(report: MemoryReport, top: int | None = None) -> Document:
    """The report as blocks; ``top`` rows per table, None for the default, 0 for all."""
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Facts(memory_facts(report))]
    tables = [groups_table(report), _stacks(report), _tensors(report)]
    blocks += [table if rows is None else capped(table, rows, ALL_ROWS) for table in tables if table.rows]
    if report.curve is not None:
        blocks.append(Preformatted(_curve_title(report), tuple(_curve(report.curve)), in_text=True))
        blocks.append(_highest(report.curve))
    more = [_programs(report), _allocators(report)]
    most = limit(top, DEFAULT_PROGRAMS)
    blocks += [table if most is None else capped(table, most, ALL_ROWS) for table in more if len(table.rows) > 1]
    blocks.append(Notes("Warnings", report.warnings))
    return Document(f"profiler memory: {report.label}", tuple(blocks))


def memory_facts(report: MemoryReport) -> tuple[tuple[str, Cell], ...]:
    """Three peaks that are never mixed, the limit, what is left below it, and the host memory."""
    memory = report.memory
    kinds = dict.fromkeys(each.type or "unknown device" for each in report.devices)
    facts = [("file", name(report.file)), ("devices", label(f"{len(report.devices)} × {', '.join(kinds)}"))]
    static = units.size(memory.static_peak_bytes)
    facts.append(("static peak", label(f"{static} ({report.program})" if report.program else static, STRONG)))
    facts.append(("allocated", label(_allocated(report))))
    facts.append(("window peak", label(_window(report), STRONG)))
    facts.append(("lifetime peak", label(units.size(memory.lifetime_peak_bytes))))
    facts.append(
        (
            "limit",
            label(
                f"{units.size(memory.capacity_bytes)}, {report.capacity_source}"
                if report.capacity_source
                else units.UNKNOWN
            ),
        )
    )
    facts.append(("headroom", _headroom(report)))
    facts.append(("host memory", label(_host(report))))
    return tuple(facts)


def _allocated(report: MemoryReport) -> str:
    lost = report.fragmentation_bytes
    text = units.size(report.memory.static_allocated_bytes)
    return f"{text}: the static peak and {units.size(lost)} lost to fragmentation" if lost is not None else text


def _window(report: MemoryReport) -> str:
    text = units.size(report.memory.window_peak_bytes)
    device = [each for each in report.allocators if not each.on_host]
    if not device:
        return text
    most = max(device, key=lambda each: each.window_peak_bytes)
    if not most.reserved_bytes:
        return f"{text} ({most.name})"
    return (
        f"{text} ({most.name}: {units.size(most.reserved_bytes)} reserved by programs, "
        f"{units.size(most.allocated_bytes)} allocated)"
    )


def _headroom(report: MemoryReport) -> Cell:
    known = [
        (value, f"{units.size(value)} {text}")
        for value, text in (
            (report.static_headroom_bytes, "above what the plan allocates"),
            (report.window_headroom_bytes, "above the window's peak"),
        )
        if value is not None
    ]
    short = any(value < 0 for value, _ in known)
    return label("; ".join(text for _, text in known) or units.UNKNOWN, BAD if short else "")


def _host(report: MemoryReport) -> str:
    static = report.memory.static_host_bytes
    text = "none in the plan" if static == 0 else f"{units.size(static)} in the plan"
    peaks = [each.window_peak_bytes for each in report.allocators if each.on_host]
    return f"{text}, {units.size(max(peaks))} in the window" if peaks else text


def detail_tables(report: MemoryReport) -> list[Table]:
    """What there is to say besides groups and tensors: each phase's highest point, stacks, programs, allocators."""
    highest = [_highest(report.curve)] if report.curve is not None else []
    return [table for table in (*highest, _stacks(report), _programs(report), _allocators(report)) if table.rows]


def groups_table(report: MemoryReport) -> Table:
    """What the static peak is for."""
    scale = units.byte_scale(row.bytes for row in report.groups)
    widest = max((row.fraction for row in report.groups), default=0.0) or 1.0
    ordered = sorted(report.groups, key=lambda row: -row.bytes)
    small = [row for row in ordered if row.fraction < SMALL]
    if len(small) > 1:
        rest = MemoryGroup(", ".join(row.group for row in small), sum(row.bytes for row in small), 0.0)
        ordered = [*ordered[: -len(small)], rest]
    return Table(
        "At the static peak",
        (Column("group", numeric=False), Column(scale.unit), Column("share"), Column("", numeric=False, bar=True)),
        tuple(
            (
                label(row.group),
                label(scale.show(row.bytes)),
                label(units.percent(row.fraction)),
                label(str(row.fraction / widest)),
            )
            for row in ordered
        ),
        total=(
            label("sum = static peak", STRONG),
            label(scale.show(sum(row.bytes for row in report.groups)), STRONG),
            label("100.0 %", STRONG),
            label("0"),
        ),
    )


def _stacks(report: MemoryReport) -> Table:
    scale = units.byte_scale(row.bytes for row in report.stacks)
    rows = report.stacks if any(row.stack for row in report.stacks) else ()
    return Table(
        "By stack of layers",
        (Column("stack", numeric=False), Column(scale.unit), Column("share")),
        tuple(
            (label(row.stack or OUTSIDE), label(scale.show(row.bytes)), label(units.percent(row.fraction)))
            for row in rows
        ),
    )


def _tensors(report: MemoryReport) -> Table:
    scale = units.byte_scale(row.bytes for row in report.tensors)
    return Table(
        "Tensors at the static peak",
        (
            Column("tensor", numeric=False),
            Column("group", numeric=False),
            Column("stack", numeric=False, minor=True),
            Column("shape", numeric=False),
            Column("count"),
            Column(scale.unit),
        ),
        tuple(
            (
                name(_tensor_name(row)),
                label(group_text(row.group, row.part)),
                label(row.stack or "–", DIM),
                name(row.shape),
                label(units.number(row.count)),
                label(scale.show(row.bytes)),
            )
            for row in report.tensors
        ),
        caption="bytes of all buffers of a row together; a shape is of one",
    )


def _tensor_name(row: MemoryTensor) -> str:
    if row.tensor:
        return row.tensor
    leaf = (row.name_stack or "").rpartition("/")[2]
    return " ".join(filter(None, (row.instruction, f"({leaf})" if leaf and leaf != row.instruction else ""))) or "–"


def group_text(group: str, part: str | None) -> str:
    """The group, with what is finer about it: whose parameters, which phase computes it."""
    if group == TEMPORARIES and part:
        return part if part.startswith("copy of") else f"{group}, {part}"
    return part if part and part.endswith(group) else group


def _curve_title(report: MemoryReport) -> str:
    events = units.grouped(report.curve.events if report.curve else 0)
    return f"HBM held over the schedule ({events} allocations and frees, left to right; not a time axis)"


def _curve(curve: MemoryCurve) -> Iterable[str]:
    phases = [point.phase for point in curve.points]
    return plot_lines(Plot(tuple(point.bytes for point in curve.points), tuple(phases)))


def _highest(curve: MemoryCurve) -> Table:
    scale = units.byte_scale(point.bytes for point in curve.highest)
    ordered: list[MemoryPoint] = sorted(curve.highest, key=lambda point: point.event)
    peak = curve.highest[0].bytes
    return Table(
        "Highest in each phase",
        (
            Column("phase", numeric=False),
            Column(scale.unit),
            Column("event", minor=True),
            Column("op", numeric=False),
            Column("tensor", numeric=False),
        ),
        tuple(
            (
                label(point.phase or "not known", STRONG if point.bytes == peak else ""),
                label(scale.show(point.bytes), STRONG if point.bytes == peak else ""),
                label(units.grouped(point.event)),
                name(point.op),
                name(point.tensor),
            )
            for point in ordered
        ),
        caption="the op whose buffer the compiler places then, and the tensor it is part of",
    )


def _programs(report: MemoryReport) -> Table:
    scale = units.byte_scale(row.static_allocated_bytes for row in report.programs)
    return Table(
        "Programs",
        (
            Column("program", numeric=False),
            *(Column(f"{title} {scale.unit}") for title in ("peak", "allocated", "arguments", "host")),
        ),
        tuple(
            (
                name(row.program),
                *(
                    label(scale.show(value))
                    for value in (
                        row.static_peak_bytes,
                        row.static_allocated_bytes,
                        row.argument_bytes,
                        row.static_host_bytes,
                    )
                ),
            )
            for row in report.programs
        ),
        caption="each by itself: what other programs hold between two of its executions is not in its plan",
    )


def _allocators(report: MemoryReport) -> Table:
    scale = units.byte_scale(row.window_peak_bytes for row in report.allocators)
    return Table(
        "Allocators, from their events",
        (
            Column("allocator", numeric=False),
            *(Column(f"{title} {scale.unit}") for title in ("window", "reserved", "allocated", "lifetime")),
            Column("fragmented", minor=True),
        ),
        tuple(
            (
                name(row.name),
                *(
                    label(scale.show(value))
                    for value in (
                        row.window_peak_bytes,
                        row.reserved_bytes,
                        row.allocated_bytes,
                        row.lifetime_peak_bytes,
                    )
                ),
                label(units.percent(row.fragmentation)),
            )
            for row in report.allocators
        ),
        caption="window peak = reserved + allocated at that moment; the lifetime peak leaves reserved bytes out",
    )
