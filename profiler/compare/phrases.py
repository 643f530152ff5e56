"""Figures within sentences."""

from __future__ import annotations

_UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns"), (1.0, "ps"))
GIB = 1 << 30
MANY_TIMES = 10


def duration(*values: float) -> tuple[str, ...]:
    """Times in one common unit, "67.21 ms"; one that would read as nothing there has its own."""
    largest = max((abs(value) for value in values), default=0.0)
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if largest >= scale), _UNITS[-1])
    small = [0 < abs(value) < 0.005 * scale and scale > 1.0 for value in values]
    return tuple(
        duration(value)[0] if own else f"{value / scale:.2f} {unit}" for value, own in zip(values, small, strict=True)
    )


def signed(*values: float) -> tuple[str, ...]:
    """Times with their sign in one common unit, "−25.11 ms"."""
    texts = duration(*(abs(value) for value in values))
    return tuple(
        ("+" if value > 0 else "−" if value < 0 else "") + text for value, text in zip(values, texts, strict=True)
    )


def percent(ratio: float) -> str:
    """A ratio as a change, "−5.1 %"; what rounds to nothing has no sign. From ten times on, how many times."""
    if ratio >= MANY_TIMES:
        return f"{ratio:,.0f}×"
    change = round(100 * (ratio - 1), 1)
    return f"{'+' if change > 0 else '−' if change < 0 else ''}{abs(change):.1f} %"


def points(value: float) -> str:
    """ "+1.33 points"; what rounds to nothing has no sign."""
    change = round(value, 2)
    return f"{'+' if change > 0 else '−' if change < 0 else ''}{abs(change):.2f} points"


def amount(mfu_points: float | None, time_ps: float) -> str:
    """MFU points where they are known, else the time."""
    return points(mfu_points) if mfu_points is not None else signed(time_ps)[0]


def calls(value: float) -> str:
    """A number of calls: whole numbers whole."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.005 else f"{value:,.2f}"


def arrow(before: str, after: str) -> str:
    """ "48 → 0"; one of them where they are the same."""
    return before if before == after else f"{before} → {after}"


def gib(value: float, sign: bool = False) -> str:
    """ "+18.00 GiB"; MiB where that says more."""
    scale, unit = (GIB, "GiB") if abs(value) >= 0.1 * GIB else (1 << 20, "MiB")
    mark = "−" if value < 0 else "+" if sign else ""
    return f"{mark}{abs(value) / scale:,.2f} {unit}"
