"""What ``profiler check`` says: whether the pair passes, then every threshold, those that decide first."""

from __future__ import annotations

from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    GOOD,
    PLAIN,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Items,
    Line,
    Notes,
    Table,
    capped,
    label,
    name,
)
from profiler.results import Check, CheckRow
from profiler.results_check import HIT, PASSED, UNKNOWN, WITHIN_NOISE

ORDER = ("FAIL", "CANNOT BE CHECKED", "WARN", "~ noise", "ok")


def check_document(check: Check, top: int | None = None) -> Document:
    """The check as blocks; ``top`` thresholds in the table, None and 0 for all."""
    blocks: list[Block] = [Line(check.verdict, headline=True)]
    if not check.comparable:
        blocks.append(Line("Not comparable; compared all the same, as --force asks.", BAD))
    blocks.append(Line(check.diff))
    table = _table(check)
    blocks.append(capped(table, top, ALL_ROWS) if top else table)
    remarks = tuple((name(row.expression), (row.remark,)) for row in _ordered(check) if row.remark)
    if remarks:
        blocks.append(Items("Of these", remarks))
    kinds = dict(zip(("baseline", "optimized"), check.kinds, strict=True))
    sides = {"baseline": check.baseline, "optimized": check.optimized}
    blocks.append(
        Facts(tuple((side, label(f"{units.shorten(text, 200)} ({kinds[side]})")) for side, text in sides.items()))
    )
    blocks.append(Notes("Mind", check.warnings))
    return Document("profiler check", tuple(blocks))


def _table(check: Check) -> Table:
    work = {"flop": "model FLOPs", "token": "tokens"}.get(check.normalization)
    basis = f"for the {work} of one baseline step" if work else f"per {check.normalization}"
    return Table(
        "Thresholds",
        (
            Column("", numeric=False),
            Column("threshold", numeric=False),
            Column("baseline"),
            Column("optimized"),
            Column("change"),
            Column("95 % interval"),
        ),
        tuple(_row(row) for row in _ordered(check)),
        caption=f"per device; times of categories {basis}; ~: within the noise, which counts as no change",
    )


def _ordered(check: Check) -> list[CheckRow]:
    return sorted(check.rows, key=lambda row: ORDER.index(word(row)))


def word(row: CheckRow) -> str:
    """The verdict in a word that needs no colour."""
    hit = "FAIL" if row.action == "fail" else "WARN"
    return {HIT: hit, UNKNOWN: "CANNOT BE CHECKED", WITHIN_NOISE: "~ noise", PASSED: "ok"}[row.verdict]


_TONES = {"FAIL": BAD, "CANNOT BE CHECKED": BAD, "WARN": STRONG, "~ noise": DIM, "ok": GOOD}


def _row(row: CheckRow) -> tuple[Cell, ...]:
    said = word(row)
    action = " (warns)" if row.action == "warn" and said != "WARN" else ""
    return (
        label(said, _TONES.get(said, PLAIN)),
        name(row.expression + action),
        label(figure(row.baseline, row.figure_unit)),
        label(figure(row.optimized, row.figure_unit)),
        label(change(row.value, row.unit), STRONG if row.verdict == HIT else PLAIN),
        label(_interval(row), DIM),
    )


def figure(value: float | None, unit: str) -> str:
    """A metric of one side with its unit."""
    if value is None or not units.known(value):
        return units.UNKNOWN
    shown = {
        "fraction": lambda: units.percent(value, 2),
        "ratio": lambda: f"{units.fixed(value, 3)}×",
        "ps": lambda: units.duration(value),
        "bytes": lambda: units.size(value),
        "nats": lambda: units.fixed(value, 4),
        "calls": lambda: units.number(value),
    }
    return shown[unit]()


def change(value: float | None, unit: str) -> str:
    """A change in the threshold's own unit, with its sign."""
    if value is None or not units.known(value):
        return units.UNKNOWN
    size = abs(value)
    decimals = 0 if unit in ("", "B", "ps") and value == round(value) else 2 if size >= 0.095 or not size else 4
    return f"{units.fixed(value, decimals, sign=True)} {unit}".rstrip()


def _interval(row: CheckRow) -> str:
    if row.verdict == UNKNOWN:
        return ""
    if row.interval is None:
        return {"none": "no noise", "estimate": "estimate"}.get(row.noise, "unknown")
    return " to ".join(change(end, row.unit).removesuffix(f" {row.unit}") for end in row.interval)
