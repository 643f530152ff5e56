"""The per-op table: what XProf's hlo_stats shows, with family and phase."""

from __future__ import annotations

import polars as pl

from profiler.trace import Trace

COLUMNS = (
    "program",
    "program_id",
    "op",
    "category",
    "family",
    "phase",
    "occurrences",
    "total_time_ps",
    "self_time_ps",
    "flops",
    "bytes_accessed",
    "name_stack",
    "source",
)


def op_table(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(ops with HLO, device activity without), summed over devices, largest self time first; see api.OpTable."""
    facts = ("program", "category", "family", "phase", "name_stack", "source")
    counted = trace.op_table.with_columns(
        flops=pl.col("flops") * pl.col("occurrences"), bytes_accessed=pl.col("bytes_accessed") * pl.col("occurrences")
    )
    # A sum with an unknown part is unknown, never a smaller figure.
    sums = [
        pl.when(pl.col(name).is_null().any()).then(None).otherwise(pl.col(name).sum()).alias(name)
        for name in ("flops", "bytes_accessed")
    ]
    table = (
        counted.group_by("hlo", "program_id", "op", maintain_order=True)
        .agg(
            *(pl.col(name).drop_nulls().first() for name in facts),
            *(pl.col(name).sum() for name in ("occurrences", "total_time_ps", "self_time_ps")),
            *sums,
        )
        .sort(
            ["self_time_ps", "total_time_ps", "program_id", "op"],
            descending=[True, True, False, False],
            nulls_last=True,
        )
    )
    return (
        table.filter(pl.col("hlo")).select(COLUMNS),
        table.filter(~pl.col("hlo")).select(COLUMNS),
    )
