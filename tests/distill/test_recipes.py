"""The ten recipes: each loads, says what every knob does, and differs from its twin where the case did."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import distill
from distill.config import REMAT_TENSORS, check_for_tpu, load, recipes

FOLDER = Path(distill.__file__).parent / "recipes"
TILES = [
    f"{side}_tile_{direction}_{dim}"
    for side in ("wi", "wo")
    for direction in ("fwd", "dlhs", "drhs")
    for dim in ("batch_seq", "embed_dim", "mlp_dim")
]
PAIRS = ("qwen3-30b", "qwen3-30b-pdbs8", "gpt-oss-20b", "tiny-qwen3", "tiny-gpt-oss")


def tiles_of(*dims: str) -> set[str]:
    return {key for key in TILES if key.endswith(dims)}


# What the case changed between the two sides of each pair.
CHANGED = {
    "qwen3-30b": {"per_device_batch_size", "remat_policy", "context", "sa_q_layout", *tiles_of("embed_dim", "mlp_dim")},
    "qwen3-30b-pdbs8": {"sa_q_layout", *tiles_of("embed_dim", "mlp_dim")},
    "gpt-oss-20b": {
        "ici_data_parallelism",
        "ici_fsdp_parallelism",
        "remat_policy",
        "context",
        "sa_block_kv_compute",
        "sa_block_kv_dkv_compute",
        *tiles_of("batch_seq"),
    },
    "tiny-qwen3": {"remat_policy", "context", *tiles_of("embed_dim", "mlp_dim")},
    "tiny-gpt-oss": {"remat_policy", "context", *tiles_of("batch_seq")},
}


def config_of(name: str) -> dict[str, Any]:
    return load(name).config.to_dict()


def test_there_are_five_pairs() -> None:
    assert recipes() == tuple(sorted(f"{pair}-{side}" for pair in PAIRS for side in ("base", "opt")))


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_holds_no_key_that_has_no_effect(name: str) -> None:
    loaded = load(name)
    assert (loaded.unknown, loaded.no_effect, loaded.notes) == ({}, {}, ())
    assert loaded.name == name


@pytest.mark.parametrize("name", recipes())
def test_every_knob_has_a_comment(name: str) -> None:
    lines = (FOLDER / f"{name}.yml").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert len(line) <= 120, line
        if line and not line.startswith(("#", " ")):
            assert "  # " in line or line.startswith("teacher_overrides:"), line


@pytest.mark.parametrize("name", recipes())
def test_the_blocks_suit_the_splash_kernel(name: str) -> None:
    check_for_tpu(load(name).config)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_differs_in_the_knobs_of_the_case_and_in_no_other(pair: str) -> None:
    base, opt = config_of(f"{pair}-base"), config_of(f"{pair}-opt")
    assert {key for key in base if base[key] != opt[key]} == CHANGED[pair]


def test_the_qwen_pair_has_the_values_of_the_case() -> None:
    base, opt = config_of("qwen3-30b-base"), config_of("qwen3-30b-opt")
    assert (base["per_device_batch_size"], opt["per_device_batch_size"]) == (4, 6)
    assert (base["remat_policy"], opt["remat_policy"]) == ("full", "custom")
    assert (base["context"], opt["context"]) == ("remat", "device")
    assert (base["sa_q_layout"], opt["sa_q_layout"]) == ("HEAD_DIM_MINOR", "SEQ_MINOR")
    for side, batch_seq, embed, mlp in ((base, 512, 1024, 1024), (opt, 512, 2048, 768)):
        for key in TILES:
            assert side[key] == {"seq": batch_seq, "embed": embed, "mlp": mlp}[key.removesuffix("_dim").split("_")[-1]]
        blocks = [
            side[f"sa_block_{key}"]
            for key in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
        ]
        assert blocks == [1024, 1024, 512, 2048, 2048, 1024, 1024, 1024]
        assert side["distill_layer_indices"] == list(range(8))
        assert (side["distill_alpha"], side["distill_beta"], side["distill_temperature"]) == (0.6, 1.0, 1.0)
        assert (side["learning_rate"], side["warmup_steps_fraction"], side["adam_eps"]) == (1e-4, 0.08, 1e-5)
        assert (side["ici_data_parallelism"], side["ici_fsdp_parallelism"]) == (4, -1)


def test_the_pdbs8_pair_keeps_its_layer_inputs_in_host_memory() -> None:
    for side in ("base", "opt"):
        config = config_of(f"qwen3-30b-pdbs8-{side}")
        assert (config["per_device_batch_size"], config["remat_policy"]) == (8, "custom")
        assert {key: config[key] for key in REMAT_TENSORS if config[key] != "remat"} == {
            "decoder_layer_input": "offload"
        }


def test_the_gpt_oss_pair_has_the_values_of_the_case() -> None:
    base, opt = config_of("gpt-oss-20b-base"), config_of("gpt-oss-20b-opt")
    assert (base["ici_data_parallelism"], base["ici_fsdp_parallelism"]) == (4, 32)
    assert (opt["ici_data_parallelism"], opt["ici_fsdp_parallelism"]) == (2, 64)
    assert (base["sa_block_kv_compute"], opt["sa_block_kv_compute"]) == (2048, 1024)
    assert {base[key] for key in tiles_of("batch_seq")} == {512}
    assert {opt[key] for key in tiles_of("batch_seq")} == {1024}
    assert (opt["max_target_length"], opt["per_device_batch_size"], opt["distill_beta"]) == (32768, 1, 0.0)
    assert (opt["learning_rate"], opt["learning_rate_final_fraction"]) == (5e-5, 0.2)


def test_students_of_the_case_have_half_the_heads_at_twice_the_width() -> None:
    for name in recipes():
        config = load(name).config
        student, teacher = config.student, config.teacher
        assert 2 * student.num_query_heads == teacher.num_query_heads
        assert 2 * student.num_kv_heads == teacher.num_kv_heads
        assert student.head_dim == 2 * teacher.head_dim
        assert student.rope_max_timescale == teacher.rope_max_timescale


def test_both_sides_of_a_full_size_pair_have_the_flags_of_the_case() -> None:
    for name in recipes():
        config = load(name).config
        assert len(config.xla_flags) == (0 if name.startswith("tiny") else 12)
        assert all(flag.startswith("--xla_") for flag in config.xla_flags)


def test_recipes_are_plain_yaml_that_the_profiler_reads_as_configuration() -> None:
    for name in recipes():
        document = yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8"))
        assert isinstance(document["learning_rate"], float)
        assert isinstance(document["adam_eps"], float)
