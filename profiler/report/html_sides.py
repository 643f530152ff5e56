"""Where the figures of the HTML report come from: files, devices, steps, versions, and the command that makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.report import units
from profiler.report.json_ import plain
from profiler.report.summary_view import devices_text, mfu_text, run_facts, spread_text, steps_text
from profiler.report.wording import sides
from profiler.results import Diff, Summary

MOST_FACTS = 60
MOST_KEYS = 200
FACT_WIDTH = 600
NOT_SHOWN = ("config", "estimates")  # has a list of its own; long, and in the JSON output
COMMAND_WIDTH = 4000
MOST_LABEL = 80
OUTPUT = ("-o", "--output", "--html", "--format", "--top")  # options with a value that leave the page as it is
GIVEN = "given on the command line"  # MfuInputs.convention


Pair = tuple[str, str, str]  # what it is, the baseline's, the optimized side's


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts and configuration of both sides; ``hidden`` keys are left out."""

    facts: tuple[Pair, ...]
    config: tuple[Pair, ...]
    hidden: int


def provenance(diff: Diff) -> Provenance:
    """Everything that tells where the figures come from."""
    facts = [_facts(side) for _, side in sides(diff)]
    configs = [_config(side) for _, side in sides(diff)]
    keys = list(dict.fromkeys(key for each in configs for key in each))
    return Provenance(
        _pairs(list(dict.fromkeys(key for each in facts for key in each)), facts, "–"),
        _pairs(keys[:MOST_KEYS], configs, "not set"),
        max(len(keys) - MOST_KEYS, 0),
    )


def _pairs(keys: Sequence[str], both: Sequence[Mapping[str, str]], lacking: str) -> tuple[Pair, ...]:
    base, opt = both
    return tuple((units.shorten(key, 80), base.get(key, lacking), opt.get(key, lacking)) for key in keys)


def _facts(summary: Summary) -> dict[str, str]:
    kind = "compiled: every time is an estimate" if summary.kind == "compiled" else summary.kind
    facts = {
        "file": summary.file,
        "label": summary.label,
        "kind": kind,
        "devices": devices_text(summary),
        f"{summary.steps.unit}s": steps_text(summary),
        **({f"{summary.fleet.unit} by device": spread_text(summary.fleet)} if summary.fleet else {}),
        "MFU": mfu_text(summary),
    }
    for key, cell in run_facts(summary.run_info)[:MOST_FACTS]:
        if key not in (*facts, *NOT_SHOWN):
            facts[key] = cell.text
    return {key: units.shorten(text, FACT_WIDTH) for key, text in facts.items() if text}


def _config(summary: Summary) -> dict[str, str]:
    found = (summary.run_info or {}).get("config")
    items = found.items() if isinstance(found, Mapping) else ()
    return {str(key): _text(value) for key, value in items}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return units.shorten(text, 200)


def command_of(diff: Diff, typed: Sequence[str] | None = None) -> str:
    """The command that makes this report again, wherever the page is written to.

    Args:
        diff: the comparison.
        typed: the arguments that were given; None for what the result tells of them.
    """
    words = _implied(diff) if typed is None else _without_output(typed)
    return units.shorten(shlex.join(["profiler", "report", *words, "-o", "report.html"]), COMMAND_WIDTH)


def _without_output(typed: Sequence[str]) -> list[str]:
    """What decides the content: neither formats nor files that are written."""
    words = []
    left = iter(typed)
    for word in left:
        if word in OUTPUT:
            next(left, None)
        elif word != "--debug" and not word.startswith(tuple(f"{option}=" for option in OUTPUT)):
            words.append(word)
    return words


def _implied(diff: Diff) -> list[str]:
    """Files, labels, the unit of work, and figures that were given."""
    words = []
    for title, side in sides(diff):
        # Several recordings of a side are listed "a, b" and given "a,b".
        path = side.file.replace(", ", ",")
        named = side.label not in ("", title) and side.label not in path and not set(side.label) & set("=/\n")
        words.append(f"{side.label}={path}" if named and len(side.label) <= MOST_LABEL else path)
    given = [side.mfu_inputs for _, side in sides(diff)]
    if all(each.convention == GIVEN and each.model_tflops_per_device_per_step for each in given):
        values = (f"{each.model_tflops_per_device_per_step:g}" for each in given)
        words += ["--model-tflops", ",".join(values)]
    words += ["--normalize", diff.normalization]
    return words if diff.comparable else [*words, "--force"]
