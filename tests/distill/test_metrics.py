"""metrics.jsonl: what a line says, and that a resumed run leaves every step in it once."""

import json
import math
from types import SimpleNamespace

import pytest

from distill import metrics
from distill.metrics import Meter, MetricsFile
from profiler.errors import ProfilerError, UnreadableError

VALUES = {
    "loss": 2.0,
    "kl": 1.0,
    "cross_entropy": math.log(20),
    "feature_loss": 0.5,
    "load_balance_loss": 2.0,
    "z_loss": 40.0,
    "learning_rate": 1e-3,
    "grad_norm": 1.5,
}
METER = Meter(tokens_per_step=1000, model_tflops=50.0, peak_tflops=200.0)


def test_rates_follow_from_the_time_of_the_step():
    found = METER.measure(3, VALUES, 0.5)
    assert found.tokens == 4000
    assert found.tokens_per_s == 2000
    assert found.model_tflops_per_s == 100
    assert found.mfu == 0.5
    assert found.perplexity == pytest.approx(20)


def test_without_a_peak_there_is_no_mfu(tmp_path):
    with MetricsFile(tmp_path) as file:
        file.write(Meter(1000, 50.0, None).measure(0, VALUES, 0.5))
    assert metrics.read(tmp_path)[0]["mfu"] is None


def test_what_is_not_finite_is_null(tmp_path):
    with MetricsFile(tmp_path) as file:
        file.write(METER.measure(0, VALUES | {"loss": math.nan, "cross_entropy": 1e9}, 0.5))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["loss"] is None
    assert json.loads(line)["perplexity"] is None


def test_a_resumed_run_takes_the_place_of_what_came_after_its_checkpoint(tmp_path):
    with MetricsFile(tmp_path) as file:
        for step in range(5):
            file.write(METER.measure(step, VALUES, 0.5))
    with (tmp_path / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 5, "lo')
    with MetricsFile(tmp_path, first_step=3) as file:
        file.write(METER.measure(3, VALUES | {"loss": 1.0}, 0.5))
    found = metrics.read(tmp_path)
    assert [each["step"] for each in found] == [0, 1, 2, 3]
    assert found[-1]["loss"] == 1.0


def test_a_new_run_starts_a_new_file(tmp_path):
    for _ in range(2):
        with MetricsFile(tmp_path) as file:
            file.write(METER.measure(0, VALUES, 0.5))
    assert len(metrics.read(tmp_path)) == 1


def test_a_missing_or_foreign_file_is_one_clear_error(tmp_path):
    with pytest.raises(UnreadableError, match="cannot be read"):
        metrics.read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("hello\n")
    with pytest.raises(UnreadableError, match="no list of JSON objects"):
        metrics.read(tmp_path)
    with pytest.raises(ProfilerError, match="cannot be written"):
        MetricsFile(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v6 lite", 918.0),
        ("TPU7x", 1153.5),
        ("NVIDIA H200", 989.0),
        ("cpu", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_peak_is_that_of_a_known_device_and_never_guessed(kind, peak):
    assert metrics.peak_tflops(SimpleNamespace(device_kind=kind)) == peak
