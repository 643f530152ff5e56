"""How often a recorded step runs the attention forward pass, per layer and phase.

A call is counted by one marker op, not by the number of ops in its scope: a fused kernel by itself, plain attention
(distill.kernels.plain) by its q·kᵀ dot in the scope ``attention_forward/qk``. The backward pass multiplies q and k
again, under another scope, and does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

import profiler
from profiler.analysis.times import step_times

if TYPE_CHECKING:
    from distill.config import Config

FORWARD, RERUN, TEACHER = "student forward", "re-run", "teacher"

_SPLASH = pl.col("family") == "splash forward"
_CUDNN = pl.col("kernel").str.contains("fmha") & ~pl.col("kernel").str.contains("(?i)backward|bwd")
_PLAIN = pl.col("name_stack").str.contains("attention_forward/qk/(?:.*/)?dot_general")


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
        None where no op of the teacher or of the student's forward pass is a marker: both must run attention, so the
        kernel is one that this module does not know, or its dot has lost its name (docs/distill/kernels.md).
    """
    trace = profiler.load(path)
    table = step_times(trace).ops.join(trace.ops, on="op_id", how="left").filter(pl.col("calls") > 0)
    marked = table.filter((_SPLASH | _CUDNN | _PLAIN).fill_null(False))
    calls = dict(marked.group_by("phase").agg(pl.col("calls").sum()).iter_rows())
    if TEACHER not in calls or FORWARD not in calls:
        return None
    return AttentionCalls(
        teacher=calls[TEACHER] / config.teacher.num_layers,
        forward=calls[FORWARD] / config.student.num_layers,
        rerun=calls.get(RERUN, 0.0) / config.student.num_layers,
    )
