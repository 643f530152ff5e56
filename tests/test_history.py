"""A folder of runs over time: which there are, where a figure changes for good, and what changed with it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

import sample_profiles
from profiler import api
from profiler.xplane.locate import host_name
from profiler.xplane.runs import facts, reduced, runs

SAMPLES = [
    "tiny-qwen3/baseline.xplane.pb.gz", "cpu-remat/baseline.xplane.pb.gz", "gpt-oss-20b/baseline.xplane.pb.gz",
]  # fmt: skip


# --- reduced runs among the runs of a folder


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_reduced_run_says_of_itself_what_the_recording_says(sample: str, tmp_path: Path) -> None:
    original = sample_profiles.path(sample)
    (tmp_path / "runs").mkdir()
    api.reduce(str(original), tmp_path / "runs" / "one.parquet")
    (found,) = runs(tmp_path).runs
    assert (found.name, reduced(found), found.stamped) == ("runs/one", True, False)
    assert found.path == str(tmp_path / "runs" / "one.parquet")
    (plain,) = runs(original).runs
    assert (plain.name, reduced(plain)) == (host_name(original), False)
    said = facts(plain)
    assert facts(found) == (said if said.devices else replace(said, devices=1))  # a CPU has no device plane


def test_a_damaged_reduced_run_says_so(tmp_path: Path) -> None:
    api.reduce(str(sample_profiles.path(SAMPLES[0])), tmp_path / "2026_01_02_03_04_05.parquet")
    (tmp_path / "2026_01_02_03_04_05.parquet" / "hosts.parquet").write_bytes(b"no table")
    (found,) = runs(tmp_path).runs
    assert (found.stamped, found.started) == (True, datetime(2026, 1, 2, 3, 4, 5).astimezone())
    assert "damaged reduced run" in (facts(found).error or "")
