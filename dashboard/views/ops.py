"""Ops: every op of both sides, matched; any of them in full: HLO text, source, and the time of every call."""

from __future__ import annotations

from html import escape
from typing import Any

import polars as pl
import streamlit as st

from dashboard import elements, loading, plots_ops, shell, state
from dashboard.loading import Comparison
from dashboard.theme import palette
from profiler.analysis import opdetail, oprows
from profiler.report import html_parts, op_view, units
from profiler.report.wording import sides
from profiler.results_ops import OpFacts

MATCHES = ("changed", "replaced", "added", "removed", "same")
UNTOLD = "not told"  # the phase or program of an op where nothing says it
FILTERS = ("search", "family", "phase", "program", "match")
ORDERED = {  # what the table is sorted by stands where it is seen
    "changed time": (),
    "wasted time": ("wasted",),
    "optimized time": ("opt",),
    "baseline time": ("base",),
    "calls": ("base_calls", "opt_calls"),
}
TABLE_HEIGHT, TEXT_HEIGHT = 430, 380
MOST_LETTERS = 200  # of a program's name
ROW, _PAIR = "row", "_ops_pair"


def page(comparison: Comparison) -> None:
    """The page."""
    diff = comparison.diff
    table = loading.compared(comparison, oprows.op_rows)
    st.header("Ops")
    elements.text("Every op of both sides, matched by what it is rather than by its name.")
    elements.estimate_banner(sides(diff))
    _forget_other_pairs(comparison)
    chosen, by = _filters(table)
    rows = oprows.ordered(oprows.select(table, **chosen), by)
    _listed(comparison, table, rows, by, f"{chosen}|{by}")
    number = state.number(ROW)
    if number is not None and number < table.height:
        _detail(comparison, number, hidden=number not in rows["row"])
    elif rows.height:
        elements.text(
            "Choose a row to see both sides of it: HLO text, source line, scopes, and how long each call takes."
        )


def _forget_other_pairs(comparison: Comparison) -> None:
    """Chooses no row once other recordings are compared: there its number means another op."""
    pair = [side.key for side in comparison.sides]
    if st.session_state.setdefault(_PAIR, pair) != pair:
        state.put(ROW, "")
    st.session_state[_PAIR] = pair


# --- which rows ------------------------------------------------------------------------------------------------------


def _filters(table: pl.DataFrame) -> tuple[dict[str, Any], str]:
    """Draws the filters: what ``oprows.select`` takes, and the order."""
    left, right = st.columns([3, 1])
    text = left.text_input(
        "Search",
        key="search",
        bind="query-params",
        type="search",
        live="300ms",
        placeholder="instruction name, scope or source file",
        help="Finds text as it is written, in any case of letters; all instructions of a row count",
    )
    by = right.selectbox("Largest first", list(oprows.ORDERS), key="order", bind="query-params")
    columns = st.columns([3, 3, 3, 3])
    family, phase, program = (
        _choice(column, name, title, table)
        for column, name, title in zip(columns, FILTERS[1:4], ("Family", "Phase", "Program"), strict=False)
    )
    match = columns[3].multiselect("Match", MATCHES, key="match", bind="query-params", placeholder="any")
    return {"text": text or "", "families": family, "phases": phase, "programs": program, "matches": match}, by


def _choice(column: Any, name: str, title: str, table: pl.DataFrame) -> list[str | None]:
    """A filter of one column; its values come with those of the largest change first."""
    found = table.group_by(name, maintain_order=True).agg(pl.col("delta_time_ps").abs().sum())
    values = found.sort("delta_time_ps", descending=True, maintain_order=True)[name].to_list()
    picked = column.multiselect(
        title,
        [UNTOLD if value is None else value for value in values],
        key=name,
        bind="query-params",
        format_func=lambda value: units.shorten(value, MOST_LETTERS),
        placeholder="any",
    )
    return [None if value == UNTOLD else value for value in picked]


def _reset() -> None:
    for name in FILTERS:
        st.session_state[name] = "" if name == "search" else []


