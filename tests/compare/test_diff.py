"""The diffs of real pairs say what is known to be true of them; sides that do not compare are refused."""

from __future__ import annotations

import json

import pytest

import profiler
from profiler.api import Options
from profiler.errors import NotComparableError, UsageError
from profiler.results import Diff


def contribution(diff: Diff, family: str):
    parts = [part for part in diff.contributions if part.family == family]
    return (sum(part.baseline_time_ps for part in parts) / 1e9, sum(part.optimized_time_ps for part in parts) / 1e9)


@pytest.fixture(scope="module")
def serving(recordings) -> Diff:
    names = (f"tpu_qwen3_serving_{kind}.xplane.pb" for kind in ("bf16", "fp4"))
    return profiler.diff(*(str(recordings / name) for name in names), Options(device="TPU:0"))


@pytest.mark.recordings
def test_serving_device_time_fell_by_five_per_cent(serving: Diff) -> None:
    busy = [
        sum(row.time_ps_per_step for row in side.families if row.category != "idle") / 1e9
        for side in (serving.baseline, serving.optimized)
    ]
    assert busy == pytest.approx([67.209, 63.780], abs=5e-4)
    assert serving.verdict.startswith("Faster: device time 67.21 ms → 63.78 ms (−5.1 %)")


@pytest.mark.recordings
def test_serving_dense_matmuls_were_replaced_by_quantized_kernels(serving: Diff) -> None:
    rows = serving.ops.filter(serving.ops["match"] == "replaced")
    assert set(rows["baseline_family"]) == {"dense matmul"}
    assert set(rows["family"]) == {"quantized matmul"}
    # XProf's convolution fusions, 42.31 ms, hold the logits matmul of 0.29 ms too: that one stayed what it was.
    logits = contribution(serving, "loss and logits")
    assert rows["baseline_time_ps"].sum() / 1e9 + logits[0] == pytest.approx(42.31, abs=0.01)
    assert rows["optimized_time_ps"].sum() / 1e9 == pytest.approx(25.11, abs=0.01)
    assert rows["baseline_calls"].to_list() == rows["optimized_calls"].to_list()


@pytest.mark.recordings
def test_serving_attention_is_one_changed_op_although_its_kernel_has_a_new_name(serving: Diff) -> None:
    (row,) = serving.ops.filter(serving.ops["family"] == "attention").iter_rows(named=True)
    assert row["match"] == "changed"
    assert "bkvp_64" in row["baseline_op"] and "bkvp_32" in row["optimized_op"]
    assert (row["baseline_time_ps"] / 1e9, row["optimized_time_ps"] / 1e9) == pytest.approx((17.01, 20.54), abs=0.01)


@pytest.mark.recordings
def test_serving_all_reduce_is_matched_and_hardly_changed(serving: Diff) -> None:
    assert contribution(serving, "all-reduce") == pytest.approx((3.43, 3.53), abs=0.02)
    rows = serving.ops.filter(serving.ops["family"] == "all-reduce")
    assert set(rows["match"]) <= {"same", "changed"}


@pytest.mark.recordings
def test_serving_is_matched_almost_whole_and_little_is_unclassified(serving: Diff) -> None:
    assert serving.baseline_matched_fraction >= 0.95
    assert serving.optimized_matched_fraction >= 0.80
    busy = 67.209 + 63.780
    together = (67.209 * serving.baseline_matched_fraction + 63.780 * serving.optimized_matched_fraction) / busy
    assert serving.matched_time_fraction == pytest.approx(together, rel=1e-3)
    for side in (serving.baseline, serving.optimized):
        assert sum(row.fraction for row in side.families if row.family == "other") < 0.05


@pytest.mark.recordings
def test_serving_fusions_around_the_quantized_kernels_are_named_as_added(serving: Diff) -> None:
    added = serving.ops.filter(serving.ops["match"] == "added")
    parts = added.partition_by("family", as_dict=True).items()
    by_family = {family: part["optimized_time_ps"].sum() / 1e9 for (family,), part in parts}
    assert by_family["norm / elementwise"] == pytest.approx(5.08, abs=0.1)
    assert added["optimized_time_ps"].sum() / 1e9 == pytest.approx(6.7, abs=0.2)
    removed = serving.ops.filter(serving.ops["match"] == "removed")
    assert removed["baseline_time_ps"].sum() / 1e9 < 0.5


