"""Pieces that every drawing shares: well-formed SVG from numbers and escaped text, ticks at round numbers.

Colours are CSS variables with defaults of their own, so that a figure follows the page's theme and stands alone too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

INK, DIM, RULE = "var(--ink, #1f2328)", "var(--dim, #57606a)", "var(--rule, #d0d7de)"
PAPER, MUTED, TOTAL = "var(--paper, #fff)", "var(--muted, #8b949e)", "var(--total, #57606a)"
BASE, OPT = "var(--base, #6b7178)", "var(--opt, #0b5cad)"
CAUTION = "var(--limit, #b14a06)"


def opening(width: float, height: float, kind: str, identity: str, title: str, description: str = "") -> str:
    """The start of a drawing that a screen reader announces by its title and description."""
    named = f"{identity}-title" + (f" {identity}-desc" if description else "")
    text = (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{named}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="inherit" font-size="13">'
        f'<title id="{identity}-title">{escape(title)}</title>'
    )
    return text + (f'<desc id="{identity}-desc">{escape(description)}</desc>' if description else "")


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, more: str = "") -> str:
    """A line of text; digits are of equal width."""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{place} fill="{fill}"{" " + more if more else ""}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = RULE, more: str = "") -> str:
    """A straight line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{stroke}"{" " + more if more else ""}/>'


def path(points: Iterable[tuple[float, float]]) -> str:
    """Straight lines through points, as path data."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most ``most`` + 1 round numbers from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return []
    rough = span / most
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= rough * 0.999), power * 10)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float, step: float) -> str:
    """A tick with as many decimals as its distance to the next needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:,.{min(decimals, 9)}f}"
