"""Communication, transfers and waiting on hand-made traces whose truth is known, and on real recordings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler import api, results
from profiler.analysis import comm
from profiler.analysis.commfacts import sent
from profiler.hlo import parse
from profiler.hlo.groups import Groups, axes_of, groups_of, groups_text, parse_groups
from profiler.hlo.schema import hlo
from profiler.trace import AllocatorPeaks, Device, Timeline, Trace, Windows
from profiler.xplane.write import SpaceBuilder

MS = 1_000_000_000
Space = Callable[..., SpaceBuilder]
Saved = Callable[..., str]


def rows(report: results.CommReport) -> dict[tuple[str, str | None], results.CommRow]:
    return {(row.kind, row.where): row for row in report.rows}


def ms(*times: float) -> tuple[float, ...]:
    return tuple(round(time / MS, 6) for time in times)


def test_of_a_collective_half_hidden_half_is_exposed(tpu_space: Space, saved: Saved) -> None:
    """4 ms in flight on the async line, beside 2 ms of compute and a done that waits for the rest."""
    space = tpu_space(
        {
            "TPU:0": {
                "Steps": [("0", 0, 10 * MS)],
                "XLA Ops": [
                    ("fusion.0", 0, 6 * MS),
                    ("all-gather-start.1", 6 * MS, 1),
                    ("fusion.1", 6 * MS + 1, 2 * MS - 1),
                    ("all-gather-done.1", 8 * MS, 2 * MS),
                ],
                "Async XLA Ops": [("all-gather-start.1", 6 * MS, 4 * MS)],
            }
        }
    )
    found = api.comm(saved(space))
    (row,) = found.rows
    assert (row.category, row.kind, row.where, row.calls_per_step) == ("communication", "all-gather", None, 1)
    assert ms(row.in_flight_ps, row.exposed_ps, row.hidden_ps) == (4, 2, 2)
    assert ms(found.step_ps, found.compute_ps) == (10, 8)


def test_a_pair_without_an_async_line_is_in_flight_from_start_to_done(tpu_space: Space, saved: Saved) -> None:
    space = tpu_space(
        {
            "TPU:0": {
                "XLA Ops": [
                    ("all-gather-start.1", 0, MS),
                    ("fusion.1", MS, 3 * MS),
                    # nothing runs for a millisecond: what is in flight is exposed
                    ("all-gather-done.1", 5 * MS, 2 * MS),
                    ("fusion.2", 7 * MS, 3 * MS),
                ]
            }
        }
    )
    found = api.comm(saved(space))
    (row,) = found.rows
    assert ms(row.in_flight_ps, row.exposed_ps, row.hidden_ps) == (7, 4, 3)
    assert found.busy_ps == found.step_ps


def test_starts_in_one_iteration_and_dones_in_the_next_are_paired_in_order(tpu_space: Space, saved: Saved) -> None:
    events = [("collective-permute-start.1", 0, MS)]
    for step in range(1, 4):
        events += [
            ("collective-permute-start.1", 10 * step * MS, MS),
            ("collective-permute-done.1", (10 * step + 1) * MS, MS),
            ("fusion.1", (10 * step + 2) * MS, 8 * MS),
        ]
    found = api.comm(saved(tpu_space({"TPU:0": {"XLA Ops": events}})))
    (row,) = found.rows
    assert ms(found.step_ps) == (10,)
    assert ms(row.in_flight_ps, row.exposed_ps, row.hidden_ps) == (10, 2, 8)  # one is always in flight


def test_collectives_on_a_compute_stream_are_communication(saved: Saved) -> None:
    space = SpaceBuilder()
    plane = space.plane("/device:GPU:0")
    compute, other = plane.line("Stream #13(Compute)"), plane.line("Stream #14(Compute)")
    compute.event("gemm_fusion", 0, 4 * MS, stats={"hlo_op": "gemm_fusion.1", "program_id": 1})
    compute.event(
        "ncclDevKernel_AllReduce_Sum_bf16_RING", 4 * MS, 4 * MS, stats={"hlo_op": "all-reduce.1", "program_id": 1}
    )
    other.event("loop_fusion", 5 * MS, MS, stats={"hlo_op": "loop_fusion.1", "program_id": 1})
    found = api.comm(saved(space))
    row = rows(found)["all-reduce", None]
    assert ms(row.in_flight_ps, row.exposed_ps, row.hidden_ps) == (4, 3, 1)
    assert ms(found.compute_ps) == (5,)


def test_a_loop_and_its_body_are_counted_once(tpu_space: Space, saved: Saved) -> None:
    """A while of 10 ms that holds two ops of 4 ms is 10 ms, not 18."""
    ops = [("while.1", 0, 10 * MS), ("fusion.1", MS, 4 * MS), ("fusion.2", 5 * MS, 4 * MS)]
    found = api.comm(saved(tpu_space({"TPU:0": {"XLA Ops": ops}})))
    assert ms(found.step_ps, found.busy_ps, found.compute_ps) == (10, 10, 10)
    assert found.rows == ()
    assert found.totals == ()


def test_a_loop_body_on_another_line_is_counted_once(saved: Saved) -> None:
    """XLA:CPU runs loop bodies on other threads than the loop."""
    space = SpaceBuilder()
    plane = space.plane("/host:CPU")
    first, second = plane.line("tf_XLAEigen/1"), plane.line("tf_XLAEigen/2")
    first.event("while.1", 0, 10 * MS, stats={"hlo_op": "while.1", "program_id": 1})
    second.event("dot.1", MS, 4 * MS, stats={"hlo_op": "dot.1", "program_id": 1})
    second.event("all-reduce.1", 5 * MS, 4 * MS, stats={"hlo_op": "all-reduce.1", "program_id": 1})
    found = api.comm(saved(space))
    assert ms(found.busy_ps) == (10,)
    assert ms(rows(found)["all-reduce", None].exposed_ps) == (4,)


def test_copies_to_and_from_host_memory_are_told_apart(saved: Saved) -> None:
    space = SpaceBuilder()
    ops = space.plane("/device:TPU:0", stats={"device_type_string": "TPU v6 Lite"}).line("XLA Ops")
    device, host = "bf16[1024,1024]{1,0:T(8,128)(2,1)}", "bf16[1024,1024]{1,0:T(8,128)(2,1)S(5)}"
    cut = "((bf16[48,1024,1024]{2,1,0:S(5)}, bf16[1,1024,1024]{2,1,0}, s32[]), …)"
    for number, (op, shape, start, duration) in enumerate(
        (
            ("copy-start.1", f"({device}, {host}, u32[]{{:S(2)}})", 0, 0),
            ("copy-done.1", device, 0, 2 * MS),
            ("copy-start.2", f"({host}, {device}, u32[]{{:S(2)}})", 2 * MS, 0),
            ("add.1", device, 2 * MS, 3 * MS),
            ("copy-done.2", host, 5 * MS, MS),
            ("dynamic-update-slice-start.3", cut, 6 * MS, 0),
            ("dynamic-update-slice-done.3", "bf16[48,1024,1024]{2,1,0:S(5)}", 6 * MS, MS),
        ),
        1,
    ):
        opcode = op.split(".")[0].replace("dynamic-update-slice", "async")
        stats = {"program_id": 7, "symbol_id": number, "hlo_category": opcode, "shape_with_layout": shape}
        text = f"%{op} = {shape} {opcode}({host} %x)"
        ops.event(text, start, duration, display_name=op, metadata_stats=stats)
    found = rows(api.comm(saved(space)))
    came, went = found["host transfer", "from host"], found["host transfer", "to host"]
    assert (came.calls_per_step, came.bytes_per_step) == (1, 2 << 20)
    assert ms(came.in_flight_ps, came.exposed_ps) == (2, 2)
    assert (went.calls_per_step, went.bytes_per_step) == (2, 4 << 20)
    assert ms(went.in_flight_ps, went.exposed_ps, went.hidden_ps) == (5, 2, 3)
    assert went.bytes_per_s == pytest.approx((4 << 20) / 5e-3)


def test_waiting_for_input_is_named(tpu_space: Space, saved: Saved) -> None:
    ops = [("infeed.1", 0, 3 * MS), ("fusion.1", 3 * MS, 7 * MS)]
    found = api.comm(saved(tpu_space({"TPU:0": {"XLA Ops": ops}})))
    assert [(row.cause, *ms(row.time_ps)) for row in found.waits] == [(comm.INPUT, 3)]


def test_idle_time_has_the_cause_that_can_be_told(tpu_space: Space, saved: Saved) -> None:
    space = tpu_space(
        {
            "TPU:0": {
                "Steps": [("0", 0, 20 * MS), ("1", 20 * MS, 20 * MS)],
                "XLA Modules": [
                    ("jit_f(7)", 0, 8 * MS),
                    ("jit_f(7)", 8 * MS + 1000, 4 * MS),
                    ("jit_f(7)", 20 * MS, MS),
                ],
                "XLA Ops": [
                    ("fusion.1", 0, 5 * MS),
                    ("fusion.2", 6 * MS, 2 * MS),
                    ("fusion.1", 8 * MS + 1000, 4 * MS),
                    ("fusion.1", 20 * MS, MS),
                ],
            }
        }
    )
    found = api.comm(saved(space))
    causes = {row.cause: row.time_ps for row in found.waits}
    assert causes == {comm.HOST: 8 * MS - 1000, comm.WITHIN: MS, comm.BETWEEN: 1000}
    assert sum(causes.values()) == found.step_ps - found.busy_ps


# --- groups and bytes -------------------------------------------------------------------------------------------------

MESH = {"data": 2, "fsdp": 4}


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", "fsdp"),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", "data"),
        ("replica_groups=[1,8]<=[8]", "data, fsdp"),
        ("replica_groups=[2,4]<=[8]", "fsdp"),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", "data"),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "part of fsdp"),
        ("replica_groups={{0,1},{2,3}}", None),
        ("source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", "fsdp"),
    ],
)
def test_the_axes_of_groups_are_those_along_which_members_differ(text: str, axis: str | None) -> None:
    assert groups_text(f"%x = f32[8] all-gather(f32[2] %y), {text}, dimensions={{0}}") == text
    found = parse_groups(text)
    assert found is not None
    assert axes_of(found, MESH) == axis
    assert axes_of(found, {}) is None


def test_no_groups_are_all_devices_and_a_program_may_name_its_axes_itself() -> None:
    assert axes_of(Groups(()), MESH) == "data, fsdp"
    assert axes_of(Groups((), axes=("tensor",)), {}) == "tensor"
    assert axes_of(Groups((), axes=("axis_0",)), {}) is None  # made up by the compiler


def test_groups_are_read_from_every_form_that_a_program_has() -> None:
    proto = hlo().HloModuleProto(name=b"m", entry_computation_name=b"main")
    computation = proto.computations.add(name=b"main", id=1)
    for number in range(1, 6):
        each = computation.instructions.add(id=number, name=b"all-gather.%d" % number, opcode=b"all-gather")
        if number == 1:
            for ids in ((0, 1), (2, 3)):
                each.replica_groups.add(replica_ids=ids)
        elif number == 2:
            each.collective_device_list.replica_groups.add(replica_ids=(0, 1, 2, 3))
        elif number == 3:
            iota = each.iota_collective_device_list
            iota.num_replica_groups, iota.num_devices_per_group = 2, 2
            iota.iota_reshape_dims.extend((2, 2))
            iota.iota_transpose_perm.extend((1, 0))
        elif number == 4:
            named = each.mesh_axes_replica_group_list
            for name in (b"data", b"fsdp"):
                named.mesh.axes.add(name=name, size=2)
            named.axes.add(mesh_axis_index=0)
    inner = proto.computations.add(name=b"inside", id=2)
    inner.instructions.add(id=10, name=b"all-reduce.1", opcode=b"all-reduce").replica_groups.add(replica_ids=(0, 2))
    outer = computation.instructions.add(id=6, name=b"async-start", opcode=b"async-start")
    outer.called_computation_ids.append(2)
    module = parse(proto.SerializeToString())
    found = [groups_of(each) for each in module.computations["main"].instructions]
    assert [each and each.ids for each in found] == [
        ((0, 1), (2, 3)),
        ((0, 1, 2, 3),),
        ((0, 2), (1, 3)),
        ((0, 2), (1, 3)),
        (),
        ((0, 2),),
    ]
    assert found[3] is not None
    assert found[3].axes == ("data",)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all-gather", 75), ("all-to-all", 75), ("all-reduce", 150), ("reduce-scatter", 300), ("collective-permute", 100)],
)
def test_what_a_device_sends_follows_from_the_result_and_the_members(kind: str, expected: float) -> None:
    assert sent(kind, 100, 4) == expected
    assert sent(kind, None, 4) is None
    assert kind == "collective-permute" or sent(kind, 100, None) is None


def test_bandwidth_is_what_is_sent_over_the_time_in_flight(saved: Saved) -> None:
    space = SpaceBuilder()
    ops = space.plane("/device:TPU:0", stats={"device_type_string": "TPU v6 Lite"}).line("XLA Ops")
    shape = "bf16[1024,1024]{1,0}"
    text = f"%all-gather.1 = {shape} all-gather(bf16[256,1024]{{1,0}} %x), replica_groups=[2,4]<=[8], dimensions={{0}}"
    stats = {"program_id": 7, "symbol_id": 1, "hlo_category": "all-gather", "shape_with_layout": shape}
    ops.event(text, 0, MS, display_name="all-gather.1", metadata_stats=stats)
    space.plane("/host:run_info", stats={"run_info": '{"mesh": {"data": 2, "fsdp": 4}}'})
    found = api.comm(saved(space))
    (row,) = found.rows
    assert (row.where, row.group_size, row.bytes_per_step) == ("fsdp", 4, 0.75 * (2 << 20))
    assert row.bytes_per_s == pytest.approx(0.75 * (2 << 20) / 1e-3)
    assert found.link_bytes_per_s == 400e9
    assert row.link_fraction == pytest.approx(0.75 * (2 << 20) / 1e-3 / 400e9)


# --- invariants -------------------------------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200), st.integers(0, 80)), max_size=14)


@settings(max_examples=300, deadline=None)
@given(st.lists(spans, min_size=2, max_size=4).filter(any), st.lists(st.integers(1, 90), min_size=1, max_size=3))
def test_exposed_and_hidden_are_what_is_in_flight_and_all_parts_sum_to_the_step(lanes: Any, lengths: Any) -> None:
    """Any spans on any lines, of compute, two collectives, two transfers and a loop; the last line is in flight."""
    families = ["dense matmul", "all-gather", "all-reduce", "host transfer", "async copy", "control flow"]
    edges = np.cumsum([0, *lengths])
    trace = trace_of(lanes, list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)), families)
    from profiler.analysis.times import step_times

    times = step_times(trace)
    found, totals = comm._rows(trace, times, {}, None)
    for row in (*found, *totals):
        assert math.isclose(row.exposed_ps + row.hidden_ps, row.in_flight_ps, abs_tol=1e-6)
        assert row.hidden_ps >= -1e-6
        assert row.in_flight_ps <= times.step_ps + 1e-6
    exposed = times.ops.filter(pl.col("category").is_in(comm.KINDS))["time_ps"].sum()
    assert math.isclose(sum(row.exposed_ps for row in found), exposed, abs_tol=1e-6)
    everything = [row for row in totals if row.category is None]
    assert math.isclose(sum(row.exposed_ps for row in everything), exposed, abs_tol=1e-6)
    causes = [
        row
        for row in comm._waits(trace, times, {})
        if row.cause in (comm.HOST, comm.BETWEEN, comm.WITHIN, comm.UNKNOWN)
    ]
    assert math.isclose(sum(row.time_ps for row in causes), times.idle_ps, abs_tol=1e-6)


def trace_of(lanes: Any, windows: list[tuple[int, int]], families: list[str]) -> Trace:
    from profiler.analysis.families import rank

    events = [(op, start, length, lane) for lane, part in enumerate(lanes) for op, start, length in part]
    op, start, length, lane = (np.array(column, np.int64) for column in zip(*events, strict=True))
    lane = np.where(lane == len(lanes) - 1, -1, lane)
    ops = pl.DataFrame(
        {
            "op_id": np.arange(len(families), dtype=np.int32),
            "family": families,
            "rank": np.array([rank(each) for each in families], np.uint8),
            "phase": pl.Series([None] * len(families), dtype=pl.String),
            "program_id": pl.Series([None] * len(families), dtype=pl.String),
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
            Timeline(start, length, op.astype(np.int32), lane.astype(np.int32), lane >= 0, np.full(len(op), -1)),
        ),
        windows=(Windows(np.array(windows, np.int64), "test", "step"),),
        allocator=AllocatorPeaks(),
        programs={},
        run_info=None,
        versions={},
        warnings=(),
    )


def test_union_merges_what_touches_or_overlaps() -> None:
    merged = comm.union(np.array([5, 0, 2, 9, 7]), np.array([7, 3, 4, 9, 8]))
    assert merged.tolist() == [[0, 4], [5, 8]]


# --- both sides -------------------------------------------------------------------------------------------------------


@pytest.mark.recordings
@pytest.mark.parametrize("pair", [("tpu_v6e_inference",) * 2, ("tpu_qwen3_serving_bf16", "tpu_qwen3_serving_fp4")])
def test_exposed_sums_are_those_of_the_split_of_the_change(recordings: Path, pair: tuple[str, str]) -> None:
    diff = api.diff(*(str(recordings / f"{name}.xplane.pb") for name in pair))
    assert diff.communication is not None
    for side in ("baseline", "optimized"):
        split: dict[tuple[str, str], float] = defaultdict(float)
        for part in diff.contributions:
            if part.category in comm.KINDS:
                split[part.category, part.family] += getattr(part, f"{side}_time_ps")
        ours: dict[tuple[str, str], float] = defaultdict(float)
        for row in diff.communication.rows:
            ours[row.category, row.kind] += getattr(row, f"{side}_exposed_ps") or 0.0
        for key in {*split, *ours}:
            assert math.isclose(ours[key], split[key], rel_tol=1e-9, abs_tol=1e-3)


@pytest.mark.recordings
def test_the_inference_recording_waits_for_copies_from_and_to_the_host(recordings: Path) -> None:
    """XProf: 315.12 s of self time on four cores, 304.03 of them copy-done, of 92 s recorded."""
    found = api.comm(str(recordings / "tpu_v6e_inference.xplane.pb"))
    assert found.whole is not None
    (copies, psum) = found.whole.rows
    assert (copies.kind, psum.kind) == ("host transfer", "all-reduce")
    assert copies.time_ps * 4 == pytest.approx(304.03e12, rel=1e-3)
    assert psum.time_ps * 4 == pytest.approx(1.46e12, rel=1e-2)
    assert 0.82 < copies.fraction < 0.84
    assert copies.busy_fraction == pytest.approx(0.965, abs=0.002)
    came, went = rows(found)["host transfer", "from host"], rows(found)["host transfer", "to host"]
    assert came.bytes_per_step == went.bytes_per_step == 3 * 5 * (1 << 30)
    assert (came.exposed_ps + went.exposed_ps) / found.step_ps == pytest.approx(0.97, abs=0.001)
    summary = api.summary(str(recordings / "tpu_v6e_inference.xplane.pb"))
    assert summary.whole == found.whole


@pytest.mark.recordings
def test_the_serving_pairs_all_reduces_are_exposed(recordings: Path) -> None:
    found = api.comm(str(recordings / "tpu_qwen3_serving_bf16.xplane.pb"), api.Options(device="TPU:0"))
    row = rows(found)["all-reduce", None]
    assert row.exposed_ps == pytest.approx(3.43e9, rel=0.01)
    assert row.group_size == 2
    # Without an async line nobody knows how long a copy within the device took: no bandwidth is made up.
    assert rows(found)["async copy", None].bytes_per_s is None
