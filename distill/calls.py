"""How often a recorded step runs the attention forward pass, per layer and phase.

A call is counted by one marker op, not by the number of ops in its scope: a fused kernel by itself, plain attention
(distill.kernels.plain) by its q·kᵀ dot in the scope ``attention_forward/qk``. The backward pass multiplies q and k
again, under another scope, and does not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

import profiler
from profiler.analysis.times import step_times

if TYPE_CHECKING:
    from distill.config import Config, ModelSpec

FORWARD, RERUN, TEACHER = "student forward", "re-run", "teacher"

_SPLASH = pl.col("family") == "splash forward"
_CUDNN = pl.col("kernel").str.contains("fmha") & ~pl.col("kernel").str.contains("(?i)backward|bwd")
_PLAIN = pl.col("name_stack").str.contains("attention_forward/qk/(?:.*/)?dot_general")
# XLA:CPU makes new dots without a name stack where a dimension has size 1 (one key head). What profiler then knows is
# the scope of their neighbours, which q·kᵀ shares with p·v. They differ in what they contract: head_dim, and T.
_UNNAMED = pl.col("name_stack").is_null() & pl.col("near_stack").str.contains("attention_forward")


@dataclass(frozen=True, slots=True)
class AttentionCalls:
    """Calls per layer and step."""

    teacher: float
    forward: float
    rerun: float

    @property
    def student(self) -> float:
        """In the student's step: forward and re-run."""
        return self.forward + self.rerun


def attention_calls(path: str, config: Config) -> AttentionCalls | None:
    """Counts the calls in the steady steps of a recording.

    Args:
        path: a PATH argument of profiler; of several recordings the mean.
        config: what the recorded run was configured with.

    Returns:
        None where no op is a marker: a kernel that this module does not know.
    """
    trace = profiler.load(path)
    table = step_times(trace).ops.join(trace.ops, on="op_id", how="left").filter(pl.col("calls") > 0)
    named = table.filter((_SPLASH | _CUDNN | _PLAIN).fill_null(False))
    unnamed = [row for row in table.filter(_UNNAMED).iter_rows(named=True) if _is_scores(row, config)]
    calls: dict[str, float] = {}
    for row in [*named.iter_rows(named=True), *unnamed]:
        calls[row["phase"]] = calls.get(row["phase"], 0.0) + row["calls"]
    if not calls:
        return None
    return AttentionCalls(
        teacher=calls.get(TEACHER, 0.0) / config.teacher.num_layers,
        forward=calls.get(FORWARD, 0.0) / config.student.num_layers,
        rerun=calls.get(RERUN, 0.0) / config.student.num_layers,
    )


def _is_scores(row: dict[str, object], config: Config) -> bool:
    """Whether a dot of attention is q·kᵀ: it contracts head_dim, where p·v contracts the T keys.

    A dot of contracted size c does 2 · c FLOPs per element of its result.
    """
    spec: ModelSpec = config.teacher if row["phase"] == TEACHER else config.student
    dimensions = str(row["shape"]).partition("[")[2].partition("]")[0]
    elements = math.prod(int(each) for each in dimensions.split(",") if each)
    return row["flops"] == 2 * spec.head_dim * elements and spec.head_dim != config.max_target_length
