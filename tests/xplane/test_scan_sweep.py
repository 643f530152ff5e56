"""Exclusive attribution of time: hand-made cases, a brute-force reference, and both twins to the last bit."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.xplane import pyscan, scan

COMPUTE, COMMUNICATION, TRANSFER, WAIT, CONTAINER = range(5)
ASYNC = -1  # the lane of events that overlap without nesting


class Op(NamedTuple):
    """One event; its key is the output column."""

    start: int
    end: int
    key: int = 0
    rank: int = COMPUTE
    lane: int = 0


def implementation(name: str) -> ModuleType:
    if name == "python":
        return pyscan
    try:
        return importlib.import_module("profiler.xplane._scan")
    except ImportError:
        if "CI" in os.environ:
            raise
        pytest.skip("the compiled scanner is not built")


@pytest.fixture(params=["compiled", "python"], autouse=True)
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both twins answer every test of this file."""
    monkeypatch.setattr(scan, "_scanner", implementation(request.param))
    return request.param


def swept(
    ops: Sequence[Op], windows: Sequence[Sequence[int]], rows: Sequence[int] | None = None, n_keys: int = 4
) -> npt.NDArray[np.float64]:
    rows = range(len(windows)) if rows is None else rows
    columns = [list(column) for column in zip(*ops, strict=True)] or [[]] * 5
    return scan.sweep(*columns, windows, list(rows), max(rows, default=-1) + 1, n_keys)


def row(*ops: Op, window: tuple[int, int] = (0, 100)) -> list[float]:
    """Time per key 0 to 3, then idle."""
    return swept(ops, [window])[0].tolist()


def test_without_events_all_is_idle():
    assert row() == [0, 0, 0, 0, 100]


def test_without_windows_there_are_no_rows():
    assert swept([Op(0, 5)], []).shape == (0, 5)


def test_only_the_part_inside_a_window_counts():
    assert row(Op(-50, 10), Op(90, 200, 1)) == [10, 10, 0, 0, 80]


def test_of_nested_events_the_innermost_counts():
    assert row(Op(0, 100, 0), Op(10, 60, 1), Op(20, 30, 2)) == [50, 40, 10, 0, 0]


def test_of_two_equal_spans_the_later_counts():
    assert row(Op(0, 10, 1), Op(0, 10, 2)) == [0, 0, 10, 0, 90]


def test_of_two_with_one_start_the_shorter_counts_whatever_the_order():
    assert row(Op(0, 10, 1), Op(0, 30, 2)) == row(Op(0, 30, 2), Op(0, 10, 1)) == [0, 10, 20, 0, 70]


def test_an_event_that_outlives_the_next_is_innermost_again():
    assert row(Op(0, 10, 0), Op(5, 20, 1), Op(30, 60, 2), Op(40, 50, 3)) == [5, 15, 20, 10, 50]


def test_a_closed_event_below_the_innermost_is_forgotten():
    assert row(Op(0, 100, 0), Op(10, 30, 1), Op(20, 50, 2)) == [60, 10, 30, 0, 0]


def test_streams_share_the_time_in_which_both_compute():
    assert row(Op(0, 60, 0, lane=0), Op(40, 100, 1, lane=1)) == [50, 50, 0, 0, 0]


def test_a_key_that_runs_twice_has_two_shares():
    assert row(Op(0, 30, 0, lane=0), Op(0, 30, 0, lane=1), Op(0, 30, 1, lane=2)) == [20, 10, 0, 0, 70]


def test_communication_counts_only_where_nothing_computes():
    assert row(Op(0, 40, 0), Op(20, 70, 1, COMMUNICATION, ASYNC)) == [40, 30, 0, 0, 30]


def test_the_ranks_follow_each_other():
    ranks = (WAIT, TRANSFER, COMMUNICATION, COMPUTE)
    ops = [Op(0, 100 - 20 * key, key, rank, key) for key, rank in enumerate(ranks)]
    assert row(*ops) == [20, 20, 20, 40, 0]


def test_a_container_counts_where_its_body_does_not():
    assert row(Op(0, 100, 0, CONTAINER, 0), Op(10, 30, 1, COMPUTE, 1)) == [80, 20, 0, 0, 0]


def test_an_innermost_wait_hides_the_compute_it_lies_in():
    assert row(Op(0, 100, 0), Op(10, 30, 1, WAIT)) == [80, 20, 0, 0, 0]


def test_async_events_are_all_candidates():
    ops = [Op(0, 40, key, TRANSFER, ASYNC) for key in range(4)]
    assert row(*ops) == [10, 10, 10, 10, 60]


def test_events_that_do_not_last_are_ignored():
    assert row(Op(10, 10, 1), Op(30, 20, 2), Op(-(2**63), -(2**63), 3)) == [0, 0, 0, 0, 100]


