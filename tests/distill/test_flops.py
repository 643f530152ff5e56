"""Model FLOPs against the golden values of the case, in TFLOP per device and step."""

from dataclasses import replace

import pytest

from distill.config import MODELS, Config
from distill.flops import model_flops, step_flops

# The two sides of the case share their FLOPs: half the heads at twice the width.
QWEN = {"base_num_query_heads": 16, "head_dim": 256, "base_num_kv_heads": 2}
GPT_OSS = {"base_num_query_heads": 32, "head_dim": 128, "base_num_kv_heads": 4}

GOLDEN = [
    ("qwen3-30b-a3b", QWEN, 4, 8192, 598.01, 316.66, 914.67, 1219.56),
    ("qwen3-30b-a3b", QWEN, 6, 8192, 897.02, 474.99, 1372.01, 1829.35),
    ("gpt-oss-20b", GPT_OSS, 1, 32768, 709.19, 319.13, 1028.32, 1371.10),
]


def config_of(model: str, overrides: dict[str, int], batch: int, length: int, **more: int) -> Config:
    return Config(
        model_name=model,
        student_overrides=overrides,
        per_device_batch_size=batch,
        max_target_length=length,
        **more,
    )


@pytest.mark.parametrize(("model", "overrides", "batch", "length", "weights", "attention", "student", "total"), GOLDEN)
def test_the_case_has_the_flops_that_its_author_counted(
    model: str,
    overrides: dict[str, int],
    batch: int,
    length: int,
    weights: float,
    attention: float,
    student: float,
    total: float,
) -> None:
    config = config_of(model, overrides, batch, length)
    split = model_flops(config.student, batch, length)
    flops = step_flops(config)
    assert 3 * split.weights / 1e12 == pytest.approx(weights, abs=0.005)
    assert 3 * split.attention / 1e12 == pytest.approx(attention, abs=0.005)
    assert flops.student / 1e12 == pytest.approx(student, abs=0.005)
    assert flops.total / 1e12 == pytest.approx(total, abs=0.01)


def test_the_teacher_counts_its_forward_pass_only() -> None:
    config = config_of("qwen3-30b-a3b", {}, 4, 8192)
    flops = step_flops(config)
    assert flops.teacher == flops.student / 3
    assert flops.total == pytest.approx(flops.student * 4 / 3)


def test_every_micro_batch_counts() -> None:
    once = step_flops(config_of("tiny-qwen3", {}, 2, 256))
    thrice = step_flops(config_of("tiny-qwen3", {}, 2, 256, gradient_accumulation_steps=3))
    assert thrice.total == 3 * once.total


def test_a_window_as_long_as_the_sequence_costs_what_a_causal_mask_costs() -> None:
    spec = MODELS["tiny-gpt-oss"]
    full = model_flops(replace(spec, sliding_window=0), 2, 256)
    assert model_flops(replace(spec, sliding_window=256), 2, 256) == full
    assert model_flops(replace(spec, sliding_window=1024), 2, 256) == full
    assert model_flops(spec, 2, 256).attention < full.attention


def test_twice_the_batch_needs_twice_the_flops_and_twice_the_length_four_times_the_attention() -> None:
    spec = MODELS["tiny-qwen3"]
    one, two, longer = (model_flops(spec, b, t) for b, t in ((1, 256), (2, 256), (1, 512)))
    assert two.forward == 2 * one.forward
    assert longer.weights == 2 * one.weights
    assert longer.attention == 4 * one.attention
