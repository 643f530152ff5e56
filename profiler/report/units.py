"""Numbers and names as people read them: one place, so that every renderer prints the same figure.

Units: picoseconds, bytes and FLOPs come in; "n/a" stands for None everywhere. A column of times shares one unit,
chosen by its largest value, so that rows compare at a glance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

UNKNOWN = "n/a"
MINUS = "−"
GIB = 1 << 30
_MOST = 1e15

_TIME_UNITS = ((1.0, "ps"), (1e3, "ns"), (1e6, "µs"), (1e9, "ms"), (1e12, "s"))
_FLOP_UNITS = ((1.0, "FLOP"), (1e3, "kFLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"), (1e15, "PFLOP"))
_BYTE_UNITS = ((1.0, "B"), (1024.0, "KiB"), (1024.0**2, "MiB"), (1024.0**3, "GiB"), (1024.0**4, "TiB"))


def known(value: float | None) -> bool:
    """Whether there is a number to show: None, NaN and infinities are unknown."""
    try:
        return value is not None and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def fixed(value: float, decimals: int, sign: bool = False) -> str:
    """A number with a true minus and never "−0.00"; ``sign`` adds the plus of a delta."""
    if not known(value):
        return UNKNOWN
    # Nobody counts the digits of what is a mistake somewhere else.
    text = f"{abs(value):.{decimals}f}" if abs(value) < _MOST else f"{abs(value):.3e}"
    if not text.strip("0."):
        return text
    return (MINUS if value < 0 else "+" if sign else "") + text


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit for a column: ``unit`` goes into the header, ``show`` makes the cells."""

    unit: str
    divisor: float
    decimals: int

    def show(self, value: float | None) -> str:
        """A cell without its unit."""
        return fixed(value / self.divisor, self.decimals) if value is not None and known(value) else UNKNOWN

    def delta(self, value: float | None) -> str:
        """A cell with its sign."""
        return fixed(value / self.divisor, self.decimals, sign=True) if value is not None and known(value) else UNKNOWN


def _scale(values: Iterable[float | None], units: tuple[tuple[float, str], ...]) -> Scale:
    largest = max((abs(value) for value in values if value is not None and known(value)), default=0.0)
    divisor, unit = units[0]
    for size, name in units:
        # 999.95 in the smaller unit would print as 1000.0
        if largest >= size * 0.9995:
            divisor, unit = size, name
    shown = largest / divisor
    return Scale(unit, divisor, 3 if shown < 9.9995 else 2 if shown < 99.995 else 1)


def time_scale(values_ps: Iterable[float | None]) -> Scale:
    """The unit for a column of picoseconds."""
    return _scale(values_ps, _TIME_UNITS)


def flop_scale(values: Iterable[float | None]) -> Scale:
    """The unit for a column of FLOPs."""
    return _scale(values, _FLOP_UNITS)


def byte_scale(values: Iterable[float | None]) -> Scale:
    """The unit for a column of bytes."""
    return _scale(values, _BYTE_UNITS)


def duration(value_ps: float | None) -> str:
    """One time with its unit: "5.291 s", "67.21 ms"; no time is "0" of any unit."""
    return "0" if value_ps == 0 else _alone(value_ps, time_scale((value_ps,)))


def flops(value: float | None) -> str:
    """One FLOP count with its unit."""
    return _alone(value, flop_scale((value,)))


def size(value_bytes: float | None) -> str:
    """One memory size with its unit."""
    return _alone(value_bytes, byte_scale((value_bytes,)))


def _alone(value: float | None, scale: Scale) -> str:
    return f"{scale.show(value)} {scale.unit}" if known(value) else UNKNOWN


def percent(fraction: float | None, decimals: int = 1) -> str:
    """A fraction as a percentage: 0.201 is "20.1 %"."""
    return f"{fixed(fraction * 100, decimals)} %" if fraction is not None and known(fraction * 100) else UNKNOWN


def grouped(value: float | None) -> str:
    """A large rate or count, whole, with thousands apart: "24,778"."""
    return f"{value:,.0f}" if value is not None and known(value) and abs(value) < _MOST else number(value)


def change(ratio: float | None, decimals: int = 1) -> str:
    """A ratio as a signed change: 0.949 is "−5.1 %"."""
    return f"{fixed((ratio - 1) * 100, decimals, sign=True)} %" if ratio is not None and known(ratio * 100) else UNKNOWN


def points(value: float | None, decimals: int = 2) -> str:
    """Percentage points with their sign."""
    return fixed(value, decimals, sign=True) if value is not None and known(value) else UNKNOWN


def number(value: float | None, digits: int = 4) -> str:
    """A count or a plain figure: whole numbers whole, others to ``digits`` digits."""
    if value is None or not known(value):
        return UNKNOWN
    if abs(value) >= _MOST or abs(value - round(value)) <= 1e-6 * max(1.0, abs(value)):
        return fixed(round(value), 0)
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = fixed(value, min(max(decimals, 0), 6))
    return text.rstrip("0").rstrip(".") if "." in text else text


def clean(text: str) -> str:
    """Text of a trace made harmless to look at: controls, line breaks and invisible or direction-changing characters
    appear as escapes (``\\u202e``), so a name cannot move the cursor, break a row or reorder what stands beside it.
    """
    if text.isprintable():  # false for controls, formats (bidi marks, zero width), separators and surrogates
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters: the middle goes, since names differ at their ends; the result is clean."""
    if len(text) > width:
        # Never clean a whole megabyte to show a few characters; the ends outlive the second cut.
        text = text[:width] + text[-width:] if len(text) > 2 * width else text
        text = clean(text)
        head = width // 2
        tail = max(width - 1 - head, 0)
        return text[:head] + "…" + (text[-tail:] if tail else "")
    text = clean(text)
    return text if len(text) <= width else shorten(text, width)
