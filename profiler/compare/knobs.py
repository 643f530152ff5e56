"""What differs between two configurations: keys, XLA flags, versions and mesh, absent keys at their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from profiler.compare.knob_table import UNKNOWN, entry
from profiler.results import ConfigDelta, Knob, Note
from profiler.runinfo import flat

MAXTEXT_DEFAULTS = "base.yml"  # the include that holds the defaults known here
_FLAGS = "xla_flags"
_FOREIGN = ("config", "xla_flags", "versions", "mesh")  # the order in which knobs are listed

Values = dict[tuple[str, str], Any]  # (source, key) → value


def config_delta(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str] = ("", "")) -> ConfigDelta:
    """The differences between two run infos (docs/run-info.md), grouped by what means something together.

    A side that says nothing of a source (no configuration, no versions) is not held against the other.

    Args:
        before, after: run info of the baseline and of the optimized run.
        names: what the sides are called.
    """
    values = _values(before), _values(after)
    shared = {source for source, _ in values[0]} & {source for source, _ in values[1]}
    readable = [_defaults_hold(info) for info in (before, after)]
    knobs, same, written = [], 0, []
    for source, key in sorted(set(values[0]) | set(values[1]), key=lambda each: (_FOREIGN.index(each[0]), each[1])):
        if source not in shared or not key:
            continue
        knob = _knob(source, key, [side.get((source, key), UNKNOWN) for side in values], readable)
        if equal(knob.baseline, knob.optimized) and _known(knob):
            same += 1
            if not (knob.baseline_set and knob.optimized_set):
                written.append(key)
        else:
            knobs.append(knob)
    return ConfigDelta(*names, tuple(_by_group(knobs)), same, tuple(written), (*_notes(before, after),))


def equal(before: Any, after: Any) -> bool:
    """Whether two configuration values are the same; 1 is not true, but 1 and 1.0 are one number."""
    if isinstance(before, bool) is not isinstance(after, bool):
        return False
    return bool(before == after) or (before != before and after != after)  # NaN is itself here


def xla_flags(value: Any) -> dict[str, Any]:
    """Flags by name, from a list or a line of text: ``--xla_a=1 --xla_b``; later ones win, as in XLA."""
    texts = value.split() if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    pairs = (str(text).strip().partition("=") for text in texts)
    return {name: text if equals else True for name, equals, text in pairs if name}


def _values(info: Mapping[str, Any]) -> Values:
    config = dict(flat(info.get("config")))
    flags = config.pop(_FLAGS, None)
    given = info.get(_FLAGS)
    found: dict[str, Mapping[str, Any]] = {
        "config": config,
        _FLAGS: xla_flags(flags if given is None else given),
        "versions": _mapping(info.get("versions")),
        "mesh": _mapping(info.get("mesh")),
    }
    if flags is not None or given is not None:  # no flags is an answer too: the other side's were added
        found[_FLAGS] = {**found[_FLAGS], "": None}
    return {(source, str(key)): value for source, values in found.items() for key, value in values.items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _defaults_hold(info: Mapping[str, Any]) -> bool:
    """Whether an absent key has the trainer's default: not where an include that is not read may set it."""
    included = _mapping(info.get("config")).get("base_config")
    return not included or PurePath(str(included)).name == MAXTEXT_DEFAULTS


def _knob(source: str, key: str, values: list[Any], readable: list[bool]) -> Knob:
    known = entry(key, source)
    default = known.default if known is not None else UNKNOWN
    there = [value is not UNKNOWN for value in values]
    filled = [not has and holds and default is not UNKNOWN for has, holds in zip(there, readable, strict=True)]
    before, after = (
        value if has else default if use else None for value, has, use in zip(values, there, filled, strict=True)
    )
    return Knob(
        key if source in ("config", _FLAGS) else f"{source}.{key}",
        before,
        after,
        baseline_set=there[0],
        optimized_set=there[1],
        group=known.group if known is not None else None,
        what=known.what if known is not None else None,
        source=source,
        moves=known.targets if known is not None else None,
        baseline_default=filled[0],
        optimized_default=filled[1],
    )


def _known(knob: Knob) -> bool:
    return (knob.baseline_set or knob.baseline_default) and (knob.optimized_set or knob.optimized_default)


def _by_group(knobs: Iterable[Knob]) -> list[Knob]:
    """Knobs that belong together side by side, in the order in which each group is first met."""
    groups: dict[str, list[Knob]] = {}
    for knob in knobs:
        groups.setdefault(knob.group or f"\0{knob.key}", []).append(knob)
    return [knob for members in groups.values() for knob in members]


def _notes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Note]:
    notes = []
    for side, info in (("baseline", before), ("optimized", after)):
        included = _mapping(info.get("config")).get("base_config")
        if included and _defaults_hold(info):
            notes.append(
                Note(
                    "include_not_read",
                    f"the {side} includes {included}, taken to be MaxText's defaults; it is not read",
                )
            )
        elif included:
            text = f"the {side} includes {included}, which is not read: a key that only it sets counts as absent"
            notes.append(Note("include_not_read", text))
    return notes
