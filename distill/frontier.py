"""``distill frontier``: what fits, and which of that is fastest, over all combinations of some knobs' values."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from distill.aot import Cache, find
from distill.aot.cache import key as program_key
from distill.aot.environment import compiler_flags
from distill.config import REMAT_TENSORS, Config, Loaded, load
from distill.points import Lead, Point, Points, Wanted, ahead, measure
from distill.points_table import aligned, figures, reasons, remarks, times
from profiler.errors import UsageError
from profiler.report import units

SCHEMA = "distill.frontier/1"
JSON_FILE, TEXT_FILE, FIGURE_FILE = "frontier.json", "frontier.txt", "frontier.svg"
_LONGEST_NAME = 120  # of a file, its suffix aside

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Frontier:
    """All combinations of the knobs' values, compiled.

    Attributes:
        recipe: what they change.
        knobs: the values of each.
        values: of each point, in the order of ``found.points``.
        found: the points.
        lead: tokens/s of the best point over those of the next; None without two that fit.
        notes: what was done that was not asked for.
    """

    recipe: str
    knobs: Mapping[str, Sequence[Any]]
    values: Sequence[Values]
    found: Points
    lead: Lead | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Point | None:
        """The point that fits and has the shortest estimated time per token."""
        return next(iter(ranked(self.found)), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; docs/schema/frontier.schema.json."""
        slice_, found, best = self.found.topology, self.found, self.best
        return {
            "schema": SCHEMA,
            "recipe": self.recipe,
            "topology": slice_.name,
            "chip": slice_.chip.key,
            "devices": slice_.devices,
            "capacity_bytes": found.capacity_bytes,
            "estimates": "coarse" if found.coarse else "finished",
            "knobs": {key: list(values) for key, values in self.knobs.items()},
            "fitting": len(found.fitting),
            "best": best.label if best else None,
            "best_over_next": self.lead.ratio if self.lead else None,
            "best_over_next_band": self.lead.band if self.lead else None,
            "points": [
                {"values": dict(values), **point.to_dict()}
                for values, point in zip(self.values, found.points, strict=True)
            ],
            "notes": [*self.notes, *found.notes],
        }


def frontier(
    recipe: str,
    knobs: Mapping[str, Sequence[Any]],
    topology: str,
    *,
    overrides: Sequence[str] = (),
    whole: bool = False,
    kernels: bool = True,
    cache: Cache | None = None,
    out: Path | None = None,
) -> Frontier:
    """Compiles every combination.

    Args:
        recipe: a recipe's name or a YAML file.
        knobs: values by key; ``parse_knobs`` reads them from a command line.
        topology: the slice's name.
        overrides: ``key=value`` for all points.
        whole: compile to the end.
        kernels: compile each kernel alone, too, for its time.
        cache: where finished compiles are kept.
        out: folder that gets a profile of every point that fits; None: they are not kept.

    Raises:
        UsageError: before anything is compiled: an unknown key, a value that is never possible, equal points.
    """
    find(topology)
    notes, overrides = _notes(recipe, knobs, overrides)
    values = [dict(zip(knobs, each, strict=True)) for each in itertools.product(*knobs.values())]
    wanted = _wanted(recipe, overrides, values)
    _check(wanted, values, topology)
    with nullcontext(out) if out else TemporaryDirectory(prefix="distill-") as folder:
        found = measure(wanted, topology, Path(folder), whole=whole, kernels=kernels, cache=cache)
        best, following, *_ = [*ranked(found), None, None]
        lead = ahead(best, following, "token") if best and following else None
        return Frontier(recipe, knobs, values, found, lead, notes)


def ranked(found: Points) -> list[Point]:
    """The points that fit, the shortest estimated time per token first."""
    timed = [(each.estimate.token_s, each) for each in found.fitting if each.estimate]
    return [each for _, each in sorted(timed, key=lambda pair: pair[0])]