@pytest.mark.recordings
def test_serving_flops_that_the_compiler_no_longer_counts_are_no_loss_of_mfu(serving: Diff) -> None:
    assert serving.baseline.compiler_tflops_per_step == pytest.approx(31.98, abs=0.005)
    assert serving.optimized.compiler_tflops_per_step == pytest.approx(0.028, abs=0.0005)
    assert serving.delta.mfu_points is None
    assert "not a change in MFU" in serving.findings[-1].title


@pytest.mark.recordings
def test_a_pair_that_recorded_one_gpu_of_eight_and_all_is_compared_per_device(recordings) -> None:
    diff = profiler.diff(*(str(recordings / f"mi300x_conv_{kind}.xplane.pb") for kind in ("old", "new")))
    means = {
        row["optimized_op"]: (row["baseline_mean_ps"] / 1e6, row["optimized_mean_ps"] / 1e6)
        for row in diff.ops.filter(diff.ops["match"] != "added").iter_rows(named=True)
    }
    assert means["input_transpose_fusion"] == pytest.approx((390.2, 358.6), abs=0.06)
    assert means["cudnn-conv.1"] == pytest.approx((154.0, 158.6), abs=0.06)
    assert "devices_differ" in {note.code for note in diff.warnings}
    assert diff.verdict.startswith(
        "No clear change, within noise: device time 717.30 µs → 700.41 µs (−2.4 %) per execution and device"
    )
    # The host's idle time between executions is no part of the change.
    assert {part.category for part in diff.contributions} == {"compute"}
    assert diff.delta.significant is False
    assert diff.baseline.memory.window_peak_bytes == diff.optimized.memory.window_peak_bytes == 1732169984


@pytest.mark.recordings
@pytest.mark.parametrize("name", ["gfx950_fused_attention", "tpu_v6e_inference", "nvidia_8gpu_tf2"])
def test_a_recording_against_itself_shows_no_change(recordings, name) -> None:
    path = str(recordings / f"{name}.xplane.pb")
    diff = profiler.diff(path, path)
    assert diff.verdict.startswith("No change")
    assert diff.matched_time_fraction == 1
    assert not diff.delta.significant
    assert diff.findings == ()
    assert all(part.time_ps == 0 for part in diff.contributions)


