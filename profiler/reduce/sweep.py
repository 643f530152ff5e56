"""The sweep by groups: where every picosecond of each step of one device went, by what its ops are for.

The rules are those of profiler.analysis.times, which has the times of single ops; docs/times.md.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiler.fleet import Group
from profiler.trace import Timeline
from profiler.xplane import scan

CATEGORIES = ("compute", "communication", "transfer", "wait", "compute")  # by sweep rank; loop control is compute
TRANSFER_RANK = 2


def flying_category(rank: int) -> str:
    """What an op in flight beside others counts as."""
    return CATEGORIES[rank] if 1 <= rank <= TRANSFER_RANK else "transfer"


def groups_of(ops: pl.DataFrame) -> tuple[tuple[Group, ...], NDArray[np.int32]]:
    """The groups of ops, and the group of every key of a sweep: ops, then ops in flight."""
    ranks = ops["rank"].to_list()
    places = list(zip(ops["family"].to_list(), ops["phase"].to_list(), strict=True))
    keys: list[Group] = [(CATEGORIES[rank], *place) for rank, place in zip(ranks, places, strict=True)]
    keys += [(flying_category(rank), *place) for rank, place in zip(ranks, places, strict=True)]
    numbers: dict[Group, int] = {}
    of = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int32, len(keys))
    return tuple(numbers), of


def keys_and_ranks(timeline: Timeline, rank: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The key of every span (its op, or beside others its op in flight), and the rank that the sweep gives it.

    A span beside others is a transfer at best, whatever its op is.
    """
    in_flight = timeline.lane < 0
    ranks = rank[timeline.op]
    ranks = np.where(in_flight & ((ranks < 1) | (ranks > TRANSFER_RANK)), TRANSFER_RANK, ranks)
    key = np.where(in_flight, timeline.op + len(rank), timeline.op).astype(np.int32)
    return key, ranks.astype(np.uint8)


def group_times(
    timeline: Timeline, spans: NDArray[np.int64], rank: NDArray[np.uint8], group_of: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Exclusive time of every group in each step, ps: (steps, groups + 1), idle last; a row sums to its step.

    Args:
        timeline: the spans of one device.
        spans: (n, 2) [start, end) of its steps, in order, apart from each other.
        rank: the rank of every op.
        group_of: the group of every key, as ``groups_of`` gives it.
    """
    groups = int(group_of.max(initial=-1)) + 1
    if not len(spans):
        return np.zeros((0, groups + 1))
    key, ranks = keys_and_ranks(timeline, rank)
    return scan.sweep(
        timeline.start_ps,
        timeline.start_ps + timeline.duration_ps,
        group_of[key],
        ranks,
        timeline.lane,
        spans,
        np.arange(len(spans), dtype=np.int32),
        len(spans),
        groups,
    )
