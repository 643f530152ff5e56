"""Tables that only the HTML report has: families under their phases, knobs with effects, HBM with bars.

They are blocks of ``model`` like any other; bars are drawn from cells that hold two shares, "0.31 0.12".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiler.report import knobs_view, units
from profiler.report.diff_tables import pair
from profiler.report.model import DIM, STRONG, Cell, Column, Table, delta, label
from profiler.report.wording import sides
from profiler.results import Diff, FamilyRow, KnobEffect, Summary

FamilyPair = list[FamilyRow | None]  # the baseline's and the optimized side's
MOST_PHASES = 12
MOST_CHANGES = 12  # lines of one group of knobs
SMALL = 0.0005  # of the step: shows as 0.0 %
# Figures that come from times; calls, bytes and tiles of a compiled profile are the compiler's own and exact.
_TIMED = re.compile(
    r"(^|\s)(ps|ns|µs|ms|s)$|^(in flight|exposed|Δ exposed|hidden|mean)\b|share$|^TFLOP/s$|^of peak$"
    r"|^points$|^= calls$|^\+ per call$"
)


def marked(table: Table, diff: Diff) -> Table:
    """The table with "(est.)" in the title of every column whose figures a compiled side only estimates."""
    base, opt = (side.kind == "compiled" for _, side in sides(diff))
    return estimates(table, base=base, opt=opt)


def estimates(table: Table, *, base: bool, opt: bool) -> Table:
    """The same where one knows which sides are compiled."""

    def estimated(title: str) -> bool:
        if not _TIMED.search(title):
            return False
        return base if title.startswith("base") else opt if title.startswith("opt") else base or opt

    columns = (
        replace(column, title=f"{column.title} (est.)") if estimated(column.title) else column
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


# --- families ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of a table under a heading row of their own."""

    head: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Sections:
    """A table in parts; ``frame`` has its columns, total and caption."""

    frame: Table
    parts: tuple[Section, ...]


def phases_table(diff: Diff, most: int) -> Sections:
    """Both sides' steps by phase, and within by family; per step, whatever the diff is normalised by."""
    both = [side for _, side in sides(diff)]
    found: dict[str | None, dict[tuple[str, str], FamilyPair]] = {}
    for index, side in enumerate(both):
        for row in side.families:
            phase = None if row.category == "idle" else row.phase
            rows = found.setdefault(phase, {}).setdefault((row.category, row.family), [None, None])
            rows[index] = row
    scale = units.time_scale(row.time_ps_per_step for side in both for row in side.families)
    toned = diff.normalization in ("step", "run")
    widest = max((row.fraction for side in both for row in side.families), default=0.0) or 1.0

    def figures(rows: Iterable[FamilyPair], tone: str = "") -> tuple[Cell, ...]:
        held = [[row for row in side if row] for side in zip(*rows, strict=True)]
        base, opt = (sum(row.time_ps_per_step for row in side) for side in held)
        change = delta(scale.delta(opt - base), opt - base)
        return (
            label(scale.show(base), tone),
            label(scale.show(opt), tone),
            change if toned else label(change.text, tone),
            *(label(units.percent(sum(row.fraction for row in side)), tone) for side in held),
        )

    def bars(rows: FamilyPair) -> Cell:
        return label(" ".join(f"{(row.fraction if row else 0.0) / widest:.3f}" for row in rows))

    def largest(rows: Iterable[FamilyPair]) -> float:
        return max((row.fraction for each in rows for row in each if row), default=0.0)

    parts = []
    for phase, families in sorted(
        found.items(), key=lambda item: (item[0] is None, -_share(item[1].values()), item[0] or "")
    ):
        ordered = sorted(families.items(), key=lambda item: (item[0][0] == "idle", -largest([item[1]]), item[0]))
        kept = [item for item in ordered if largest([item[1]]) >= SMALL or item[0][0] == "idle"][:most]
        rest = [item for item in ordered if item not in kept]
        if len(rest) == 1:
            kept, rest = [*kept, *rest], []
        shown = [(_family(key), label(_calls(each)), *figures([each]), bars(each)) for key, each in kept]
        if rest:
            words = label(f"{len(rest)} smaller", DIM)
            shown.append((words, label(""), *figures((each for _, each in rest), DIM), label("")))
        head = (label(phase or "no phase of its own", STRONG), label(""), *figures(families.values(), STRONG))
        parts.append(Section((*head, label("")), tuple(shown)))
    hidden = parts[MOST_PHASES:]
    unit = diff.baseline.steps.unit
    everything = [members for families in found.values() for members in families.values()]
    frame = Table(
        f"Where the {unit} goes: families by phase",
        (
            Column("family", numeric=False),
            Column("calls", minor=True),
            *(Column(f"{title} {scale.unit}") for title in ("baseline", "optimized", "Δ")),
            *(Column(f"{title} share", minor=True) for title in ("baseline", "optimized")),
            Column("", numeric=False, bar=True, minor=True),
        ),
        (),
        total=(label("sum", STRONG), label(""), *figures(everything, STRONG), label("")),
        caption=f"exclusive time per device and {unit}, whatever the change is normalised by; overlapped communication "
        "counts as the compute that hides it",
        more=f"{len(hidden)} more phases, in the sum" if hidden else None,
    )
    return Sections(marked(frame, diff), tuple(parts[:MOST_PHASES]))


