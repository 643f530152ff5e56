"""The timeline: rows in which nothing overlaps, and windows that lose nothing, whatever the spans are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sample_profiles
from profiler import api
from profiler.analysis import timeline
from profiler.errors import UsageError
from profiler.results_timeline import TimelineRows, TimelineView
from profiler.trace import AllocatorPeaks, Device, Timeline, Trace
from profiler.xplane.write import Ref, SpaceBuilder

MS = 10**9
FAMILIES = ["dense matmul", "wait", "dense matmul", "reduction"]


def trace_of(spans: list[tuple[int, int, int, int]]) -> Trace:
    """One device with spans (lane, start, duration, op)."""
    lane, start, duration, op = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return Trace(
        label="x",
        files=("x",),
        kind="recorded",
        devices=(Device(0, "TPU:0", "x", "h", "/device:TPU:0", "tpu"),),
        idle_devices=(),
        ops=pl.DataFrame({"family": FAMILIES}),
        op_sums=pl.DataFrame(),
        timelines=(
            Timeline(start, duration, op.astype(np.int32), lane.astype(np.int32), lane >= 0, np.full(len(op), -1)),
        ),
        windows=(),
        allocator=AllocatorPeaks(),
        programs={},
        run_info=None,
        versions={},
        warnings=(),
    )


def listed(rows: TimelineRows, row: int) -> list[tuple[int, int, int]]:
    """(start, end, op) of the spans of a row."""
    place = slice(rows.edges[row], rows.edges[row + 1])
    starts, lengths = rows.start_ps[place].tolist(), rows.duration_ps[place].tolist()
    return list(
        zip(starts, (a + b for a, b in zip(starts, lengths, strict=True)), rows.op[place].tolist(), strict=True)
    )


def entries(view: TimelineView) -> list[tuple[int, int, int, int, int, int, str]]:
    """(row, start, end, busy, count, op, family) of a view."""
    columns = (view.row, view.start_ps, view.end_ps, view.busy_ps, view.count, view.op)
    families = [view.families[each] for each in view.family.tolist()]
    return list(zip(*(column.tolist() for column in columns), families, strict=True))


def naive(rows: TimelineRows, start: int, end: int, pixels: int) -> list[tuple[int, int, int, int, int, int, str]]:
    """The same, span by span."""
    pixel = -(-(end - start) // pixels)
    found: list[tuple[int, int, int, int, int, int, str]] = []
    for row, described in enumerate(rows.rows):
        blocks: dict[object, list[tuple[int, int, int]]] = {}
        for number, (begin, stop, op) in enumerate(listed(rows, row)):
            if begin < end and (stop > start or begin >= start):
                wide = stop - begin >= pixel and not described.crowded
                blocks.setdefault(("wide", number) if wide else max((begin - start) // pixel, -1), []).append(
                    (begin, stop, op)
                )
        for spans in blocks.values():
            time = dict.fromkeys(rows.families, 0)
            for begin, stop, op in spans:
                time[rows.families[rows.family[op]]] += stop - begin
            most = max(time, key=lambda name: time[name])
            found.append(
                (
                    row, spans[0][0], max(stop for _, stop, _ in spans), sum(b - a for a, b, _ in spans), len(spans),
                    spans[0][2] if len(spans) == 1 else -1, rows.families[rows.family[spans[0][2]]]
                    if len(spans) == 1 else most,
                )
            )  # fmt: skip
    return sorted(found)


spans = st.lists(
    st.tuples(
        st.integers(-1, 1), st.integers(0, 120), st.one_of(st.integers(0, 6), st.integers(0, 90)), st.integers(0, 3)
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(spans, st.integers(-20, 150), st.integers(1, 160), st.integers(1, 40))
def test_a_window_is_what_a_span_by_span_count_says(found, start, length, pixels) -> None:
    rows = timeline.rows(trace_of(found), 0)
    view = timeline.view(rows, start, start + length, pixels)
    assert sorted(entries(view)) == naive(rows, start, start + length, pixels)


@settings(max_examples=200, deadline=None)
@given(spans, st.integers(1, 40))
def test_nothing_is_lost_and_no_row_has_more_entries_than_a_screen_can_show(found, pixels) -> None:
    rows = timeline.rows(trace_of(found), 0)
    assert sorted(op for *_, op in found) == sorted(rows.op.tolist())
    first, last = min(each[1] for each in found), max(each[1] + each[2] for each in found) + 1
    view = timeline.view(rows, first, last, pixels)
    for row in range(len(rows.rows)):
        mine = view.row == row
        assert view.busy_ps[mine].sum() == sum(end - start for start, end, _ in listed(rows, row))
        assert view.count[mine].sum() == rows.edges[row + 1] - rows.edges[row]
        assert mine.sum() <= 2 * pixels + 3


@settings(max_examples=300, deadline=None)
@given(spans)
def test_spans_of_a_row_stand_side_by_side(found) -> None:
    rows = timeline.rows(trace_of(found), 0)
    for row in range(len(rows.rows)):
        if rows.rows[row].crowded:
            continue
        mine = listed(rows, row)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.just([]), lambda inside: st.lists(inside, max_size=3), max_leaves=12))
def test_of_nested_spans_the_row_is_the_depth_of_nesting(tree) -> None:
    found: list[tuple[int, int, int, int]] = []
    depths: dict[int, int] = {}

    def add(node: list, start: int, depth: int) -> int:
        at, number = start + 1, len(found)
        found.append((0, start, 0, 0))
        depths[start] = depth
        for each in node:
            at = add(each, at, depth + 1)
        found[number] = (0, start, at + 1 - start, 0)
        return at + 1

    add(tree, 0, 0)
    rows = timeline.rows(trace_of(found), 0)
    assert {start: row for row in range(len(rows.rows)) for start, *_ in listed(rows, row)} == depths


def test_what_overlaps_deeper_than_the_last_row_is_merged_there() -> None:
    deep = timeline.MOST_DEPTHS + 500
    rows = timeline.rows(trace_of([(-1, start, 10_000, 1) for start in range(deep)]), 0)
    assert [row.crowded for row in rows.rows] == [False] * timeline.MOST_DEPTHS + [True]
    view = timeline.view(rows, 0, 10_000, 10)
    assert view.count.sum() == deep
    assert len(view) <= (timeline.MOST_DEPTHS + 1) * 23


def test_numbers_at_the_edge_of_64_bits_do_no_harm() -> None:
    rows = timeline.rows(trace_of([(0, -(2**62), 2**62, 0), (0, 2**62 - 1, 5, 1)]), 0)
    assert len(timeline.view(rows, -(2**62), 2**62 + 4, 100)) == 2


@pytest.mark.parametrize(("start", "end", "pixels"), [(5, 5, 10), (6, 5, 10), (0, 5, 0)])
def test_a_window_without_room_is_refused(start: int, end: int, pixels: int) -> None:
    with pytest.raises(UsageError, match="nothing can be seen"):
        timeline.view(timeline.rows(trace_of([(0, 0, 1, 0)]), 0), start, end, pixels)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="there are 1, from 0"):
        timeline.rows(trace_of([(0, 0, 1, 0)]), 1)


@pytest.mark.parametrize(
    ("lengths", "step"), [([5], 0), ([5, 9, 6], 2), ([4, 4, 4], 0), ([1, 9], 0), ([9, 1, 4, 6], 2)]
)
def test_the_default_step_is_the_one_nearest_the_median(lengths: list[int], step: int) -> None:
    assert timeline.typical(np.array([(0, length) for length in lengths], np.int64)) == step


# --- from files


def lanes_of(path: str) -> list[tuple[str, int]]:
    trace = api.load(path)
    return [(row.name, row.depth) for row in timeline.rows(trace, 0).rows]


def test_lanes_of_a_tpu_are_called_as_its_lines_are(tpu_space, saved) -> None:
    space = tpu_space(
        {
            "TPU:0": {
                "Steps": [("0", 0, 9 * MS)],
                "XLA Ops": [("while.1", 0, 9 * MS), ("add.2", MS, MS)],
                "Async XLA Ops": [("copy-start.3", 0, 4 * MS), ("copy-start.4", MS, 4 * MS)],
            }
        }
    )
    assert lanes_of(saved(space)) == [("XLA Ops", 0), ("XLA Ops", 1), ("in flight", 0), ("in flight", 1)]


def test_lanes_of_a_sparse_core_say_which(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, MS)]}})
    core = space.plane("/device:TPU:0 SparseCore 1").line("Sparse Core Ops")
    core.event("gather.2", 0, MS, metadata_stats={"program_id": 7, "symbol_id": 2})
    assert lanes_of(saved(space)) == [("XLA Ops", 0), ("SparseCore 1: Sparse Core Ops", 0)]


def test_lanes_of_a_gpu_are_its_streams_and_of_a_cpu_its_threads(saved) -> None:
    space = SpaceBuilder()
    plane = space.plane("/device:GPU:0", stats={"device_vendor": "Nvidia"})
    plane.line("Stream #7(Compute)").event("sgemm_1", 0, MS, stats={"hlo_op": Ref("dot.1"), "program_id": 7})
    assert lanes_of(saved(space, "gpu.xplane.pb")) == [("Stream #7(Compute)", 0)]
    space = SpaceBuilder()
    plane = space.plane("/host:CPU")
    plane.line("python").event("main", 0, MS)
    plane.line("tf_XLAEigen/3").event("dot.1", 0, MS, stats={"hlo_op": Ref("dot.1"), "program_id": 7})
    assert lanes_of(saved(space, "cpu.xplane.pb")) == [("tf_XLAEigen/3", 0)]


def test_a_line_without_a_name_goes_by_its_number() -> None:
    trace = trace_of([(0, 0, 1, 0), (-1, 0, 1, 0)])
    assert [row.name for row in timeline.rows(trace, 0).rows] == ["line 0", "in flight"]


@pytest.mark.parametrize("pair", ["cpu-remat/baseline.xplane.pb.gz", "qwen3-30b/baseline.xplane.pb"])
def test_a_step_of_a_sample_is_there_whole(pair: str) -> None:
    measured = api.measured(str(sample_profiles.path(pair)))
    (device,) = timeline.devices(measured)
    start, end = device.steps[device.default].tolist()
    rows = timeline.rows(measured.trace, device.index)
    view = timeline.view(rows, start, end, 800)
    reaches = (rows.start_ps < end) & (rows.start_ps + rows.duration_ps > start)
    assert view.busy_ps.sum() == rows.duration_ps[reaches].sum()
    facts = {fact.op_id: fact for fact in timeline.op_facts(measured.trace, view.op)}
    assert set(facts) == set(view.op.tolist()) - {-1}
    top = timeline.longest(view, 5)
    assert [span.busy_ps for span in top] == sorted(view.busy_ps.tolist(), reverse=True)[:5]
    assert all(facts[span.op_id].family == span.family for span in top if span.op_id >= 0)


@pytest.mark.recordings
@pytest.mark.parametrize(
    ("file", "devices", "unit"),
    [("tpu_v6e_inference", 4, "step"), ("mi300x_conv_new", 8, "step"), ("nvidia_8gpu_tf2", 2, "run")],
)
def test_every_device_of_a_recording_has_its_steps(recordings: Path, file: str, devices: int, unit: str) -> None:
    measured = api.measured(str(recordings / f"{file}.xplane.pb"))
    found = timeline.devices(measured)
    assert len(found) == devices
    assert {each.unit for each in found} == {unit}
    for each in found:
        assert each.spans == len(timeline.rows(measured.trace, each.index))
        assert each.bounds_ps[0] <= each.steps.min() < each.steps.max() <= each.bounds_ps[1]
