"""Every call of a row's ops, and the mean that the diff states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_profiles
from profiler import api
from profiler.analysis.calls import BINS, Calls, calls, histograms, summarize
from profiler.analysis.opdetail import members, scale_of

SAMPLES = {
    "qwen3-30b": "",
    "tiny-qwen3": ".gz",
    "qwen3-30b-pdbs8": ".gz",
    "gpt-oss-20b": ".gz",
    "tiny-gpt-oss": ".gz",
    "cpu-remat": ".gz",
}
RECORDED = {
    "tpu": ("tpu_qwen3_serving_bf16", "tpu_qwen3_serving_fp4"),
    "gpu": ("mi300x_conv_old", "mi300x_conv_new"),
    "tpu-four": ("tpu_v6e_inference", "tpu_v6e_inference"),
}


@pytest.fixture(scope="module", params=[*SAMPLES, *RECORDED])
def pair(request, recordings):
    if request.param in SAMPLES:
        end = f".xplane.pb{SAMPLES[request.param]}"
        paths = [sample_profiles.path(f"{request.param}/{side}{end}") for side in ("baseline", "optimized")]
    else:
        paths = [recordings / f"{name}.xplane.pb" for name in RECORDED[request.param]]
    sides = [api.measured(str(path)) for path in paths]
    return *sides, api.diff(*sides, api.Options(force=True))


def test_the_mean_of_the_calls_is_that_of_the_diff(pair) -> None:
    baseline, optimized, diff = pair
    scale = scale_of(baseline, optimized, diff)
    held = members(baseline, optimized, diff)
    assert len(held) == diff.ops.height
    for row, ids in zip(diff.ops.iter_rows(named=True), held, strict=True):
        for name, side, mine, factor in (
            ("baseline", baseline, ids.baseline, 1.0),
            ("optimized", optimized, ids.optimized, scale),
        ):
            found = calls(side, mine)
            summary = summarize(found, factor)
            stated = row[f"{name}_mean_ps"]
            assert (summary is None) == (stated is None)
            assert found.weight.sum() == pytest.approx(row[f"{name}_calls"], rel=1e-9)
            if summary:
                assert summary.mean_ps == pytest.approx(stated, rel=1e-9)
                assert summary.min_ps <= summary.p10_ps <= summary.median_ps <= summary.p90_ps <= summary.max_ps


def test_the_ops_of_all_rows_are_those_of_the_sides_each_once(pair) -> None:
    baseline, optimized, diff = pair
    held = members(baseline, optimized, diff)
    for side, mine in ((baseline, [each.baseline for each in held]), (optimized, [each.optimized for each in held])):
        ids = [op_id for each in mine for op_id in each]
        assert len(ids) == len(set(ids))
        table = side.times.ops
        assert set(ids) >= set(table.filter(table["time_ps"] > 0)["op_id"])


def test_calls_are_of_the_steady_steps_of_their_device(pair) -> None:
    baseline, _, _ = pair
    found = calls(baseline, range(baseline.trace.ops.height))
    steps = {device: len(spans) for device, spans in baseline.times.spans.items()}
    assert found.duration_ps.dtype == np.int64
    assert all(
        0 <= step < steps[device] for device, step in zip(found.device.tolist(), found.step.tolist(), strict=True)
    )


def test_devices_count_equally_however_many_steps_they_have(tpu_space, saved) -> None:
    def lines(length: int, count: int) -> dict:
        return {
            "Steps": [(str(n), 1000 * n, 1000) for n in range(count)],
            "XLA Ops": [("copy.1", 1000 * n, length) for n in range(count)],
        }

    space = tpu_space({"TPU:0": lines(100, 2), "TPU:1": lines(400, 8)})
    side = api.measured(saved(space))
    found = calls(side, range(side.trace.ops.height))
    summary = summarize(found)
    assert summary is not None
    assert (summary.count, summary.median_ps) == (len(found), 400)
    assert summary.mean_ps == pytest.approx(250)


def one_side(durations: list[int]) -> Calls:
    times = np.array(durations, np.int64)
    none = np.zeros(len(times), np.int32)
    return Calls(times, none, none, none, np.ones(len(times)))


TIMES = st.lists(st.integers(0, 10**12), max_size=30)


@given(TIMES, TIMES, st.floats(0.1, 10))
def test_every_call_is_in_one_bin_of_edges_that_both_sides_share(first, second, scale: float) -> None:
    bars = histograms([one_side(first), one_side(second)], [1.0, scale])
    known = [each for each in bars if each is not None]
    assert [each is not None for each in bars] == [bool(first), bool(second)]
    for durations, each in zip((first, second), bars, strict=True):
        if each is not None:
            assert sum(each.counts) == len(durations)
            assert sum(each.shares) == pytest.approx(1)
            assert len(each.edges_ps) == len(each.counts) + 1 <= BINS + 1
            assert all(low < high for low, high in zip(each.edges_ps, each.edges_ps[1:], strict=False))
            assert each.edges_ps == known[0].edges_ps


def test_bins_grow_where_calls_differ_by_more_than_a_hundred_times() -> None:
    near, _ = histograms([one_side([100, 9000]), one_side([])], [1.0, 1.0])
    far, _ = histograms([one_side([0, 100, 11000]), one_side([])], [1.0, 1.0])
    assert near is not None and far is not None
    assert (near.logarithmic, far.logarithmic) == (False, True)
    widths = np.diff(far.edges_ps[1:])
    assert (np.diff(widths) > 0).all()


def test_calls_of_one_length_are_one_bar() -> None:
    bars, _ = histograms([one_side([500, 500]), one_side([])], [1.0, 1.0])
    assert bars is not None
    assert bars.counts == (2,)
    assert bars.edges_ps[0] < 500 < bars.edges_ps[1]


def test_no_calls_have_no_summary() -> None:
    assert summarize(one_side([])) is None
    assert histograms([one_side([]), one_side([])], [1.0, 1.0]) == (None, None)
