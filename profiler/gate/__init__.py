"""A diff as a gate: thresholds in a small grammar, and whether a pair keeps them."""

from __future__ import annotations

from profiler.gate.evaluate import check as check
from profiler.gate.evaluate import failure as failure
from profiler.gate.grammar import Rule as Rule
from profiler.gate.grammar import parse as parse
from profiler.gate.rules import collect as collect
