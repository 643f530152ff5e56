"""What ``profiler health`` says: how far to trust every figure, the plain answers first."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.analysis.grades import CARE, NO, YES
from profiler.analysis.remedies import GROUPS
from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    GOOD,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Items,
    Line,
    Table,
    capped,
    label,
    limit,
    name,
)
from profiler.report.summary_view import ESTIMATE
from profiler.results_health import Assumption, Health, HealthDevice, Presence, Problem

DEFAULT_ROWS = 20
TONES = {YES: GOOD, CARE: STRONG, NO: BAD}
TITLES = {"lost": "Lost or lacking", "assumed": "Assumed", "worth knowing": "Worth knowing"}
TRACE_TEXTS = ("mesh", "software versions", "peak (dense bf16)", "model FLOPs per step")  # what it says itself
PPM = 1.0  # a clock that runs apart by less is the same


def health_document(health: Health, top: int | None = None) -> Document:
    """The health as blocks; ``top`` devices, None for the default, 0 for all."""
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Facts(_facts(health))]
    if health.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    blocks.append(_grades(health))
    blocks.append(_coverage(health))
    missed = _missed(health)
    blocks += [Facts(missed, "What the rest lacks")] if missed else []
    blocks += [_presence(health), _assumptions(health)]
    if len(health.devices) > 1:
        table = _devices(health)
        blocks.append(table if rows is None else capped(table, rows, ALL_ROWS))
    for group in GROUPS:
        found = [each for each in health.problems if each.group == group]
        blocks += [_problems(group, found)] if found else []
    if not health.problems:
        blocks.append(Line("No warnings: nothing is lost that the file tells of."))
    return Document(f"profiler health: {health.label}", tuple(blocks))


def percent(fraction: float | None) -> str:
    """A share that reads "100 %" or "0 %" only where it is all or nothing."""
    if fraction is None:
        return "–"
    if fraction in (0.0, 1.0):
        return f"{fraction:.0%}".replace("%", " %")
    return units.percent(min(max(fraction, 0.001), 0.999))


def value_text(row: Assumption) -> str:
    """An assumed figure with its unit."""
    if row.value is None:
        return units.UNKNOWN
    if row.unit == "bytes":
        return f"{units.number(row.value / units.GIB)} GiB"
    if row.unit == "bytes/s":
        return f"{units.number(row.value / 1e9)} GB/s"
    if row.unit == "tokens":
        return units.grouped(row.value)
    return units.number(row.value, 5) + (f" {row.unit}" if row.unit.startswith("TFLOP") else "")


def remedy_of(problem: Problem) -> str | None:
    """What helps, where the message does not say so itself."""
    words = problem.message.replace("(", " ").split()
    return problem.remedy if problem.remedy and problem.remedy.split()[0] not in words else None


def _facts(health: Health) -> tuple[tuple[str, Cell], ...]:
    steps = health.steps
    sizes = [each.bytes for each in health.files]
    size = f", {units.size(sum(known for known in sizes if known))}" if all(sizes) and sizes else ""
    more = f" and {len(health.files) - 1} more" if len(health.files) > 1 else ""
    unit = steps.unit if steps.count == 1 else f"{steps.unit}s"
    kinds = ", ".join(dict.fromkeys(each.type or "unknown device" for each in health.devices))
    facts = [
        ("file", name(f"{health.files[0].name}{more}{size} unpacked" if size else health.file)),
        ("kind", label(health.kind)),
        ("hosts", name(", ".join(health.hosts))),
        ("devices", name(f"{len(health.devices)} × {kinds}, {_events(health.devices)}")),
    ]
    if health.idle_devices:
        facts.append(("idle devices", name(", ".join(health.idle_devices))))
    facts.append((f"{steps.unit}s", name(f"{steps.count} {unit} by {steps.source}, {_busy(health)}")))
    clocks = [each.clock_ppm for each in health.devices if each.clock_ppm is not None]
    if clocks and max(map(abs, clocks)) >= PPM:
        worst = max(clocks, key=abs)
        change = f"{units.number(abs(worst), 2)} millionths {'less' if worst < 0 else 'more'}"
        facts.append(("clocks", label(f"ops last {change} by the device's own clock than by the common one")))
    versions = ", ".join(f"{key} {value}" for key, value in health.versions.items())
    facts.append(("software", name(versions or units.UNKNOWN)))
    facts.append(("read by", label(f"the {health.scanner} scanner")))
    return tuple(facts)


def _events(devices: tuple[HealthDevice, ...]) -> str:
    counts = [each.events for each in devices]
    low, high = min(counts), max(counts)
    return f"{low:,} events" if low == high else f"{low:,} to {high:,} events each"


def _busy(health: Health) -> str:
    step = health.steps.mean_ps
    return f"{units.percent(health.busy_ps / step if step else None)} busy"


def _grades(health: Health) -> Items:
    return Items(
        "What the figures are worth",
        tuple(
            (
                label(f"{each.question} {each.answer}", TONES.get(each.answer, DIM)),
                (each.reason, *((f"what helps: {each.remedy}",) if each.remedy else ())),
            )
            for each in health.grades
        ),
    )


def _coverage(health: Health) -> Table:
    scale = units.time_scale(row.uncovered_ps for row in health.coverage)
    return Table(
        "How much is known",
        (
            *(Column(title, numeric=False) for title in ("known", "of")),
            Column("time"),
            Column("", numeric=False, bar=True),
            Column("ops"),
            Column(f"unknown {scale.unit}" + (" (est.)" if health.kind == "compiled" else "")),
        ),
        tuple(
            (
                label(row.name),
                label(row.scope, DIM),
                label(percent(row.fraction)),
                label(str(row.fraction or 0.0)),
                label(f"{row.covered_ops:,}/{row.ops:,}", DIM),
                label(scale.show(row.uncovered_ps) if row.uncovered_ps else "–"),
            )
            for row in health.coverage
            if row.ops
        ),
        caption=f"share of the busy (exclusive) time of the {health.steps.unit}, and of the ops that ran in it",
    )


def _missed(health: Health) -> tuple[tuple[str, Cell], ...]:
    """What cannot be told of the ops that are not covered; of those without time of their own nothing is missed."""
    return tuple((row.name, label(row.without)) for row in health.coverage if row.uncovered_ps)


def _presence(health: Health) -> Table:
    return Table(
        "What the recording holds",
        (Column("", numeric=False), Column("there", numeric=False), Column("", numeric=False)),
        tuple(
            (
                label(row.name),
                label("yes" if row.present else "no", "" if row.present else STRONG),
                _detail(row) if row.present else label(f"without it: {row.without}", DIM),
            )
            for row in health.presence
        ),
    )


def _assumptions(health: Health) -> Table:
    return Table(
        "What is taken from where",
        (
            Column("per device", numeric=False),
            Column("value"),
            Column("from", numeric=False),
            Column("", numeric=False),
        ),
        tuple((label(row.name), label(value_text(row)), label(row.origin), _detail(row)) for row in health.assumptions),
    )


def _detail(row: Presence | Assumption) -> Cell:
    """Our own words, or words of the trace."""
    return name(row.detail, DIM) if row.name in TRACE_TEXTS else label(row.detail or "–", DIM)


def _devices(health: Health) -> Table:
    return Table(
        "Devices",
        (
            Column("device", numeric=False),
            Column("host", numeric=False, minor=True),
            Column("events"),
            Column("ops"),
            Column(f"{health.steps.unit}s"),
            Column("found by", numeric=False),
        ),
        tuple(
            (
                name(each.name),
                name(each.host, DIM),
                label(f"{each.events:,}"),
                label(f"{each.ops:,}"),
                label(str(each.steps)),
                label(each.step_source, DIM),
            )
            for each in health.devices
        ),
    )


def _problems(group: str, problems: Sequence[Problem]) -> Items:
    return Items(
        TITLES[group],
        tuple(
            (name(each.message), (f"what helps: {remedy}",) if (remedy := remedy_of(each)) else ()) for each in problems
        ),
    )
