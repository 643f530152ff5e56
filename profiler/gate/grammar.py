"""Threshold expressions: a metric, ``<`` or ``>``, a signed number and a unit, as in ``mfu<-1%``.

A threshold is a change from the baseline to the optimized side, so every number but 0 has its sign: ``mfu<40%`` would
read as a limit of the figure itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiler.errors import UsageError
from profiler.gate.metrics import METRICS, UNITS

MOST = 1e18  # of any unit; beyond it lies a mistake
LONGEST = 200

_EXPRESSION = re.compile(
    r"\s*(?P<metric>[A-Za-z][A-Za-z0-9_-]*)\s*(?P<operator>[<>])\s*"
    r"(?P<sign>[-+\u2212]?)(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>%|[A-Za-z\u00b5\u03bc]+)?\s*",
    re.ASCII,
)
_SPELLINGS = {unit.lower(): unit for unit in UNITS} | {"\u00b5s": "us", "\u03bcs": "us", "calls": ""}


@dataclass(frozen=True, slots=True)
class Rule:
    """One parsed expression: hit where the change, in ``unit``, is beyond ``threshold``."""

    metric: str
    operator: str
    threshold: float
    unit: str

    def __str__(self) -> str:
        number = repr(self.threshold).removesuffix(".0")
        sign = "+" if self.threshold > 0 else ""
        return f"{self.metric}{self.operator}{sign}{number}{self.unit}"

    def holds(self, value: float) -> bool:
        """Whether ``value`` is beyond the threshold."""
        return value < self.threshold if self.operator == "<" else value > self.threshold


def parse(text: str) -> Rule:
    """Reads one expression.

    Raises:
        UsageError: it is none; the message says what would be.
    """
    found = _EXPRESSION.fullmatch(text) if len(text) <= LONGEST else None
    shown = repr(text if len(text) <= 60 else f"{text[:59]}…")
    if found is None:
        raise UsageError(
            f"{shown} is no threshold: METRIC, < or >, a signed number and a unit, such as mfu<-1% or step_time>+2%"
        )
    name = found["metric"].lower().replace("-", "_")
    metric = METRICS.get(name)
    if metric is None:
        raise UsageError(f"{shown}: no metric {found['metric']!r}", remedy=f"there are {', '.join(METRICS)}")
    size = float(found["number"])
    if size > MOST:
        raise UsageError(f"{shown}: the number is more than {MOST:g}")
    if size and not found["sign"]:
        raise UsageError(
            f"{shown}: a threshold is a change and needs a sign",
            remedy=f"+{found['number']} or -{found['number']}",
        )
    return Rule(
        name, found["operator"], -size if found["sign"] in ("-", "\u2212") and size else size, _unit(found, shown)
    )


def _unit(found: re.Match[str], shown: str) -> str:
    metric = METRICS[found["metric"].lower().replace("-", "_")]
    listed = ", ".join(unit or "no unit" for unit in metric.units)
    written = found["unit"] or ""
    if not written and not float(found["number"]):
        return metric.units[0]
    unit = _SPELLINGS.get(written.lower())
    if unit is None or unit not in metric.units:
        what = f"no unit {written!r}" if written else "the number needs a unit"
        raise UsageError(f"{shown}: {what}", remedy=f"{found['metric']} has {listed}")
    return unit
