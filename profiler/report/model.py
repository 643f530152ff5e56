"""A report before it has a format: blocks of formatted cells that text and Markdown both draw.

The views (``summary_view``, ``diff_view``, ``ops_view``) decide what is said and in which order; the renderers decide
how it looks and escape it. Cells hold raw text of the trace: escaping is the renderer's duty.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from profiler.results import Note

# What a cell means to the reader; never shown by colour alone, since every delta has its sign.
GOOD, BAD, DIM, STRONG, PLAIN = "good", "bad", "dim", "strong", ""

MOST_NOTES = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """A formatted cell. ``name`` marks text of the trace, which a renderer may shorten.

    ``to`` is what ``text`` became ("text → to"); ``under`` is a second line.
    """

    text: str
    tone: str = PLAIN
    name: bool = False
    to: str | None = None
    under: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column's header; numbers align right. ``bar`` cells are drawn as bars of their 0-to-1 value.

    ``minor`` columns are the first to go on a narrow page; names ``kept`` are the last to be shortened.
    """

    title: str
    numeric: bool = True
    bar: bool = False
    minor: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title. ``total`` closes the table; ``caption`` says the basis; ``more`` what was left out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] | None = None
    caption: str | None = None
    more: str | None = None
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence. ``headline`` is the verdict."""

    text: str
    tone: str = PLAIN
    headline: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled values, one a line."""

    rows: tuple[tuple[str, Cell], ...]
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """Warnings under a title; nothing is drawn when there are none."""

    title: str
    notes: tuple[Note, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A numbered list; each item is a sentence with lines of detail under it."""

    title: str
    items: tuple[tuple[Cell, tuple[str, ...]], ...]
    more: str | None = None


@dataclass(frozen=True, slots=True)
class Preformatted:
    """Lines whose columns are already aligned. Only Markdown draws it, unless ``in_text`` asks for it in text too."""

    title: str
    lines: tuple[str, ...]
    in_text: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that open together under a title: folded where a format can fold, else one after another."""

    title: str
    blocks: tuple[Line | Facts | Table | Notes | Items | Preformatted, ...]


Block = Line | Facts | Table | Notes | Items | Preformatted | Fold


@dataclass(frozen=True, slots=True)
class Document:
    """Blocks in reading order. ``marker`` is a comment of ours that Markdown starts with."""

    title: str
    blocks: tuple[Block, ...] = field(default=())
    marker: str | None = None


def label(text: str, tone: str = PLAIN) -> Cell:
    """A cell with our own words."""
    return Cell(text, tone)


def name(text: str | None, tone: str = PLAIN) -> Cell:
    """A cell with text of the trace."""
    return Cell(text if text else "–", tone, name=True)


def delta(text: str, value: float | None, lower_is_better: bool = True) -> Cell:
    """A signed cell toned by its direction; a change that rounds to nothing has no tone."""
    if value is None or not text.startswith(("+", "−")):
        return Cell(text)
    return Cell(text, GOOD if (value < 0) == lower_is_better else BAD)


def more_notes(hidden: int) -> str:
    """What stands below a list of warnings that is cut."""
    return f"… {hidden} more; --format json has all"


def capped(table: Table, rows: int, hint: str = "") -> Table:
    """The table with at most ``rows`` rows, saying so; ``hint`` says where the others are."""
    if len(table.rows) <= rows:
        return table
    hidden = len(table.rows) - rows
    more = f"{hidden} more rows" + (f" ({hint})" if hint else "") + (f"; {table.more}" if table.more else "")
    return replace(table, rows=table.rows[:rows], more=more)


def limit(top: int | None, default: int) -> int | None:
    """``--top`` as a slice end: None is the default, 0 is everything."""
    chosen = default if top is None else top
    return chosen or None


ALL_ROWS = "--top 0 shows all"
