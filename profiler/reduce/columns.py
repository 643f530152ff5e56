"""Helpers from scanner columns to Python values: unique rows first, so that text is decoded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.xplane.read import double_bits, text
from profiler.xplane.scan import StatColumn

ABSENT, DOUBLE, UINT64, INT64, STR, BYTES, REF, GZIP = range(8)


DENSE_RANGE = 1 << 22  # values below this are looked up in a table, which beats sorting by far


def distinct(column: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values of an integer column, ascending, and for each row which of them it is."""
    if len(column) and column.min() >= 0 and column.max() < DENSE_RANGE:
        present = np.zeros(int(column.max()) + 1, np.bool_)
        present[column] = True
        values = np.flatnonzero(present)
        place = np.zeros(len(present), np.int64)
        place[values] = np.arange(len(values))
        return values, place[column]
    values, codes = np.unique(column, return_inverse=True)
    return values, codes.reshape(-1).astype(np.int64)


def sums_by(code: NDArray[np.int64], *columns: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """(code, number sums …) per distinct code; sums are exact 64-bit integers."""
    if not len(code):
        return []
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    totals = [np.add.reduceat(column[order], starts).tolist() for column in columns]
    return list(zip(ordered[starts].tolist(), *totals, strict=True))


def factorize(*columns: NDArray[Any]) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """The distinct rows of some integer columns and, for each row, which of them it is.

    Returns:
        (distinct rows in ascending order, index into them per row [N]).
    """
    if not columns or len(columns[0]) == 0:
        return [], np.zeros(0, np.int64)
    values, code = distinct(columns[0])
    tables = [values]
    for column in columns[1:]:
        values, codes = distinct(column)
        # Codes stay below the number of rows, so the product cannot overflow.
        rows, code = distinct(code * len(values) + codes)
        tables = [*(table[rows // len(values)] for table in tables), values[rows % len(values)]]
    return list(zip(*(table.tolist() for table in tables), strict=True)), code


def labels(
    buffer: Any, column: StatColumn, stat_names: Mapping[int, str]
) -> tuple[list[str | None], NDArray[np.int64]]:
    """A text stat as (distinct texts, index per event); references and inline text of one spelling are one."""
    rows, code = factorize(column.kind, column.value, column.length)
    distinct: dict[str | None, int] = {}
    mapping = np.empty(len(rows), np.int64)
    for index, row in enumerate(rows):
        value = scalar(buffer, row, stat_names)
        mapping[index] = distinct.setdefault(None if value is None else str(value), len(distinct))
    return list(distinct), mapping[code] if len(rows) else code


def scalar(buffer: Any, row: tuple[int, ...], stat_names: Mapping[int, str]) -> Any:
    """One stat value from its (kind, value, length)."""
    kind, value, length = row
    if kind == DOUBLE:
        return double_bits(value)
    if kind == UINT64:
        return value % 2**64
    if kind == INT64:
        return value
    if kind == STR:
        return text(bytes(buffer[value : value + length]))
    if kind == REF:
        return stat_names.get(value, "")
    return None


def integers(column: StatColumn, missing: int = -1) -> NDArray[np.int64]:
    """An integer stat per event, ``missing`` where the event has none (or one that is not an integer)."""
    return np.where((column.kind == INT64) | (column.kind == UINT64), column.value, missing)
