"""A document as GitHub Markdown: a comment that reads without opening anything.

GitHub refuses comments over 65,536 characters, so a report is at most 60,000 whatever the input: rows and long names
give way first, and what was left out is said. Text of a trace cannot form tables, tags, links, mentions or math.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiler.report import units
from profiler.report.model import (
    BAD,
    MOST_NOTES,
    STRONG,
    Block,
    Cell,
    Document,
    Facts,
    Fold,
    Items,
    Line,
    Notes,
    Preformatted,
    Table,
    capped,
    more_notes,
)

LIMIT = 60_000
GATE_LIMIT = 5_000  # of profiler check, so that it fits into the comment of a diff

# (rows per table, notes and items per list, characters per name, per sentence): the first that fits is taken.
_BUDGETS = (
    (10_000, 1_000, 200, 2_000),
    (200, 50, 160, 1_000),
    (60, 30, 120, 600),
    (25, 15, 80, 300),
    (10, 8, 60, 200),
    (3, 2, 30, 100),
)

_TAME = re.compile(r"[A-Za-z0-9_.,:;/%()\[\]{}=+*$~^' -]+")
# Numeric entities are text in every place of a GitHub page, cells included, where a backslash would not always do.
_ENTITIES = {ord(char): f"&#{ord(char)};" for char in "\\|<>`*_[]~$&:(){}!\"'"}
# GitHub looks for mentions and issue numbers after it has decoded entities: a zero-width space breaks the word.
_ENTITIES |= {ord("@"): "@&#8203;", ord("#"): "#&#8203;"}
# What would make a line a list item, a rule or the underline of a heading.
_LINE_MARKS = re.compile(r"^(\s*)([-+](?=\s|$)|\d+(?=[.)](?:\s|$))|[-=]+(?=\s*$))")
_HEADING = re.compile(r"\A#### [^\n]*\n\n")
# What GitHub makes a link or a reference of without any mark around it.
_BARE = re.compile(r"(?i)\b(www)(?=\.)|\b(gh)(?=-\d)")
_INNER_UNDERSCORE = re.compile(r"(?<=[A-Za-z0-9])&#95;(?=[A-Za-z0-9])")


def escape(text: str) -> str:
    """Text of a trace as GitHub Markdown that shows exactly it, on one line."""
    return _BARE.sub(lambda match: f"{match[0]}&#8203;", units.clean(text).translate(_ENTITIES))


def prose(text: str) -> str:
    """A sentence of ours that quotes the trace: escaped where it could act, readable in the source otherwise."""
    text = escape(text).replace("&#40;", "(").replace("&#41;", ")").replace("&#39;", "'").replace("&#58; ", ": ")
    return _INNER_UNDERSCORE.sub("_", text)


def sentence(text: str) -> str:
    """Prose that starts a line: it cannot become a list item, a rule or a heading's underline."""
    return _LINE_MARKS.sub(lambda match: match[1] + "".join(f"&#{ord(char)};" for char in match[2]), prose(text))


def name(text: str) -> str:
    """A name: a code span when nothing in it can end one, escaped text otherwise."""
    return f"`{text}`" if _TAME.fullmatch(text) and text.strip() == text else escape(text)


def render_markdown(document: Document, most: int = LIMIT) -> str:
    """The document as at most ``most`` characters of GitHub Markdown."""
    text = ""
    for budget in _BUDGETS:
        text = "\n\n".join(_Renderer(*budget).blocks(document)) + "\n"
        if len(text) <= most:
            return text
    # Not reachable with the views we have, whose number of blocks is fixed; a promise is a promise.
    cut = text.rfind("\n\n", 0, most - 100)
    return text[: max(cut, 0)] + "\n\n_Cut here: the report is longer than a comment can be._\n"


