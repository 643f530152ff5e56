"""Tables that only the HTML report has: families under their phases, kernel counts by phase, tiles, knobs with effects.

They are blocks of ``model`` like any other; bars are drawn from cells that hold two shares, "0.31 0.12".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiler.report import knobs_view, units
from profiler.report.diff_tables import pair
from profiler.report.kernels_diff import kernel_pairs, tile_text
from profiler.report.model import DIM, STRONG, Cell, Column, Table, delta, label, name
from profiler.report.wording import kernel_title, sides
from profiler.results import Diff, FamilyRow, KernelRow, KnobEffect, Summary

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


# --- kernels ----------------------------------------------------------------------------------------------------------


def counts_table(diff: Diff) -> Table | None:
    """How often splash attention and the grouped matmuls run in each phase, and in all; per layer where known."""
    found: dict[str, dict[str, list[KernelRow | None]]] = {}
    for pair_of in kernel_pairs(diff):
        first = pair_of[0] or pair_of[1]
        if first is None or not (first.family or "").startswith(("splash", "gmm", "tgmm")):
            continue
        cell = found.setdefault(first.family or "", {}).setdefault(first.phase or "–", [None, None])
        for index, row in enumerate(pair_of):
            cell[index] = _added(cell[index], row)
    if not found:
        return None
    order = ("teacher", "forward", "student forward", "re-run", "backward", "student backward")
    phases = sorted(
        dict.fromkeys(phase for row in found.values() for phase in row),
        key=lambda phase: (order.index(phase) if phase in order else len(order), phase),
    )
    hidden = max(len(phases) - MOST_PHASES, 0)
    phases = phases[:MOST_PHASES]
    body = []
    for family in sorted(found, key=_kernel_order):
        cells = [_count(found[family].get(phase, [None, None])) for phase in phases]
        totals = [_added(None, None)] * 2
        for rows in found[family].values():
            totals = [_added(total, row) for total, row in zip(totals, rows, strict=True)]
        body.append((name(family, STRONG), *cells, _count(totals)))
    return Table(
        "How often splash attention and the grouped matmuls run",
        (Column("kernel", numeric=False), *(Column(units.shorten(phase, 40)) for phase in phases), Column("all")),
        tuple(body),
        caption=f"calls per device and {diff.baseline.steps.unit}, below them calls per layer; counts are exact",
        more=f"{hidden} more phases, in the sums" if hidden else None,
    )


def _kernel_order(family: str) -> tuple[int, str]:
    """Splash before the grouped matmuls, forward before backward."""
    starts = ("splash forward", "splash", "gmm forward", "gmm", "tgmm")
    return next((index for index, start in enumerate(starts) if family.startswith(start)), len(starts)), family


def _added(total: KernelRow | None, row: KernelRow | None) -> KernelRow | None:
    """Counts of two kernels of one family together; the other figures are of no use here."""
    if total is None or row is None:
        return total or row
    known = total.calls_per_layer is not None and row.calls_per_layer is not None
    layers = (total.calls_per_layer or 0) + (row.calls_per_layer or 0) if known else None
    return replace(total, calls_per_step=total.calls_per_step + row.calls_per_step, calls_per_layer=layers)


def _count(rows: Sequence[KernelRow | None]) -> Cell:
    if not any(rows):
        return label("–", DIM)
    base, opt = (row.calls_per_step if row else 0 for row in rows)
    known = [row.calls_per_layer for row in rows if row]
    layers = None if None in known else pair(*(row.calls_per_layer if row else 0 for row in rows))
    return Cell(pair(base, opt), STRONG if base != opt else "", under=f"{layers} per layer" if layers else None)


def tiles_table(diff: Diff) -> Table:
    """All tile sizes and layouts that are known, kernel by kernel; phases with equal tiles share a row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for base, opt in kernel_pairs(diff):
        first = base or opt
        if first is None or not any(row.tiles for row in (base, opt) if row):
            continue
        texts = (_tiles(base, opt), _tiles(opt, base))
        found.setdefault((kernel_title(first.kernel, first.family), *texts), []).append(first.phase or "–")
    return Table(
        "Tiles and layouts of all kernels",
        tuple(Column(title, numeric=False) for title in ("kernel", "phases", "baseline", "optimized")),
        tuple(
            (name(title), label(", ".join(phases), DIM), name(before), name(after))
            for (title, before, after), phases in found.items()
        ),
    )


def _tiles(row: KernelRow | None, other: KernelRow | None) -> str:
    if row is None:
        return "does not run"
    if not row.tiles:
        return "not known"
    keys = dict.fromkeys(key for each in (row, other) if each for tiles in each.tiles for key in tiles)
    return ", ".join(f"{key} {tile_text(row, key)}" for key in keys)


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
