"""Configurations in words: what differs, what each knob can move, and what was seen of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    DIM,
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
    limit,
    name,
)
from profiler.results import ConfigDelta, Diff, Knob

DEFAULT_KNOBS = 30
MOST_KEYS = 3  # keys of a group with equal values that get a row each
_NO_TEXT = ("", "null", "~", "true", "false", "not set")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")


def config_document(delta: ConfigDelta, top: int | None = None) -> Document:
    """``profiler config``: the knobs that differ, and what each can move."""
    most = limit(top, DEFAULT_KNOBS)
    count = len(delta.knobs)
    keys = f"{count or 'No'} {'key differs' if count == 1 else 'keys differ'}, {delta.same} the same"
    blocks: list[Block] = [
        Line(f"{keys}.", headline=True),
        Notes("Mind", delta.warnings),
        Facts((("baseline", name(delta.baseline)), ("optimized", name(delta.optimized)))),
    ]
    if delta.knobs:
        table = knobs_table(delta.knobs, all_keys=top == 0)
        blocks.append(table if most is None else capped(table, most, ALL_ROWS))
        blocks.append(moves_items(delta.knobs))
    if delta.written_defaults:
        text = f"Spelled out on one side, and the default on the other: {', '.join(delta.written_defaults)}."
        blocks.append(Line(text, DIM))
    return Document("profiler config", tuple(blocks))


def knobs_table(knobs: Sequence[Knob] | Diff, all_keys: bool = False) -> Table:
    """What differs; many keys of one group with the same values share a row unless ``all_keys``."""
    knobs = knobs.knobs if isinstance(knobs, Diff) else knobs
    rows = [(knob.key, knob) for knob in knobs] if all_keys else _merged(knobs)
    return Table(
        "Configuration that differs",
        (Column("knob", numeric=False), Column("baseline", numeric=False), Column("optimized", numeric=False)),
        tuple((name(text), _value(knob, "baseline"), _value(knob, "optimized")) for text, knob in rows),
    )


def effects_items(diff: Diff) -> Items:
    """What was seen of every group of knobs, and what no knob explains."""
    by_key = {knob.key: knob for knob in diff.knobs}
    items = []
    for each in diff.effects:
        if each.group == "rest":
            head = "Moved by no knob at first hand"
        else:
            head = "; ".join(change_text([by_key[key] for key in each.knobs if key in by_key]))
        if each.mfu_points is not None and each.status != "seen":  # whose text has them
            head += f" ({units.points(each.mfu_points)} points)"
        items.append((Cell(head, STRONG, name=True), (each.text,)))
    return Items("What the knobs did", tuple(items))


def moves_items(knobs: Sequence[Knob]) -> Items:
    """What each knob is and what it can move, group by group."""
    groups: dict[str, list[Knob]] = {}
    for knob in knobs:
        groups.setdefault(knob.group or knob.key, []).append(knob)
    items = []
    for title, members in groups.items():
        moves = _joined(text for knob in members for text in knob.moves or ())
        unknown = [knob.key for knob in members if knob.moves is None]
        text = "; ".join(moves) or ("n/a: the key is not known here" if unknown else "no part of the step")
        kinds = dict.fromkeys(knob.what for knob in members if knob.what)
        what = "; ".join(kinds) if len(kinds) <= MOST_KEYS else f"{len(members)} keys"
        items.append((Cell(title, STRONG, name=True), tuple(t for t in (what, f"can move: {text}") if t)))
    return Items("What they can move", tuple(items))


def _joined(moves: Iterable[str]) -> list[str]:
    """Texts that start alike as one: "time per call of gmm dlhs, tgmm"."""
    found: dict[str, dict[str, None]] = {}
    for text in moves:
        part, of, what = text.partition(" of ")
        found.setdefault(part + of, {})[what] = None
    return [part + ", ".join(what for what in things) for part, things in found.items()]


def value_text(value: Any) -> str:
    """A configuration value as YAML writes it: text that would read as something else is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (value.lower() in _NO_TEXT or _NUMBER.fullmatch(value)):
        return f'"{value}"'
    return str(value)


def _value(knob: Knob, side: str) -> Cell:
    given = getattr(knob, side)
    value = str(given) if knob.source == "xla_flags" and isinstance(given, str) else value_text(given)
    if getattr(knob, f"{side}_set"):
        return name(value)
    if getattr(knob, f"{side}_default"):
        return name(f"default {value}", DIM)
    return label("default (unknown)" if knob.source == "config" else "not set", DIM)


def change_text(knobs: Sequence[Knob]) -> list[str]:
    """ "context remat → device" for every knob; keys that change alike together."""
    return [_change(text, knob) for text, knob in _merged(knobs)]


def _change(text: str, knob: Knob) -> str:
    before, after = (_value(knob, side).text for side in ("baseline", "optimized"))
    return f"{text} {before} → {after}"


def _merged(knobs: Sequence[Knob]) -> list[tuple[str, Knob]]:
    """(name, one of its knobs): keys of a group that change alike share a row, ``wi_tile_fwd_{embed,mlp}_dim``."""
    alike: dict[tuple[str, ...], list[Knob]] = {}
    for knob in knobs:
        values = [_value(knob, side).text for side in ("baseline", "optimized")]
        alike.setdefault((knob.group or knob.key, *values), []).append(knob)
    rows: list[tuple[str, Knob]] = []
    for members in alike.values():
        text = brace([knob.key for knob in members]) if len(members) > MOST_KEYS else None
        rows += [(text, members[0])] if text else [(knob.key, knob) for knob in members]
    return rows


def brace(keys: Sequence[str]) -> str | None:
    """Keys as one pattern, where they are all combinations of words: ``{wi,wo}_tile_{fwd,dlhs}_embed_dim``."""
    words = [key.split("_") for key in keys]
    if len({len(each) for each in words}) != 1:
        return None
    places = [list(dict.fromkeys(column)) for column in zip(*words, strict=True)]
    total = 1
    for place in places:
        total *= len(place)
    if total != len(set(keys)):
        return None
    return "_".join(place[0] if len(place) == 1 else f"{{{','.join(place)}}}" for place in places)
