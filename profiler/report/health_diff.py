"""The health of one recording, or of two beside each other, as tables; ``health_view`` says it of one as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from profiler.analysis.grades import NOTHING, YES
from profiler.analysis.remedies import GROUPS
from profiler.report import units
from profiler.report.health_view import TITLES, percent, remedy_of, value_text
from profiler.report.model import BAD, DIM, STRONG, Cell, Column, Table, label, name
from profiler.results_health import Assumption, Coverage, Health, Presence, Problem

Sides = Sequence[tuple[str, Health]]  # (baseline | optimized | recording, its health)
Row = TypeVar("Row", Coverage, Presence, Assumption)


def verdict(sides: Sides) -> str:
    """How many of the questions each side answers with a plain yes."""
    counts = []
    for _, health in sides:
        asked = [each.answer for each in health.grades if each.answer != NOTHING]
        counts.append(f"{asked.count(YES) or 'none'} of {len(asked)}")
    if len(set(counts)) == 1:
        where = "the figures of both sides" if len(sides) > 1 else "its figures"
        return f"A plain yes to {counts[0]} questions about {where}"
    return f"A plain yes to {counts[0]} questions about the baseline's figures, {counts[1]} about the optimized side's"


def facts_rows(sides: Sides) -> list[tuple[str, ...]]:
    """(what, of each side …): files, devices, steps, software."""
    rows: list[tuple[str, Callable[[Health], str]]] = [
        ("files", _files),
        ("kind", lambda health: health.kind),
        ("hosts", lambda health: ", ".join(health.hosts)),
        ("devices with ops", _devices),
        ("devices without ops", lambda health: ", ".join(health.idle_devices) or "none"),
        ("events per device", _events),
        ("steps", _steps),
        ("software", lambda health: ", ".join(f"{key} {value}" for key, value in health.versions.items()) or "n/a"),
        ("read by", lambda health: f"the {health.scanner} scanner"),
    ]
    return [(title, *(of(health) for _, health in sides)) for title, of in rows]


def _files(health: Health) -> str:
    sizes = [each.bytes for each in health.files if each.bytes is not None]
    count = f"{len(health.files)} files" if len(health.files) > 1 else Path(health.files[0].name).name
    return f"{count}, {units.size(sum(sizes))} unpacked" if sizes else count


def _devices(health: Health) -> str:
    kinds = ", ".join(dict.fromkeys(each.type or "unknown device" for each in health.devices))
    return f"{len(health.devices)} × {kinds}"


def _events(health: Health) -> str:
    counts = [each.events for each in health.devices]
    return f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"


def _steps(health: Health) -> str:
    steps = health.steps
    return f"{steps.count:,} {steps.unit if steps.count == 1 else steps.unit + 's'}, by {steps.source}"


def coverage_table(sides: Sides) -> Table:
    """How much of the busy time each fact is known of."""
    rows = []
    for each in _joined(sides, lambda health: health.coverage):
        if not any(row.ops for row in each):
            continue
        lacking = any(row.uncovered_ps for row in each)
        rows.append(
            (
                label(each[0].name),
                label(each[0].scope, DIM),
                *(_covered(row) for row in each),
                *([label(" ".join(str(row.fraction or 0.0) for row in each))] if len(sides) > 1 else []),
                label(each[0].without if lacking else "–", DIM),
            )
        )
    return Table(
        "How much is known",
        (
            Column("known", numeric=False),
            Column("of", numeric=False),
            *(Column(title) for title, _ in sides),
            *([Column("", numeric=False, bar=True)] if len(sides) > 1 else []),
            Column("without it", numeric=False),
        ),
        tuple(rows),
        caption="share of the busy (exclusive) time of the steady steps, and of the ops that ran in them",
    )


def _covered(row: Coverage) -> Cell:
    if not row.ops:
        return label("–", DIM)
    tone = STRONG if row.fraction is not None and row.fraction < 0.5 else ""
    some = row.covered_ops < row.ops
    return Cell(percent(row.fraction), tone, under=f"{row.covered_ops:,} of {row.ops:,} ops" if some else None)


def presence_rows(sides: Sides) -> list[tuple[str, ...]]:
    """(what, of each side …, what cannot be told without it): what the recordings hold as a whole."""
    return [
        (
            each[0].name,
            *((f"yes: {row.detail}" if row.detail else "yes") if row.present else "no" for row in each),
            "" if all(row.present for row in each) else each[0].without,
        )
        for each in _joined(sides, lambda health: health.presence)
    ]


def assumption_rows(sides: Sides) -> list[tuple[str, ...]]:
    """(which figure, of each side …): figures that no event tells, and who says them."""
    return [
        (each[0].name, *(_taken(row) for row in each)) for each in _joined(sides, lambda health: health.assumptions)
    ]


def _taken(row: Assumption) -> str:
    if row.value is None:
        return f"{units.UNKNOWN}: nobody says it"
    source = "given on the command line" if row.origin == "command line" else f"from the {row.origin}"
    return f"{value_text(row)}, {source}{f' ({row.detail})' if row.detail else ''}"


def devices_table(health: Health) -> Table:
    """Every device that recorded ops."""
    return Table(
        "Devices",
        (
            Column("device", numeric=False),
            Column("host", numeric=False),
            Column("plane", numeric=False),
            *(Column(title) for title in ("events", "ops", "steps", "own clock, ppm")),
            Column("steps found by", numeric=False),
        ),
        tuple(
            (
                name(each.name),
                name(each.host, DIM),
                name(each.plane, DIM),
                label(f"{each.events:,}"),
                label(f"{each.ops:,}"),
                label(f"{each.steps:,}", "" if each.steps else BAD),
                label("–" if each.clock_ppm is None else units.fixed(each.clock_ppm, 1, sign=True)),
                label(each.step_source, DIM),
            )
            for each in health.devices
        ),
    )


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning, what it is about ("baseline and optimized") and what helps, where the warning does not say so."""

    message: str
    about: str
    remedy: str | None


def warned(found: Iterable[tuple[str, Sequence[Problem]]]) -> tuple[tuple[str, tuple[Warned, ...]], ...]:
    """(title of a group, its warnings), each once with all the places that it is about; only groups that have some.

    Args:
        found: (place, warnings), such as ("baseline", …), ("comparison", …).
    """
    places: dict[Problem, dict[str, None]] = {}
    for place, each in found:
        for problem in each:
            places.setdefault(problem, {})[place] = None
    groups = (
        (
            TITLES[group],
            tuple(
                Warned(problem.message, " and ".join(where), remedy_of(problem))
                for problem, where in places.items()
                if problem.group == group
            ),
        )
        for group in GROUPS
    )
    return tuple((title, rows) for title, rows in groups if rows)


def _joined(sides: Sides, rows: Callable[[Health], Sequence[Row]]) -> list[tuple[Row, ...]]:
    """The rows of all sides: they are the same ones in the same order."""
    return list(zip(*(rows(health) for _, health in sides), strict=True))