def _share(families: Iterable[FamilyPair]) -> float:
    return sum(max((row.fraction if row else 0.0) for row in rows) for rows in families)


def _family(key: tuple[str, str]) -> Cell:
    category, family = key
    words = {"communication": "exposed", "transfer": "exposed transfer"}.get(category)
    return Cell(family, name=True, under=words)


def _calls(rows: FamilyPair) -> str:
    base, opt = (row.calls_per_step if row else 0 for row in rows)
    return pair(base, opt) if base is not None and opt is not None else pair(base or None, opt or None)


# --- knobs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnobGroup:
    """Knobs that mean something together: what changed, what was seen of it, and its part of the change."""

    changes: tuple[str, ...]
    text: str
    effect: Cell
    status: str


def knob_groups(diff: Diff) -> list[KnobGroup]:
    """Every group with its effect; keys without one come after, and what no knob moves comes last."""
    by_key = {knob.key: knob for knob in diff.knobs}
    groups, rest = [], []
    for each in diff.effects:
        members = [by_key.pop(key) for key in each.knobs if key in by_key] if each.group != "rest" else []
        changes = tuple(knobs_view.change_text(members))
        if each.group == "rest":
            rest.append(KnobGroup(("moved by no knob at first hand",), each.text, _effect(diff, each), each.status))
        else:
            groups.append(KnobGroup(_first(changes) or (each.group,), each.text, _effect(diff, each), each.status))
    left = knobs_view.change_text(list(by_key.values()))
    return [*groups, *(KnobGroup((text,), "", label(units.UNKNOWN), "unknown") for text in left), *rest]


def _first(changes: tuple[str, ...]) -> tuple[str, ...]:
    hidden = len(changes) - MOST_CHANGES
    return (*changes[:MOST_CHANGES], f"{hidden} more, below") if hidden > 0 else changes


def _effect(diff: Diff, each: KnobEffect) -> Cell:
    """The part of the change: MFU points, else time; shared parts are not its own."""
    shared = " shared" if each.shared else ""
    if each.mfu_points is not None:
        text = f"{units.points(each.mfu_points)} points{shared}"
        cell = delta(text, each.mfu_points, lower_is_better=False)
    elif each.time_ps:
        scale = units.time_scale((each.time_ps,))
        cell = delta(f"{scale.delta(each.time_ps)} {scale.unit}{shared}", each.time_ps)
    else:
        cell = label("–")
    return label(cell.text, DIM) if each.status == "none seen" else cell


def configured(side: Summary) -> bool:
    """Whether a side says how it was configured."""
    return bool((side.run_info or {}).get("config"))


# --- HBM --------------------------------------------------------------------------------------------------------------


def with_bars(table: Table, pairs: Sequence[tuple[float, float] | None]) -> Table:
    """The table with a last column of paired bars, the baseline's first; None for a row without."""
    widest = max((abs(value) for each in pairs if each for value in each), default=0.0) or 1.0
    cells = [label(" ".join(f"{max(value, 0.0) / widest:.3f}" for value in each or ())) for each in pairs]
    return replace(
        table,
        columns=(*table.columns, Column("", numeric=False, bar=True, minor=True)),
        rows=tuple((*row, cell) for row, cell in zip(table.rows, cells, strict=True)),
        total=(*table.total, label("")) if table.total else None,
    )
