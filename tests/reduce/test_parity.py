"""The op table against XProf's hlo_stats, for every recording that it could read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import profiler

pytestmark = pytest.mark.recordings

NAMES = (
    "tpu_v6e_inference",
    "mi300x_conv_old",
    "mi300x_conv_new",
    "gfx950_fused_attention",
    "tpu_qwen3_serving_bf16",
    "tpu_qwen3_serving_fp4",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_xprof_is_there_with_equal_counts_and_times(recordings: Path, name: str) -> None:
    expected = json.loads((recordings / "expected_hlo_stats.json").read_text())[f"{name}.xplane.pb"]
    table = profiler.ops(str(recordings / f"{name}.xplane.pb"))
    rows = {(row["program_id"], row["op"]): row for row in table.ops.iter_rows(named=True)}
    assert len(rows) == table.ops.height == expected["rows"]
    for row in expected["ops"]:
        mine = rows[row["program_id"], row["hlo_op"]]
        assert mine["occurrences"] == row["occurrences"], row
        assert mine["category"] == row["category"], row
        assert mine["total_time_ps"] == pytest.approx(row["total_time_us"] * 1e6, rel=1e-6), row
        assert mine["self_time_ps"] == pytest.approx(row["self_time_us"] * 1e6, rel=1e-6), row


@pytest.mark.parametrize("name", NAMES)
def test_totals_by_category_are_those_of_xprof(recordings: Path, name: str) -> None:
    expected = json.loads((recordings / "expected_hlo_stats.json").read_text())[f"{name}.xplane.pb"]
    ops = profiler.ops(str(recordings / f"{name}.xplane.pb")).ops
    assert ops["self_time_ps"].sum() == pytest.approx(expected["self_time_us_total"] * 1e6, rel=1e-6)
    mine = {category: part for (category,), part in ops.partition_by("category", as_dict=True).items()}
    assert set(mine) == set(expected["by_category"])
    for category, row in expected["by_category"].items():
        assert mine[category]["occurrences"].sum() == row["occurrences"]
        assert mine[category]["self_time_ps"].sum() == pytest.approx(row["self_time_us"] * 1e6, rel=1e-6, abs=1)


def test_kernels_that_lost_their_op_stand_beside_the_table_not_in_it(recordings: Path) -> None:
    table = profiler.ops(str(recordings / "mi300x_conv_new.xplane.pb"))
    loose = {row["op"]: row["occurrences"] for row in table.unattributed.iter_rows(named=True)}
    assert loose == {"__amd_rocclr_copyBuffer.kd": 35, "Im3d2Col.kd": 1, "input_transpose_fusion_1.kd": 1}


def test_a_program_without_hlo_has_kernels_only(recordings: Path) -> None:
    table = profiler.ops(str(recordings / "nvidia_8gpu_tf2.xplane.pb"))
    assert table.ops.height == 0
    assert table.unattributed.height > 5
    assert "no_hlo_ops" in {note.code for note in table.warnings}
