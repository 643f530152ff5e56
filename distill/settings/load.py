"""From a recipe's name or a YAML file, and `key=value` overrides, to a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from distill.settings.models import OTHER_OVERRIDES, OVERRIDES
from distill.settings.schema import Config
from profiler.errors import UnreadableError, UsageError
from profiler.runinfo import read_config

_FIELDS = frozenset(item.name for item in fields(Config))
_NESTED = ("student_overrides", "teacher_overrides")

# Values of MaxText that mean the same as one of ours.
_SAME: Mapping[tuple[str, str], str] = {
    ("attention", "autoselected"): "flash",
    ("dataset_type", "synthetic"): "bundled",
}
# How MaxText writes "not set"; the default holds then.
_UNSET = (None, "None")


@dataclass(frozen=True)
class Loaded:
    """A configuration, and what was asked for that it does not hold."""

    config: Config
    name: str  # the recipe's name or the file's, without its suffix
    unknown: Mapping[str, Any] = field(default_factory=dict)  # keys that neither this trainer nor MaxText knows
    no_effect: Mapping[str, Any] = field(default_factory=dict)  # MaxText keys that change nothing here
    notes: tuple[str, ...] = ()  # what else the reader should know, one sentence each

    def to_dict(self) -> dict[str, Any]:
        """The configuration's keys and those that it does not hold: nothing that was asked for is lost."""
        return {**self.config.to_dict(), **self.no_effect, **self.unknown}


def recipes() -> tuple[str, ...]:
    """Names of the recipes that come with the package."""
    folder = resources.files("distill") / "recipes"
    return tuple(sorted(Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".yml")))


def load(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """The configuration of a recipe or file, with overrides on top.

    Args:
        path_or_name: a packaged recipe's name, or a YAML file; MaxText's are read as they are.
        overrides: `key=value`, the value as YAML; a dot reaches into a mapping (`student_overrides.head_dim=64`).

    Raises:
        UsageError: no such recipe or file, a malformed override, or a value that is not possible.
        UnreadableError: the file is not a YAML mapping.
    """
    file = _file_of(path_or_name)
    document = read_config(file)
    inherited, notes = _base_of(document, file)
    asked = _merged(document, _parsed(overrides))
    known = _held(_merged(inherited, asked))
    idle = len([key for key in inherited if key not in _FIELDS])
    if idle:
        notes.append(f"{idle} further keys of the base configuration have no effect here")
    unknown, no_effect = _not_held(asked)
    return Loaded(Config(**known), file.stem, unknown, no_effect, tuple(notes))


def _file_of(path_or_name: str | Path) -> Path:
    """The packaged recipe of that name, else the file."""
    if str(path_or_name) in recipes():
        return Path(str(resources.files("distill") / "recipes" / f"{path_or_name}.yml"))
    file = Path(path_or_name)
    if not file.exists():
        raise UsageError("no such recipe or file", file=path_or_name, remedy="recipes: " + ", ".join(recipes()))
    return file


def _base_of(document: dict[str, Any], file: Path, depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """What `base_config` includes, innermost first; the key is taken out of the document.

    MaxText's own base.yml need not be there: this trainer's defaults stand for it.
    """
    name = document.pop("base_config", None)
    if not name:
        return {}, []
    if depth > 8:
        raise UnreadableError("base_config files include each other without end", file=file)
    found = next((at / str(name) for at in (file.parent, *file.parent.parents) if (at / str(name)).is_file()), None)
    if found is None:
        return {}, [f"base_config {name} is not beside {file.name}: the defaults of this trainer stand for it"]
    base = read_config(found)
    inherited, notes = _base_of(base, found, depth + 1)
    return _merged(inherited, base), notes


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """`a.b=c` as {"a": {"b": c}}, later ones winning."""
    parsed: dict[str, Any] = {}
    for text in overrides:
        key, sign, raw = text.partition("=")
        key = key.strip().removeprefix("--")
        if not sign or not key:
            raise UsageError(f"{text!r} is not an override", remedy="write key=value")
        try:
            value = yaml.safe_load(raw) if raw.strip() else ""
        except yaml.YAMLError as error:
            raise UsageError(f"the value of {text!r} is not YAML", remedy="quote it") from error
        for part in reversed(key.split(".")[1:]):
            value = {part: value}
        parsed = _merged(parsed, {key.split(".")[0]: value})
    return parsed


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the second on top; mappings are merged key by key, everything else is replaced."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        both[key] = _merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return both


def _held(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are fields, with values that MaxText spells in another way put into ours."""
    held = {key: value for key, value in asked.items() if key in _FIELDS and value not in _UNSET}
    held |= {key: _SAME[key, value] for key, value in held.items() if isinstance(value, str) and (key, value) in _SAME}
    if held.get("model_name") in (None, "default"):
        # MaxText's distillation files name the model in the overrides only.
        held.pop("model_name", None)
        named = [side["model_name"] for key in _NESTED if "model_name" in (side := held.get(key) or {})]
        held |= {"model_name": named[0]} if named else {}
    return held


def _not_held(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys that no field holds, as (unknown, known to MaxText), nested ones with a dot."""
    outside = {key: value for key, value in asked.items() if key not in _FIELDS}
    for side in _NESTED:
        extra = asked.get(side) or {}
        if isinstance(extra, Mapping):
            known = {*OVERRIDES, *OTHER_OVERRIDES}
            outside |= {f"{side}.{key}": value for key, value in extra.items() if key not in known}
    maxtext = maxtext_keys()
    unknown: dict[str, Any] = {}
    no_effect: dict[str, Any] = {}
    for key, value in outside.items():
        (no_effect if key.rpartition(".")[2] in maxtext else unknown)[key] = value
    return unknown, no_effect


def maxtext_keys() -> frozenset[str]:
    """Names of MaxText's configuration keys (settings/maxtext_keys.txt)."""
    text = (resources.files("distill.settings") / "maxtext_keys.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
