"""The case, compiled at full size: what the samples say is what the case says and what the README quotes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import profiler
import sample_profiles
from profiler.results import Diff

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
MB = 1_000_000
PAIRS = {"qwen3-30b": ".xplane.pb", "qwen3-30b-pdbs8": ".xplane.pb.gz", "gpt-oss-20b": ".xplane.pb.gz"}
# Splash forward calls of a step: of either forward pass on both sides, and re-run before and after.
RERUNS = {"qwen3-30b": (48, 48, 0), "qwen3-30b-pdbs8": (48, 48, 48), "gpt-oss-20b": (24, 24, 0)}
# Static peak in GiB of the baseline and of the optimized side, and what lies on the host.
PEAKS = {
    "qwen3-30b": ((57.46, 0), (85.52, 0)),
    "qwen3-30b-pdbs8": ((85.27, 12), (85.14, 12)),
    "gpt-oss-20b": ((51.64, 0), (54.90, 0)),
}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request) -> tuple[str, Diff]:
    return request.param, profiler.diff(*map(str, sides(request.param)))


def sides(pair: str) -> list[Path]:
    return [sample_profiles.path(f"{pair}/{side}{PAIRS[pair]}") for side in ("baseline", "optimized")]


def calls(side, family: str, phase: str) -> float:
    return sum(row.calls_per_step or 0 for row in side.families if (row.family, row.phase) == (family, phase))


def test_attention_runs_forward_as_often_as_the_case_says(pair: tuple[str, Diff]) -> None:
    name, diff = pair
    layers, before, after = RERUNS[name]
    for side, reruns in ((diff.baseline, before), (diff.optimized, after)):
        phases = ("teacher", "student forward", "re-run")
        assert [calls(side, "splash forward", phase) for phase in phases] == [layers, layers, reruns]
        assert calls(side, "splash backward (fused)", "student backward") == layers
        assert calls(side, "tgmm", "student backward") == 3 * layers
        gmm = sum(calls(side, "gmm forward", phase) for phase in phases) + calls(side, "gmm dlhs", "student backward")
        assert gmm == 12 * layers


def test_hbm_is_what_the_compiler_says(pair: tuple[str, Diff]) -> None:
    name, diff = pair
    for side, (peak, host) in zip((diff.baseline, diff.optimized), PEAKS[name], strict=True):
        assert side.memory.static_peak_bytes == pytest.approx(peak * GIB, abs=0.01 * GIB)
        assert (side.memory.static_host_bytes or 0) == pytest.approx(host * GIB, abs=0.01 * GIB)


def test_times_are_marked_as_estimates_and_the_parts_sum(pair: tuple[str, Diff]) -> None:
    _, diff = pair
    assert diff.baseline.kind == diff.optimized.kind == "compiled"
    assert "compiler estimates" in diff.verdict
    assert diff.delta.band is not None
    assert diff.delta.band[0] <= diff.delta.optimized_time_ps / diff.delta.baseline_time_ps <= diff.delta.band[1]
    assert sum(part.mfu_points for part in diff.contributions) == pytest.approx(diff.delta.mfu_points, abs=1e-9)


def test_what_no_estimate_sees_is_said_where_a_layout_differs(pair: tuple[str, Diff]) -> None:
    name, diff = pair
    told = any(note.code == "effect_not_estimated" for note in diff.warnings)
    assert told == (name != "gpt-oss-20b")


def test_the_readme_quotes_the_verdict() -> None:
    quoted = [line.removeprefix(">") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(">")]
    assert " ".join(" ".join(quoted).split()) == profiler.diff(*map(str, sides("qwen3-30b"))).verdict


def test_the_samples_stay_small_and_name_no_machine() -> None:
    files = [file for pair in PAIRS for file in sides(pair)]
    assert sum(file.stat().st_size for file in files) < 50 * MB
    for file in files:
        stored = file.read_bytes()
        assert len(stored) < 6 * MB
        data = gzip.decompress(stored) if file.suffix == ".gz" else stored
        assert len(data) < 10 * MB
        assert not any(folder in data for folder in (b"/tmp/", b"/home/", b"/root/", b"/usr/"))
