"""HBM of two recordings beside each other, and their tensors as tables to search."""

from __future__ import annotations

from dataclasses import asdict, fields

import polars as pl

from profiler.report import units
from profiler.report.memory_view import memory_facts
from profiler.results import Memory, MemoryDelta, MemoryReport, MemoryTensor, MemoryTensorDelta

PEAKS = (
    ("at the static peak", "static_peak_bytes"),
    ("at the window's peak", "window_peak_bytes"),
    ("at the lifetime peak", "lifetime_peak_bytes"),
)
_CHANGE_TYPES = {
    "change": pl.String, "tensor": pl.String, "group": pl.String, "part": pl.String, "stack": pl.String,
    "baseline_shape": pl.String, "optimized_shape": pl.String, "baseline_bytes": pl.Int64, "optimized_bytes": pl.Int64,
    "baseline_count": pl.Int64, "optimized_count": pl.Int64,
}  # fmt: skip
_TENSOR_TYPES = {
    "tensor": pl.String, "group": pl.String, "part": pl.String, "stack": pl.String, "shape": pl.String,
    "count": pl.Int64, "bytes": pl.Int64, "instruction": pl.String, "name_stack": pl.String,
}  # fmt: skip


def verdict(base: MemoryReport, opt: MemoryReport) -> str:
    """The first of the three peaks that both sides have, and what is left below the limit."""
    for where, field in PEAKS:
        before, after = _both(base.memory, opt.memory, field)
        if before is None or after is None:
            continue
        scale = units.byte_scale((before, after))
        change = f"{scale.delta(after - before)} {scale.unit}" if after != before else "no change"
        text = f"HBM {where}: {units.size(before)} → {units.size(after)} ({change})."
        if field == "static_peak_bytes":
            return text + _room(base.static_headroom_bytes, opt.static_headroom_bytes, "what the plan allocates")
        if field == "window_peak_bytes":
            return text + _room(base.window_headroom_bytes, opt.window_headroom_bytes, "that peak")
        return text
    return "No peak is known of both sides."


def _both(base: Memory, opt: Memory, field: str) -> tuple[int | None, int | None]:
    return getattr(base, field), getattr(opt, field)


def _room(base: int | None, opt: int | None, above: str) -> str:
    if base is None or opt is None:
        return ""
    return f" Headroom above {above}: {units.size(base)} → {units.size(opt)}."


def facts(base: MemoryReport, opt: MemoryReport) -> list[tuple[str, str, str]]:
    """(what it is, the baseline's, the optimized side's): the peaks, the limit, the headroom, host memory."""
    both = [dict(memory_facts(report)) for report in (base, opt)]
    return [(title, both[0][title].text, both[1][title].text) for title in both[0] if title not in ("file", "devices")]


def changes_frame(found: MemoryDelta) -> pl.DataFrame:
    """Tensors at the peak that came, went, grew or shrank, largest change first; bytes as they are.

    Columns are the fields of ``MemoryTensorDelta``, tensor first, and ``delta_bytes``.
    """
    names = [field.name for field in fields(MemoryTensorDelta)]
    frame = pl.DataFrame([{name: _plain(value) for name, value in asdict(row).items()} for row in found.tensors],
                         schema={name: _CHANGE_TYPES[name] for name in names})  # fmt: skip
    return (
        frame.select(*_CHANGE_TYPES)
        .with_columns(delta_bytes=pl.col("optimized_bytes") - pl.col("baseline_bytes"))
        .sort(pl.col("delta_bytes").abs(), descending=True, maintain_order=True)
    )


def tensors_frame(report: MemoryReport) -> pl.DataFrame:
    """All tensors at the static peak, largest first; bytes of all ``count`` buffers together."""
    names = [field.name for field in fields(MemoryTensor)]
    frame = pl.DataFrame([{name: _plain(value) for name, value in asdict(row).items()} for row in report.tensors],
                         schema={name: _TENSOR_TYPES[name] for name in names})  # fmt: skip
    return frame.select(*_TENSOR_TYPES).sort("bytes", descending=True, maintain_order=True)


def search(frame: pl.DataFrame, text: str) -> pl.DataFrame:
    """The rows in whose texts every word of ``text`` occurs, in whatever case."""
    columns = [name for name, kind in frame.schema.items() if kind == pl.String]
    joined = pl.concat_str([pl.col(name).fill_null("") for name in columns], separator=" ").str.to_lowercase()
    for word in text.lower().split():
        frame = frame.filter(joined.str.contains(word, literal=True))
    return frame


def _plain(value: object) -> object:
    return units.clean(value) if isinstance(value, str) else value
