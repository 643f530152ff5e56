"""Exclusive times on hand-made timelines with a known truth, and the invariant that they sum to the step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiler
from profiler.analysis.times import step_times
from profiler.trace import AllocatorPeaks, Device, Timeline, Trace, Windows
from profiler.xplane.write import Ref, SpaceBuilder

MS = 10**9


def families(path: str) -> dict[tuple[str, str], float]:
    """(category, family) → ms per step."""
    found: dict[tuple[str, str], float] = {}
    for row in profiler.summary(path).families:
        key = (row.category, row.family)
        found[key] = found.get(key, 0.0) + row.time_ps_per_step / MS
    return found


def test_a_loop_and_its_ops_share_the_loops_time_once(tpu_space, saved) -> None:
    space = tpu_space(
        {"TPU:0": {"XLA Ops": [("while.1", 0, 10 * MS), ("add.2", MS, 4 * MS), ("multiply.3", 5 * MS, 4 * MS)]}}
    )
    found = families(saved(space))
    assert found["compute", "control flow"] == 2
    assert found["compute", "norm / elementwise"] == 8
    assert found["idle", "idle"] == 0


def test_a_collective_half_hidden_by_compute_is_exposed_for_the_other_half(tpu_space, saved) -> None:
    space = tpu_space(
        {
            "TPU:0": {
                "XLA Ops": [("all-gather-start.1", 0, 0), ("add.2", 0, 4 * MS), ("all-gather-done.1", 4 * MS, 4 * MS)],
                "Async XLA Ops": [("all-gather-start.1", 0, 8 * MS)],
            }
        }
    )
    found = families(saved(space))
    assert found["compute", "norm / elementwise"] == 4
    assert found["communication", "all-gather"] == 4


def test_an_async_pair_is_one_call(tpu_space, saved) -> None:
    space = tpu_space(
        {
            "TPU:0": {
                "XLA Ops": [("all-gather-start.1", 0, MS), ("all-gather-done.1", 4 * MS, 4 * MS)],
                "Async XLA Ops": [("all-gather-start.1", 0, 8 * MS)],
            }
        }
    )
    rows = [row for row in profiler.summary(saved(space)).families if row.family == "all-gather"]
    assert sum(row.calls_per_step for row in rows) == 1


def test_nccl_on_a_compute_stream_is_communication_and_hides_behind_another_stream(saved) -> None:
    space = SpaceBuilder()
    plane = space.plane("/device:GPU:0", stats={"device_vendor": "Nvidia"})
    compute, second = plane.line("Stream #1(Kernel)"), plane.line("Stream #2(Kernel)")
    first, last = (
        {"hlo_op": Ref(name), "hlo_module": Ref("jit_f"), "program_id": 7} for name in ("add.1", "multiply.2")
    )
    compute.event("add_1", 0, 3 * MS, stats=first)
    compute.event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)", 3 * MS, 3 * MS, stats={})
    second.event("multiply_2", 5 * MS, 3 * MS, stats=last)
    found = families(saved(space))
    assert found["communication", "all-reduce"] == 2
    assert sum(time for (category, _), time in found.items() if category == "compute") == 6


def test_two_streams_at_once_share_the_moment_equally(saved) -> None:
    space = SpaceBuilder()
    plane = space.plane("/device:GPU:0", stats={"device_vendor": "Nvidia"})
    for stream, (name, start, duration) in enumerate([("sgemm_1", 0, 6 * MS), ("reduce_2", 2 * MS, 2 * MS)]):
        line = plane.line(f"Stream #{stream}(Kernel)")
        line.event(name, start, duration, stats={"hlo_op": Ref(name), "hlo_module": Ref("f"), "program_id": 7})
    found = families(saved(space))
    assert found["compute", "dense matmul"] == 5
    assert found["compute", "reduction"] == 1


def test_a_loop_body_on_another_thread_takes_its_time_from_the_loop(saved) -> None:
    space = SpaceBuilder()
    plane = space.plane("/host:CPU")
    for thread, (name, start, duration) in enumerate([("while.1", 0, 10 * MS), ("dot.2", MS, 8 * MS)]):
        stats = {"hlo_op": Ref(name), "hlo_module": Ref("jit_f"), "program_id": 7, "device_ordinal": 0}
        line = plane.line(f"tf_XLAEigen/{thread}")
        line.event(name, start, duration, stats=stats)
        line.event(f"end: {name}", start + duration, 0)
    found = families(saved(space))
    assert found["compute", "control flow"] == 2
    assert found["compute", "dense matmul"] == 8


def trace_of(lanes: list[list[tuple[int, int, int]]], spans: list[tuple[int, int]], ranks: list[int]) -> Trace:
    """One device with spans (op, start, duration) per lane; the last lane is in flight."""
    rows = [(op, start, length, lane) for lane, events in enumerate(lanes) for op, start, length in events]
    op, start, length, lane = (np.array(column) for column in zip(*rows, strict=True))
    lane = np.where(lane == len(lanes) - 1, -1, lane)
    count = len(ranks)
    ops = pl.DataFrame(
        {
            "op_id": np.arange(count, dtype=np.int32),
            "rank": np.array(ranks, np.uint8),
            "family": [f"family {index % 3}" for index in range(count)],
            "phase": pl.Series([None] * count, dtype=pl.String),
        }
    )
    return Trace(
        label="x",
        files=("x",),
        kind="recorded",
        devices=(Device(0, "TPU:0", "x", "h", "/device:TPU:0", "tpu"),),
        idle_devices=(),
        ops=ops,
        op_sums=pl.DataFrame(),
        timelines=(
            Timeline(
                start.astype(np.int64),
                length.astype(np.int64),
                op.astype(np.int32),
                lane.astype(np.int32),
                lane >= 0,
                np.full(len(op), -1),
            ),
        ),
        windows=(Windows(np.array(spans, np.int64), "test", "step"),),
        allocator=AllocatorPeaks(),
        programs={},
        run_info=None,
        versions={},
        warnings=(),
    )


events = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 200), st.integers(0, 80)), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(events, min_size=2, max_size=4).filter(any),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_the_parts_of_a_step_sum_to_the_step(lanes, lengths, ranks) -> None:
    edges = np.cumsum([0, *lengths])
    times = step_times(trace_of(lanes, list(pairwise(edges)), ranks))
    assert times.step_ps == pytest.approx(np.mean(lengths))
    assert times.ops["time_ps"].sum() + times.idle_ps == pytest.approx(times.step_ps, rel=1e-9)
    assert (times.ops["time_ps"] >= 0).all()


def test_a_recording_that_nobody_normalised_keeps_the_invariant_per_device(recordings) -> None:
    for name in ("tpu_v6e_inference", "mi300x_conv_new", "gfx950_fused_attention", "nvidia_8gpu_tf2"):
        summary = profiler.summary(str(recordings / f"{name}.xplane.pb"))
        total = sum(row.time_ps_per_step for row in summary.families)
        assert total == pytest.approx(summary.steps.mean_ps, rel=1e-9), name
        assert sum(row.fraction for row in summary.families) == pytest.approx(1, rel=1e-9)