def _listed(comparison: Comparison, table: pl.DataFrame, rows: pl.DataFrame, by: str, view: str) -> None:
    """The rows and what they add up to."""
    diff = comparison.diff
    words, buttons = st.columns([5, 1], vertical_alignment="center")
    with words:
        elements.text(op_view.totals_text(oprows.totals(rows, diff), table.height, diff), "because")
    if not rows.height:
        elements.empty("No op is like that.", "Fewer filters, or a shorter text to search for, find more.")
        st.button("Show all", on_click=_reset, icon=":material/filter_alt_off:")
        return
    with buttons:
        elements.downloads("ops", lambda: rows.drop("row"), "ops")
    shown, titles = op_view.listed(rows, diff)
    first = ORDERED[by]
    numbers = shown["row"].to_list()
    key = f"ops|{comparison.base.key}|{comparison.opt.key}|{view}"
    chosen = state.number(ROW)
    at = numbers.index(chosen) if chosen in numbers else None

    def selected() -> None:
        picked = st.session_state[key]["selection"]["rows"]
        state.put(ROW, str(numbers[picked[0]]) if picked else "")

    st.dataframe(
        shown.drop("row"),
        key=key,
        height=min(TABLE_HEIGHT, 38 + 35 * shown.height),
        hide_index=True,
        column_order=["op", *first, *(name for name in titles if name not in ("op", *first))],
        on_select=selected,
        selection_mode="single-row",
        selection_default=None if at is None else {"selection": {"rows": [at]}},
        column_config=_columns(titles),
        placeholder="n/a",
        lazy=False,
        alt="Ops of both sides, matched",
    )
    elements.text(op_view.basis_text(diff))


def _columns(titles: dict[str, str]) -> dict[str, Any]:
    """How the columns of ``op_view.listed`` are drawn."""
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    widths = {"op": 210, "family": 128, "phase": 118, "match": 82, "program": 130, "scopes": 400, "source": 220}
    formats = {"delta": "%+,.3f", "base_calls": "localized", "opt_calls": "localized"}
    return {
        name: text(title, width=widths[name]) if name in widths else number(title, format=formats.get(name, "%,.3f"))
        for name, title in titles.items()
    }


# --- one row in full -------------------------------------------------------------------------------------------------


def _detail(comparison: Comparison, row: int, *, hidden: bool) -> None:
    base, opt = (side.measured for side in comparison.sides)
    held = loading.compared(comparison, opdetail.members)
    detail = opdetail.op_detail(base, opt, comparison.diff, row, held)
    words = op_view.matched(detail) + (" The filters leave it out of the table above." if hidden else "")
    elements.html(
        f'<h2 class="op"><bdi>{escape(op_view.title(detail))}</bdi></h2><p class="remark">{escape(words)}</p>'
        + html_parts.facts(op_view.facts(detail), "Both sides of the op")
    )
    st.subheader("HLO text")
    for column, title, side in zip(
        st.columns(2), ("Baseline", "Optimized"), (detail.baseline, detail.optimized), strict=True
    ):
        with column:
            _hlo(title, side)
    elements.text(op_view.hlo_caption(detail))
    st.subheader("Time of a call")
    why = op_view.without_calls(detail)
    if why:
        elements.text(why)
    else:
        elements.plot(plots_ops.calls(detail, palette()), "ops-calls", plots_ops.alt(detail))
    elements.table(op_view.calls_table(detail), title=False)


def _hlo(title: str, side: OpFacts | None) -> None:
    if side is None:
        elements.text(f"{title}: no such op.")
    elif side.hlo_text is None:
        elements.empty(
            f"{title}: the recording holds no HLO text of this op.",
            "Newer versions of JAX put the programs into the profile.",
        )
    else:
        elements.text(f"{title}: {units.shorten(side.instructions[0], 36)}")
        lines = side.hlo_text.count("\n") + len(side.hlo_text) // 70
        st.code(side.hlo_text, language=None, wrap_lines=True, height=TEXT_HEIGHT if lines > 14 else "content")


if __name__ == "__main__":
    shell.show(page)