def parse_knobs(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``key=value,value`` as values by key; every value is YAML.

    Raises:
        UsageError: no key, no value, an empty one, a key twice, or what is not YAML.
    """
    knobs: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, raw = text.partition("=")
        key, raw = key.strip(), raw.strip()
        if not sign or not key:
            raise UsageError(f"{text!r} is not a knob", remedy="write --knob KEY=VALUE,VALUE")
        if key in knobs:
            raise UsageError(f"the knob {key} is given twice", remedy="list all its values in one --knob")
        try:
            values = yaml.safe_load(f"[{raw}]")
        except yaml.YAMLError as error:
            raise UsageError(f"the values in {text!r} are not YAML", remedy="KEY=VALUE,VALUE, none empty") from error
        # YAML forgives a comma at the end.
        if not isinstance(values, list) or not values or None in values or raw.endswith(","):
            raise UsageError(f"{text!r} has an empty value", remedy="write --knob KEY=VALUE,VALUE")
        knobs[key] = values
    return knobs


def _notes(
    recipe: str, knobs: Mapping[str, Sequence[Any]], overrides: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Tensors' knobs count with ``remat_policy=custom`` only: sets it unless the user decides; (notes, overrides)."""
    tensors = [key for key in knobs if key in REMAT_TENSORS]
    if not tensors or "remat_policy" in knobs:
        return (), [*overrides]
    policy = load(recipe, overrides).config.remat_policy
    if policy == "custom":
        return (), [*overrides]
    note = f"remat_policy=custom instead of {policy}: {', '.join(tensors)} would have no effect without"
    return (note,), [*overrides, "remat_policy=custom"]


def _wanted(recipe: str, overrides: Sequence[str], values: Sequence[Values]) -> list[Wanted]:
    wanted: list[Wanted] = []
    for each in values:
        texts = {key: shown(value) for key, value in each.items()}
        file = re.sub(r"[^\w.+-]", "-", "_".join(f"{key}-{text}" for key, text in texts.items()))[:_LONGEST_NAME]
        if any(other.file == file for other in wanted):
            file = f"{file}_{len(wanted) + 1}"
        loaded: Loaded | UsageError
        try:
            loaded = load(
                recipe, [*overrides, *(f"{key}={json.dumps(value, default=str)}" for key, value in each.items())]
            )
        except UsageError as error:
            loaded = error
        wanted.append(Wanted(" ".join(f"{key}={text}" for key, text in texts.items()), file, loaded))
    return wanted


def _check(wanted: Sequence[Wanted], values: Sequence[Values], topology: str) -> None:
    """Mistakes, as opposed to combinations that turn out not to be possible.

    Raises:
        UsageError: a key that does nothing, a value that is not possible with any of the others, or equal programs.
    """
    programs: dict[str, str] = {}
    for number, (each, mine) in enumerate(zip(wanted, values, strict=True)):
        for key, value in mine.items():
            same = [other.loaded for other, theirs in zip(wanted, values, strict=True) if theirs[key] == value]
            if all(isinstance(loaded, UsageError) for loaded in same):
                raise same[0]  # type: ignore[misc]
            if isinstance(each.loaded, Loaded) and key in {**each.loaded.unknown, **each.loaded.no_effect}:
                what = "has no effect here" if key in each.loaded.no_effect else "is no key"
                close = difflib.get_close_matches(key, [item.name for item in fields(Config)], 1)
                raise UsageError(f"the knob {key} {what}", remedy=f"did you mean {close[0]}?" if close else None)
        if isinstance(each.loaded, Loaded):
            config = each.loaded.config
            program = program_key(config, topology, {}, compiler_flags(config, os.environ), quick=False)
            if program in programs:
                raise UsageError(
                    f"{programs[program]} and {wanted[number].label} are the same program",
                    remedy="name each value once, of keys that the step depends on",
                )
            programs[program] = each.label


def shown(value: Any) -> str:
    """A value as it is shown."""
    return units.clean(value if isinstance(value, str) else json.dumps(value, default=str))


# --- as text and JSON ------------------------------------------------------------------------------------------------


def to_json(result: Frontier) -> str:
    """``Frontier.to_dict`` as text."""
    return json.dumps(result.to_dict(), indent=2, default=str) + "\n"


def to_text(result: Frontier) -> str:
    """The verdict, a row for every point, and what there is to know about them."""
    best, found = result.best, result.found
    numbers = [f"{'*' if point is best else ' '}{number:2}" for number, point in enumerate(found.points, 1)]
    knobs = [(key, [shown(values[key]) for values in result.values]) for key in result.knobs]
    table = aligned([("", [("", numbers), *knobs]), *figures(found)])
    parts = [[_verdict(result)], table, _remarks(result), reasons(found)]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def _verdict(result: Frontier) -> str:
    best, found = result.best, result.found
    text = f"{len(found.fitting)} of {len(found.points)} points fit {found.where()}"
    if best is None or best.estimate is None:
        return text
    token = units.duration(best.estimate.token_s * 1e12)
    return f"{text}; best by estimated time per token: {best.label} ({token}, MFU {units.percent(best.estimate.mfu)})"


def _remarks(result: Frontier) -> list[str]:
    lines = [f"Note: {note}" for note in result.notes]
    lines += remarks(result.found)
    if result.found.fitting:
        lines.append("Times are per device, a token's too: the step's over the tokens that the device takes.")
    if result.lead is not None:
        following = ranked(result.found)[1].label
        lines.append(f"Tokens/s of the best over those of the next, {following}: {times(result.lead)}.")
        lines += [f"Not in the estimates: {sentence}" for sentence in result.lead.unseen]
    return lines
