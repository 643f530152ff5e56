"""Helpers from scanner columns to Python values: unique rows first, so that text is decoded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.xplane.read import double_bits, text
from profiler.xplane.scan import StatColumn

ABSENT, DOUBLE, UINT64, INT64, STR, BYTES, REF, GZIP = range(8)


def factorize(*columns: NDArray[Any]) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """The distinct rows of some integer columns and, for each row, which of them it is.

    Returns:
        (distinct rows in ascending order, index into them per row [N]).
    """
    if not columns or len(columns[0]) == 0:
        return [], np.zeros(0, np.int64)
    values, codes = np.unique(columns[0], return_inverse=True)
    tables = [values]
    code = codes.astype(np.int64).reshape(-1)
    for column in columns[1:]:
        values, codes = np.unique(column, return_inverse=True)
        tables.append(values)
        # Codes stay below the number of rows, so the product cannot overflow.
        combined = code * len(values) + codes.reshape(-1)
        distinct, code = np.unique(combined, return_inverse=True)
        code = code.reshape(-1)
        tables = [*(table[distinct // len(values)] for table in tables[:-1]), values[distinct % len(values)]]
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