class _Renderer:
    """Draws blocks within one budget."""

    def __init__(self, rows: int, entries: int, name_width: int, line_width: int):
        self.rows, self.entries, self.name_width, self.line_width = rows, entries, name_width, line_width

    def blocks(self, document: Document) -> Iterator[str]:
        """Every block as Markdown, empty ones left out."""
        if document.marker is not None:
            yield document.marker
        yield f"### {self._line(document.title)}"
        for block in document.blocks:
            text = self._block(block)
            if text:
                yield text

    def _block(self, block: Block) -> str:
        if isinstance(block, Line):
            text = ("⚠ " if block.tone == BAD else "") + self._line(block.text)
            return f"**{text}**" if block.headline or block.tone == BAD else text
        if isinstance(block, Facts):
            return self._facts(block)
        if isinstance(block, Table):
            return self._table(capped(block, self.rows))
        if isinstance(block, Notes):
            return self._notes(block)
        if isinstance(block, Items):
            return self._items(block)
        if isinstance(block, Fold):
            return self._fold(block)
        return self._preformatted(block)

    def _fold(self, fold: Fold) -> str:
        # A title that says what the section says already is left out.
        alone = sum(not isinstance(each, Line) for each in fold.blocks) == 1
        texts = [self._block(each) for each in fold.blocks]
        body = [_HEADING.sub("", text) if alone else text for text in texts if text]
        return _folded(fold.title, "\n\n".join(body)) if body else ""

    def _line(self, text: str) -> str:
        return sentence(units.shorten(text, self.line_width))

    def _cell(self, cell: Cell) -> str:
        text = name(units.shorten(cell.text, self.name_width)) if cell.name else self._words(cell.text)
        if cell.to is not None:
            text += f" → {name(units.shorten(cell.to, self.name_width))}"
        if cell.under is not None:
            text += f"<br>{self._words(cell.under)}"
        return f"**{text}**" if cell.tone == STRONG and text else text

    def _words(self, text: str) -> str:
        return prose(units.shorten(text, self.name_width))

    def _facts(self, facts: Facts) -> str:
        rows = [f"- {prose(title)}: {self._fact(cell)}" for title, cell in facts.rows]
        return "\n".join(rows)

    def _fact(self, cell: Cell) -> str:
        return self._line(cell.text)

    def _table(self, table: Table) -> str:
        if not table.rows:
            return ""
        kept = [index for index, column in enumerate(table.columns) if not column.bar]
        columns = [table.columns[index] for index in kept]
        lines = [
            "| " + " | ".join(prose(column.title) or " " for column in columns) + " |",
            "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|",
        ]
        rows = (*table.rows, *((table.total,) if table.total is not None else ()))
        lines.extend("| " + " | ".join(self._cell(row[index]) or " " for index in kept) + " |" for row in rows)
        body = "\n".join(lines)
        remarks = [f"_{prose(text)}_" for text in (table.more and f"… {table.more}", table.caption) if text]
        body = "\n\n".join([body, *remarks])
        return _folded(table.title, body) if table.folded else f"#### {prose(table.title)}\n\n{body}"

    def _notes(self, notes: Notes) -> str:
        if not notes.notes:
            return ""
        most = min(self.entries, MOST_NOTES)
        shown, hidden = notes.notes[:most], len(notes.notes[most:])
        lines = [f"- {self._line(note.message)} ({name(units.shorten(note.code, 60))})" for note in shown]
        body = "\n".join([*lines, f"- {prose(more_notes(hidden))}"] if hidden else lines)
        return _folded(notes.title, body) if notes.folded else f"#### {prose(notes.title)}\n\n{body}"

    def _items(self, items: Items) -> str:
        lines = []
        for number, (head, details) in enumerate(items.items, 1):
            text = self._line(head.text)
            lines.append(f"{number}. {f'**{text}**' if head.tone == STRONG else text}")
            lines[-1] += "".join(f"\n   - {self._line(detail)}" for detail in details[:8])
        more = f"\n\n_… {prose(items.more)}_" if items.more else ""
        return f"#### {prose(items.title)}\n\n" + "\n".join(self._some(lines)) + more

    def _some(self, lines: list[str]) -> list[str]:
        hidden = len(lines) - self.entries
        return lines if hidden <= 0 else [*lines[: self.entries], f"- … {hidden} more"]

    def _preformatted(self, block: Preformatted) -> str:
        # Inside a fence nothing acts but a fence: the lines have no backtick left.
        lines = "\n".join(units.clean(line).replace("`", "'") for line in block.lines)
        return f"#### {prose(block.title)}\n\n```text\n{lines}\n```"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{prose(title)}</summary>\n\n{body}\n\n</details>"
