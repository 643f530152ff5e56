"""Thresholds from the command line and from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiler.errors import UsageError
from profiler.gate.grammar import Rule, parse
from profiler.runinfo import read_config
from profiler.xplane.urls import shown

LISTS = ("fail-on", "warn-on")
MOST_RULES = 500


def collect(
    fail_on: Sequence[str], warn_on: Sequence[str], file: Path | str | None = None
) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """(rules that fail, rules that warn), those of the file first, each once.

    Args:
        fail_on, warn_on: expressions.
        file: path or URL of YAML with the lists ``fail-on`` and ``warn-on``.

    Raises:
        UsageError: an expression is none, or there is nothing to check.
        UnreadableError: the file cannot be read.
    """
    listed = _listed(file) if file is not None else {}
    lists = [(*listed.get(key, ()), *given) for key, given in zip(LISTS, (fail_on, warn_on), strict=True)]
    if not any(lists):
        raise UsageError("nothing to check", remedy="give --fail-on, --warn-on or --thresholds")
    if sum(map(len, lists)) > MOST_RULES:
        raise UsageError(f"more than {MOST_RULES} thresholds")
    failing, warning = (tuple(dict.fromkeys(map(parse, texts))) for texts in lists)
    return failing, warning


def _listed(file: Path | str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in read_config(file).items():
        name = key.replace("_", "-")
        if name not in LISTS:
            raise UsageError(f"no key {key[:60]!r}", file=shown(str(file)), remedy=f"there are {' and '.join(LISTS)}")
        texts = [value] if isinstance(value, str) else value or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{name} is no list of thresholds", file=shown(str(file)), remedy='such as ["mfu<-1%"]')
        found[name] = texts
    return found
