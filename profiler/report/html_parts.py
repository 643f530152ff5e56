"""Parts of a page as HTML: tables, cards, lists. The report is made of them, and so are the dashboard's pages.

Text of a trace passes jinja2's autoescaping. The parts are styled by ``components.css`` and its CSS variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from profiler.report import units

if TYPE_CHECKING:
    from jinja2 import Environment

    from profiler.report.html_kpis import Card
    from profiler.report.html_tables import KnobGroup, Sections
    from profiler.report.model import Block, Items, Table
    from profiler.results import Note

TEMPLATES = Path(__file__).parent / "templates"

NAME_WIDTH = 120
SENTENCE_WIDTH = 600
MOST_DETAILS = 8
ESTIMATE = Markup(' <small class="est">(est.)</small>')


def template(name: str) -> str:
    """The text of one of our templates, style sheets or scripts."""
    return (TEMPLATES / name).read_text("utf-8")


@cache
def environment() -> Environment:
    """Templates that escape everything, with filters that bound the length of names and sentences."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["name"] = lambda text: units.shorten(str(text), NAME_WIDTH)
    made.filters["sentence"] = lambda text: units.shorten(str(text), SENTENCE_WIDTH)
    made.filters["bars"] = lambda text: [f"{min(float(each), 1.0) * 100:.1f}" for each in text.split()]
    made.globals["named"] = _named
    return made


def blocks(found: Iterable[Block]) -> str:
    """Blocks of a view, one below the other: what ``profiler`` prints as text, as HTML."""
    return _draw("blocks", _named(found))


def table(found: Table, *, title: bool = True) -> str:
    """One table, with its caption."""
    return _draw("table", found, title)


def sections(found: Sections) -> str:
    """A table in parts."""
    return _draw("sections", found)


def cards(found: Sequence[Card]) -> str:
    """Headline figures."""
    return _draw("cards", found)


def knobs(groups: Sequence[KnobGroup], *, estimated: bool) -> str:
    """Knobs that differ, and what was seen of them."""
    return _draw("knobs", groups, ESTIMATE if estimated else "")


def items(found: Items, start: int = 1) -> str:
    """A numbered list with details; ``start`` is the number of its first item."""
    return _draw("items", found.items, MOST_DETAILS, start)


def notes(found: Sequence[Note]) -> str:
    """Warnings."""
    return _draw("warnings", found)


def facts(rows: Sequence[tuple[str, str, str]], caption: str) -> str:
    """What it is, the baseline's, the optimized side's."""
    return _draw("facts", rows, caption)


def _named(found: Iterable[Block]) -> list[tuple[str, Block]]:
    return [(type(block).__name__, block) for block in found]


def _draw(macro: str, *arguments: object) -> str:
    return str(getattr(environment().get_template("macros.html").module, macro)(*arguments))
