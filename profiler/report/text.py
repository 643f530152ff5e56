"""A document as terminal text: aligned tables that fit the width, plain unless the terminal shows colour.

Names are put into rich ``Text`` objects, never into markup strings: "[bold]" in an op name stays what it is.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from profiler.report import units
from profiler.report.model import (
    BAD,
    DIM,
    GOOD,
    MOST_NOTES,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Fold,
    Items,
    Line,
    Notes,
    Preformatted,
    Table,
    more_notes,
)
from profiler.report.output import Style

_STYLES = {GOOD: "green", BAD: "red", DIM: "dim", STRONG: "bold"}
_BAR_WIDTH = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NAME_LIMIT = 300
_LONGEST_LINE = 600
_LEAST_NAME = 14
_LEAST_BESIDE = 16  # beside names that are kept: a phase's length
_ARROW = " → "

# Rules under the header and above the total, nothing else: a table that survives being pasted anywhere.
_RULES = Box("    \n    \n ── \n    \n    \n ── \n    \n    \n")
_ASCII_RULES = Box("    \n    \n -- \n    \n    \n -- \n    \n    \n", ascii=True)
_ASCII = str.maketrans(
    {
        "→": ">",
        "−": "-",
        "–": "-",
        "—": "-",
        "×": "x",
        "µ": "u",
        "Δ": "d",
        "·": "/",
        "…": "~",
        "█": "#",
        **dict.fromkeys("▇▆▅▄", "#"),
        **dict.fromkeys("▃▂▁", "."),
        "│": "|",
        "└": "+",
        "─": "-",
        "▓": "=",
        "░": "-",
    }
)


def render_text(document: Document, style: Style) -> str:
    """The document for a terminal.

    Args:
        document: what to say.
        style: width, whether colour may be used, whether the stream takes Unicode.
    """
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=style.width,
        force_terminal=style.color,
        color_system="standard" if style.color else None,
        no_color=not style.color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    first = True
    for block in document.blocks:
        if (isinstance(block, Preformatted) and not block.in_text) or (isinstance(block, Notes) and not block.notes):
            continue
        if not first:
            console.print()
        first = False
        _Renderer(console, style).draw(block)
    # Rich pads cells to the column's width; nobody wants that in a file or a diff of two outputs.
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    text = "\n".join(lines) + "\n"
    return text if style.unicode else text.translate(_ASCII).encode("ascii", "backslashreplace").decode()


class _Renderer:
    """Draws one block after another on a console."""

    def __init__(self, console: Console, style: Style):
        self.console, self.style = console, style

    def draw(self, block: Block) -> None:
        """Draws a block of any kind."""
        if isinstance(block, Line):
            style = "bold" if block.headline else _STYLES.get(block.tone, "")
            self.console.print(Text(units.shorten(block.text, _LONGEST_LINE), style))
        elif isinstance(block, Facts):
            self._facts(block)
        elif isinstance(block, Table):
            self._table(block)
        elif isinstance(block, Notes):
            self._notes(block)
        elif isinstance(block, Items):
            self._items(block)
        elif isinstance(block, Fold):
            for each in block.blocks:
                self.draw(each)
        elif isinstance(block, Preformatted):
            self.console.print(Text(units.shorten(block.title, _NAME_LIMIT), "bold"))
            for line in block.lines:
                self.console.print(Text(units.shorten(line, self.style.width)))

    def _facts(self, facts: Facts) -> None:
        grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim" if self.style.color else "")
        grid.add_column(overflow="fold")
        for title, cell in facts.rows:
            grid.add_row(Text(units.shorten(title, _NAME_LIMIT)), self._wrapping(cell))
        if facts.title:
            self.console.print(Text(facts.title, "bold"))
        self.console.print(grid)

    def _wrapping(self, cell: Cell) -> Text:
        return Text(units.shorten(cell.text, _NAME_LIMIT if cell.name else _LONGEST_LINE), _STYLES.get(cell.tone, ""))

    def _notes(self, notes: Notes) -> None:
        self.console.print(Text(notes.title, "bold yellow" if self.style.color else "bold"))
        for note in notes.notes[:MOST_NOTES]:
            text = f"{units.shorten(note.message, _LONGEST_LINE)} [{units.shorten(note.code, 60)}]"
            grid = Grid.grid(padding=(0, 1, 0, 0))
            grid.add_row(Text("!", "yellow"), Text(text))
            self.console.print(grid)
        if len(notes.notes) > MOST_NOTES:
            self.console.print(Text(more_notes(len(notes.notes) - MOST_NOTES), "dim"))

    def _items(self, items: Items) -> None:
        self.console.print(Text(units.shorten(items.title, _NAME_LIMIT), "bold"))
        for number, (head, details) in enumerate(items.items, 1):
            grid = Grid.grid(padding=(0, 1, 0, 0))
            grid.add_row(Text(f"{number}."), self._wrapping(head))
            self.console.print(grid)
            for detail in details:
                self.console.print(Padding(Text(units.shorten(detail, _LONGEST_LINE), "dim"), (0, 0, 0, 3)))
        if items.more:
            self.console.print(Text(f"… {items.more}", "dim"))

    def _table(self, table: Table) -> None:
        table = self._fitting(table)
        self.console.print(Text(units.shorten(table.title, _NAME_LIMIT), "bold"))
        bar_columns = [index for index, column in enumerate(table.columns) if column.bar]
        gap = 2 if sum(self._wanted(table)) + 2 * (len(table.columns) - 1) <= self.style.width else 1
        widths = self._widths(table, gap)
        grid = Grid(
            box=_RULES if self.style.unicode else _ASCII_RULES,
            show_edge=False,
            pad_edge=False,
            padding=(0, gap - 1, 0, 0),
            show_footer=table.total is not None,
            header_style="",
            footer_style="",
        )
        for index, column in enumerate(table.columns):
            footer = table.total[index] if table.total is not None else None
            grid.add_column(
                Text(column.title, "dim"),
                footer=self._cell(footer, column, widths[index]) if footer else "",
                justify="right" if column.numeric else "left",
                no_wrap=True,
                width=widths[index],
            )
        for row in table.rows:
            grid.add_row(
                *(
                    self._bar(cell) if index in bar_columns else self._cell(cell, table.columns[index], widths[index])
                    for index, cell in enumerate(row)
                )
            )
        self.console.print(grid)
        for remark in (table.more and f"… {table.more}", table.caption):
            if remark:
                self.console.print(Text(remark, "dim"))

    def _fitting(self, table: Table) -> Table:
        """The table without its minor columns, where names would have to shrink for them."""
        if sum(self._wanted(table)) + len(table.columns) - 1 <= self.style.width:
            return table
        kept = [index for index, column in enumerate(table.columns) if not column.minor]

        def part(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
            return tuple(cells[index] for index in kept)

        return replace(
            table,
            columns=tuple(table.columns[index] for index in kept),
            rows=tuple(part(row) for row in table.rows),
            total=part(table.total) if table.total else None,
        )

    def _wanted(self, table: Table) -> list[int]:
        """The width at which nothing of a column is lost."""
        wanted = []
        for index, column in enumerate(table.columns):
            if column.bar:
                wanted.append(_BAR_WIDTH)
                continue
            cells = [row[index] for row in table.rows] + ([table.total[index]] if table.total is not None else [])
            lines = [line for cell in cells for line in _lines(cell)]
            wanted.append(max([cell_len(column.title), *(cell_len(line) for line in lines)]))
        return wanted

    def _widths(self, table: Table, gap: int) -> list[int]:
        """Column widths: figures keep theirs, text columns share what is left and are shortened in the middle."""
        wanted = self._wanted(table)
        excess = sum(wanted) + gap * (len(wanted) - 1) - self.style.width
        while excess > 0:
            elastic = [
                i for i, c in enumerate(table.columns) if not c.numeric and not c.bar and wanted[i] > _LEAST_NAME
            ]
            if not elastic:
                break
            # Names that tell rows apart outlast what rows share.
            elastic = [i for i in elastic if not table.columns[i].kept and wanted[i] > _LEAST_BESIDE] or elastic
            widest = max(elastic, key=lambda i: wanted[i])
            others = sorted((wanted[i] for i in elastic if i != widest), reverse=True)
            step = min(excess, max(wanted[widest] - max(others[0] if others else 0, _LEAST_NAME), 1))
            wanted[widest] -= step
            excess -= step
        return wanted

    def _cell(self, cell: Cell, column: Column, width: int) -> Text:
        if column.bar:
            return Text("")
        style = _STYLES.get(cell.tone, "")
        lines = [cell.text] if cell.to is None else [cell.text + _ARROW + cell.to]
        if cell.to is not None and len(lines[0]) > width:
            lines = [cell.text, _ARROW.lstrip() + cell.to]  # each name gets the whole width
        text = Text("\n".join(units.shorten(line, width) for line in lines), style, overflow="ellipsis")
        if cell.under is not None:
            text.append("\n" + units.shorten(cell.under, width), "dim")
        return text

    def _bar(self, cell: Cell) -> Text:
        share = float(cell.text)
        share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
        if not self.style.unicode:
            return Text("#" * round(share * _BAR_WIDTH))
        eighths = round(share * _BAR_WIDTH * 8)
        full, part = divmod(eighths, 8)
        return Text("█" * full + (_EIGHTHS[part] if part else ""), "cyan")


def _lines(cell: Cell) -> list[str]:
    head = cell.text if cell.to is None else cell.text[:_NAME_LIMIT] + _ARROW + cell.to[:_NAME_LIMIT]
    return [units.shorten(part, _NAME_LIMIT) for part in (head, cell.under) if part is not None]
