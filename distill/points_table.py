"""Compiled points as a table of text: what `distill frontier` and `distill ladder --compiled` say about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distill.points import Lead, Point, Points
from profiler.report import units

Column = tuple[str, Sequence[str]]  # title, a cell for each point
Group = tuple[str, Sequence[Column]]  # title above those of its columns


def figures(found: Points) -> list[Group]:
    """What there is to say about every point."""
    points = found.points
    estimates = [each.estimate for each in points]
    steps_ps, tokens_ps = (
        [1e12 * getattr(each, key) if each else None for each in estimates] for key in ("step_s", "token_s")
    )
    step, token = units.time_scale(steps_ps), units.time_scale(tokens_ps)
    # A small program leaves nearly everything free: what it takes has a unit of its own.
    taken = units.byte_scale(size for each in points for size in (each.allocated_bytes, each.host_bytes))
    room = units.byte_scale(each.headroom_bytes for each in points)
    return [
        ("", [("fits", [_verdict(each) for each in points])]),
        (
            "HBM of a device",
            [
                (f"peak {taken.unit}", [taken.show(each.peak_bytes) for each in points]),
                (f"allocated {taken.unit}", [taken.show(each.allocated_bytes) for each in points]),
                (f"headroom {room.unit}", [room.show(each.headroom_bytes) for each in points]),
            ],
        ),
        ("host", [(f"memory {taken.unit}", [taken.show(each.host_bytes) for each in points])]),
        (
            "student's splash forwards",
            [
                ("all", [units.number(each.splash_calls[0]) for each in points]),
                ("re-runs", [units.number(each.splash_calls[1]) for each in points]),
            ],
        ),
        (
            f"estimates{', coarse' if found.coarse else ''}",
            [
                (f"step {step.unit}", [step.show(each) for each in steps_ps]),
                (f"{token.unit}/token", [token.show(each) for each in tokens_ps]),
                ("MFU", [units.percent(each.mfu if each else None) for each in estimates]),
                ("band", [band(each.mfu_band if each else None) for each in estimates]),
            ],
        ),
    ]


def band(ends: tuple[float, float] | None) -> str:
    """A range of MFU."""
    return f"{ends[0] * 100:.1f}–{ends[1] * 100:.1f} %" if ends else units.UNKNOWN


def remarks(found: Points) -> list[str]:
    """What there is to know about the estimates."""
    if not found.fitting:
        return []
    kind = "coarse: from quick compiles, or as from one" if found.coarse else "from finished compiles"
    return [
        f"Estimates are {kind}. Hold them against others of that kind only.",
        "band: the MFU with all constants of the estimate at their slow and at their fast end.",
        *(f"Note: {note}" for note in found.notes),
    ]


def times(lead: Lead) -> str:
    """A ratio of two estimates with its band."""
    return f"×{lead.ratio:.3f}" + (f" ({lead.band[0]:.3f}–{lead.band[1]:.3f})" if lead.band else "")


def _verdict(point: Point) -> str:
    return "yes" if point.fits else "no" if point.compiled else "–"


def aligned(groups: Sequence[Group]) -> Iterator[str]:
    """Lines of a table: groups, titles, rows; all to the right but the first column."""
    heads, titles, rows = "", "", [""] * len(groups[0][1][0][1])
    for group, columns in groups:
        heads = heads.ljust(len(titles) + 2) + group
        for title, cells in columns:
            width, pad = max(map(len, (title, *cells))), str.rjust if titles else str.ljust
            gap = "  " * bool(titles)
            titles += gap + pad(title, width)
            rows = [row + gap + pad(cell, width) for row, cell in zip(rows, cells, strict=True)]
        # A group's title that is wider than its columns makes room.
        titles, rows = titles.ljust(len(heads)), [row.ljust(len(heads)) for row in rows]
    yield from (line.rstrip() for line in (heads, titles, *rows))


def reasons(found: Points) -> list[str]:
    """Why those that do not fit do not, one line each."""
    return [f"{each.label}: {each.problem}" for each in found.points if each.problem]