def steps(tpu_space, lengths: int, *, kind: str = "TPU v6 Lite", info: dict | None = None):
    marks = [(str(i), lengths * i, lengths) for i in range(5)]
    ops = [("add.1", lengths * i, lengths // 2) for i in range(5)]
    space = tpu_space({"TPU:0": {"XLA Ops": ops, "Steps": marks}}, device_type_string=kind)
    if info:
        space.plane("/host:run_info", stats={"run_info": json.dumps(info)})
    return space


def test_a_longer_step_with_a_bigger_batch_is_judged_by_the_work_it_does(tpu_space, saved) -> None:
    base = saved(steps(tpu_space, 5_290_000), "base.xplane.pb")
    opt = saved(steps(tpu_space, 6_100_000), "opt.xplane.pb")
    flops = (1219.56e-6, 1829.35e-6)  # the qwen case, a million times smaller
    diff = profiler.diff(base, opt, *(Options(model_tflops=each, peak_tflops=1153.5) for each in flops))
    assert diff.normalization == "flop"
    assert (diff.baseline.mfu, diff.optimized.mfu) == pytest.approx((0.20, 0.26), abs=5e-4)
    assert diff.delta.step_time_ratio == pytest.approx(6.10 / 5.29)
    assert diff.delta.throughput_ratio == pytest.approx(1.30, abs=5e-3)
    assert sum(part.mfu_points for part in diff.contributions) == pytest.approx(diff.delta.mfu_points, abs=1e-9)
    assert diff.verdict.startswith("More efficient: MFU 19.99 % → 26.00 % (+6.01 points)")
    assert "for 1.50× the work" in diff.verdict


def test_per_step_the_time_is_split_and_not_the_mfu_when_the_work_grew(tpu_space, saved) -> None:
    base, opt = saved(steps(tpu_space, 1000), "b.xplane.pb"), saved(steps(tpu_space, 1500), "o.xplane.pb")
    diff = profiler.diff(
        base, opt, Options(model_tflops=1e-9, normalize="step"), Options(model_tflops=2e-9, normalize="step")
    )
    assert diff.normalization == "step"
    assert all(part.mfu_points is None for part in diff.contributions)
    assert sum(part.time_ps for part in diff.contributions) == pytest.approx(500)
    assert "mfu_not_split" in {note.code for note in diff.warnings}


def test_tokens_normalise_where_flops_are_unknown(tpu_space, saved) -> None:
    base, opt = saved(steps(tpu_space, 1000), "b.xplane.pb"), saved(steps(tpu_space, 1500), "o.xplane.pb")
    diff = profiler.diff(base, opt, Options(tokens_per_step=100), Options(tokens_per_step=200))
    assert (diff.normalization, diff.delta.throughput_ratio) == ("token", pytest.approx(4 / 3))
    assert diff.delta.optimized_time_ps == 750
    assert sum(part.time_ps for part in diff.contributions) == pytest.approx(-250)


def test_knobs_that_differ_are_listed_with_nested_keys(tpu_space, saved) -> None:
    base = {"config": {"remat_policy": "full", "student_overrides": {"head_dim": 128, "heads": 32}}}
    opt = {
        "config": {"remat_policy": "custom", "student_overrides": {"head_dim": 256, "heads": 32}, "context": "device"}
    }
    paths = [saved(steps(tpu_space, 1000, info=info), f"{i}.xplane.pb") for i, info in enumerate((base, opt))]
    knobs = [(knob.key, knob.baseline, knob.optimized) for knob in profiler.diff(*paths).knobs]
    assert knobs == [
        ("context", "remat", "device"),  # its default
        ("remat_policy", "full", "custom"),
        ("student_overrides.head_dim", 128, 256),
    ]


@pytest.mark.parametrize(
    ("optimized", "message"),
    [
        ({"kind": "TPU v5"}, "the devices differ: TPU v6 Lite against TPU v5"),
        ({"info": {"kind": "compiled"}}, "one side is recorded, the other compiled"),
    ],
)
def test_sides_that_do_not_compare_are_refused_until_forced(tpu_space, saved, optimized, message) -> None:
    base = saved(steps(tpu_space, 1000), "base.xplane.pb")
    opt = saved(steps(tpu_space, 1000, **optimized), "opt.xplane.pb")
    with pytest.raises(NotComparableError, match=message) as caught:
        profiler.diff(base, opt)
    assert caught.value.exit_code == 4
    forced = profiler.diff(base, opt, Options(force=True))
    assert not forced.comparable
    assert any(message in note.message for note in forced.warnings)


def test_a_peak_that_differs_needs_force_and_is_a_contribution(tpu_space, saved) -> None:
    base = saved(steps(tpu_space, 1_000_000), "base.xplane.pb")
    opt = saved(steps(tpu_space, 1_000_000, kind="TPU v5"), "opt.xplane.pb")
    diff = profiler.diff(base, opt, Options(force=True, model_tflops=1e-4))
    assert {part.category for part in diff.contributions} >= {"peak"}
    assert sum(part.mfu_points for part in diff.contributions) == pytest.approx(diff.delta.mfu_points, abs=1e-9)


def test_a_normalisation_that_is_not_known_is_refused(tpu_space, saved) -> None:
    path = saved(steps(tpu_space, 1000))
    with pytest.raises(UsageError, match="model FLOPs"):
        profiler.diff(path, path, Options(normalize="flop"))
    with pytest.raises(UsageError, match="tokens"):
        profiler.diff(path, path, Options(normalize="token"))


def test_more_than_a_hundred_per_cent_is_called_impossible(tpu_space, saved) -> None:
    summary = profiler.summary(saved(steps(tpu_space, 1000)), Options(model_tflops=1))
    assert summary.mfu > 1
    assert "mfu_impossible" in {note.code for note in summary.warnings}