def test_windows_may_have_gaps_be_empty_and_share_a_row():
    table = swept([Op(0, 35, 1)], [(0, 10), (20, 20), (30, 40)], rows=[1, 0, 1])
    assert table.tolist() == [[0, 0, 0, 0, 0], [0, 15, 0, 0, 5]]


def test_time_at_the_ends_of_64_bits():
    low, high = -(2**62), 2**62
    assert row(Op(low, 0, 1), Op(0, high, 2), window=(low, high)) == [0, 2.0**62, 2.0**62, 0, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": [4]}, "key"),
        ({"key": [-1]}, "key"),
        ({"rank": [5]}, "rank"),
        ({"lane": [-2]}, "lane"),
        ({"lane": [0, 0]}, "length"),
        ({"window_row": [1]}, "window row"),
        ({"window_row": []}, "window rows"),
        ({"windows": [[0, 10], [5, 20]]}, "overlap"),
    ],
)
def test_input_that_makes_no_sense_is_refused(change: dict[str, Any], said: str):
    good: dict[str, Any] = {"start": [0], "end": [5], "key": [0], "rank": [0], "lane": [0]}
    good |= {"windows": [[0, 10]], "window_row": [0], "n_rows": 1, "n_keys": 4}
    assert scan.sweep(**good).tolist() == [[5, 0, 0, 0, 5]]
    with pytest.raises(ValueError, match=said):
        scan.sweep(**good | change)


# ---------------------------------------------------------------------------------------------------- at random


def brute_force(ops: Sequence[Op], windows: Sequence[tuple[int, int]]) -> list[list[Fraction]]:
    """Instant by instant, by the definition."""
    table = [[Fraction(0)] * 5 for _ in windows]
    for window, (low, high) in enumerate(windows):
        for instant in range(low, high):
            running = [(op, i) for i, op in enumerate(ops) if op.start <= instant < op.end]
            candidates = [op for op, _ in running if op.lane == ASYNC]
            for lane in {op.lane for op, _ in running} - {ASYNC}:
                inner = max((op.start, -op.end, i) for op, i in running if op.lane == lane)
                candidates.append(ops[inner[2]])
            first = min((op.rank for op in candidates), default=None)
            winners = [op for op in candidates if op.rank == first]
            for op in winners:
                table[window][op.key] += Fraction(1, len(winners))
            if not winners:
                table[window][4] += 1
    return table


times = st.integers(-3, 25)
ops = st.builds(Op, times, times, st.integers(0, 3), st.integers(0, 4), st.integers(-1, 3))
edges = st.lists(st.integers(0, 22), min_size=2, max_size=8).map(sorted)


@settings(max_examples=400, deadline=None)
@given(st.lists(ops, max_size=14), edges)
def test_random_events_give_what_brute_force_gives(events: list[Op], bounds: list[int]):
    windows = list(zip(bounds[::2], bounds[1::2], strict=False))
    table = swept(events, windows)
    assert np.allclose(table, [[float(value) for value in line] for line in brute_force(events, windows)], atol=1e-12)
    assert np.allclose(table.sum(axis=1), [high - low for low, high in windows], atol=1e-12)


def random_ops(rng: random.Random, count: int, horizon: int) -> list[Op]:
    found = []
    for _ in range(count):
        start = rng.randrange(horizon)
        length = rng.choice([0, 1, 10**5, 10**7, horizon // 3])
        found.append(
            Op(start, start + rng.randrange(length + 1), rng.randrange(4), rng.randrange(5), rng.randint(-1, 5))
        )
    return found


@pytest.mark.parametrize("seed", range(5))
def test_both_twins_give_the_same_bits_and_rows_sum_to_their_windows(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    horizon = 10**9
    events = random_ops(rng, 3000, horizon)
    bounds = sorted(rng.randrange(horizon) for _ in range(40))
    windows = list(zip(bounds[::2], bounds[1::2], strict=True))
    tables = []
    for name in ("compiled", "python"):
        monkeypatch.setattr(scan, "_scanner", implementation(name))
        tables.append(swept(events, windows))
    assert tables[0].tobytes() == tables[1].tobytes()
    assert np.allclose(tables[0].sum(axis=1), [high - low for low, high in windows], rtol=1e-12)


def test_a_million_events_take_about_a_second(scanner: str):
    if scanner == "python":
        pytest.skip("the twin is not meant to be fast")
    rng = np.random.default_rng(3)
    count = 1_000_000
    duration = rng.integers(1, 100_000, count)
    end = np.cumsum(duration).reshape(4, -1)
    end -= end[:, :1]
    start = end - duration.reshape(4, -1)
    lane = np.repeat(np.arange(4), count // 4)
    key, rank = rng.integers(0, 50, count), rng.integers(0, 5, count)
    table = scan.sweep(start.ravel(), end.ravel(), key, rank, lane, [[0, int(end.max())]], [0], 1, 50)
    assert np.isclose(table.sum(), end.max(), rtol=1e-9)
