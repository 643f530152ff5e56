"""One value against one type: what fits, and how the error reads when it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from profiler.errors import UsageError

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def bad(key: str, value: object, allowed: str) -> UsageError:
    """The error for a value that cannot be used: names the key, the value and what is allowed."""
    return UsageError(f"{key}={_shown(value)} is not possible", remedy=f"allowed: {allowed}")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def fit(key: str, kind: Any, value: Any) -> Any:
    """The value as `kind`: int, float, bool, str, a Literal, tuple[X, ...] or a mapping.

    Whole floats fit int, text such as "1e-4" (which YAML 1.1 does not read as a number) fits float, lists become tuples
    and mappings become read-only, so that a configuration stays what it was when it was checked.

    Raises:
        UsageError: it does not fit.
    """
    origin = get_origin(kind)
    if origin is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            raise bad(key, value, ", ".join(get_args(kind)))
        return value
    if origin is tuple:
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise bad(key, value, "a list")
        return tuple(fit(key, get_args(kind)[0], item) for item in value)
    if origin is not None:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise bad(key, value, "a mapping of keys to values")
        return MappingProxyType({str(name): item for name, item in value.items()})
    fitted = _scalar(kind, value)
    if fitted is None:
        raise bad(key, value, _NAMES[kind])
    return fitted


def _scalar(kind: type, value: Any) -> Any:
    """The value as the scalar type, or None."""
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        # NaN compares with nothing, so no range check would catch it.
        return value if not isinstance(value, float) or math.isfinite(value) else None
    if kind is str and value is None:
        return ""
    if kind not in (int, float) or isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if kind is int:
        return int(number) if number.is_integer() else None
    return number if math.isfinite(number) else None
