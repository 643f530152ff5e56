"""Results as JSON: the contract of docs/json.md.

Field names and their order are those of the dataclasses; numbers that are not finite become null; the output is
ASCII, so that any name of a trace survives any pipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from profiler.hardware import CHIPS, PEAK_DTYPE
from profiler.results import SCHEMA_VERSION, Diff, Summary

if TYPE_CHECKING:
    import polars as pl

    from profiler.api import OpTable

# The diff's ops start with what the contract names, in its order; further columns follow as the frame has them.
_TEXT_IDS = ("program_id",)


def summary_object(summary: Summary) -> dict[str, Any]:
    """A summary as plain data."""
    return {"schema_version": SCHEMA_VERSION, **plain(summary)}


def result_object(result: Any) -> dict[str, Any]:
    """Any other result as plain data: the fields of its dataclass."""
    return {"schema_version": SCHEMA_VERSION, **plain(result)}


def diff_object(diff: Diff, top: int | None = None) -> dict[str, Any]:
    """A diff as plain data; ``top`` limits the ops (None and 0: all)."""
    return {"schema_version": SCHEMA_VERSION, **plain(diff), "ops": _rows(diff.ops, top)}


def ops_object(table: OpTable, top: int | None = None) -> dict[str, Any]:
    """A per-op table as plain data; ``top`` limits the rows (None and 0: all)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": plain(table.file),
        "devices": table.devices,
        "ops_total": table.ops.height,
        "ops": _rows(table.ops, top),
        "unattributed": _rows(table.unattributed, None),
        "warnings": plain(table.warnings),
    }


def peaks_object() -> dict[str, Any]:
    """The chip table as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dtype": PEAK_DTYPE,
        "chips": [
            {
                "key": chip.key,
                "name": chip.name,
                "vendor": chip.vendor,
                "devices_per_chip": chip.devices_per_chip,
                "peak_tflops": chip.peak_tflops,
                "chip_peak_tflops": chip.chip_tflops,
                "hbm_bytes": chip.hbm_bytes,
                "hbm_bytes_per_s": chip.hbm_bytes_per_s,
                "chip_interconnect_bytes_per_s": chip.chip_interconnect_gb_per_s * 1e9,
                "interconnect": chip.interconnect,
                "note": chip.note,
                "sources": list(chip.sources),
            }
            for chip in CHIPS
        ],
    }


def to_json(data: Mapping[str, Any]) -> str:
    """One JSON object, indented, ending in a newline."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _rows(frame: pl.DataFrame, top: int | None) -> list[dict[str, Any]]:
    rows = frame.head(top or frame.height).to_dicts()
    for row in rows:
        for key, value in row.items():
            # Program ids are 64-bit fingerprints: JSON readers that know only doubles would round them.
            row[key] = str(value) if key in _TEXT_IDS and value is not None else plain(value)
    return rows


def plain(value: Any) -> Any:
    """Plain JSON data for a result's field: dataclasses become objects, tuples lists, the unknown null."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        # A lone surrogate is not text: strict readers refuse the whole document for it.
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: plain(item) for field, item in named if "optional" not in field.metadata or item}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "to_dicts"):  # a frame: written by _rows, under the same key
        return None
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)  # dates of a YAML config, paths
