"""What a configuration accepts, what it refuses and how it says so, and where its values come from."""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from distill.config import MODELS, Config, check_for_tpu, load
from distill.settings import schema
from distill.settings.load import maxtext_keys
from profiler.errors import UnreadableError, UsageError

# Keys that are this trainer's own, not MaxText's.
OURS = {"loss_chunks", "xla_flags"}


def write(folder: Path, text: str, name: str = "run.yml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_every_field_has_its_line_of_explanation() -> None:
    source = inspect.getsource(schema.Config).splitlines()
    declared = [line for line in source if re.match(r"    [a-z]\w*: ", line)]
    assert len(declared) == len(dataclasses.fields(Config))
    assert all("  # " in line for line in declared)


def test_every_key_is_maxtext_s_or_known_to_be_ours() -> None:
    assert {field.name for field in dataclasses.fields(Config)} - maxtext_keys() == OURS


def test_the_documentation_has_every_key_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "distill" / "config.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \| \S", text, flags=re.MULTILINE))
    assert rows == {key: json.dumps(value, ensure_ascii=False) for key, value in Config().to_dict().items()}


def test_to_dict_is_plain_and_makes_the_same_configuration_again() -> None:
    config = load("qwen3-30b-opt", ["student_overrides.base_num_decoder_layers=8"]).config
    plain = json.loads(json.dumps(config.to_dict()))
    assert Config(**plain) == config
    assert plain["distill_layer_indices"] == list(range(8))
    assert plain["student_overrides"]["base_num_decoder_layers"] == 8


def test_a_key_that_is_not_given_shows_its_default() -> None:
    assert load("qwen3-30b-base").to_dict()["wi_tile_fwd_embed_dim"] == 1024


def test_a_configuration_cannot_be_changed_after_its_check() -> None:
    config = Config(student_overrides={"head_dim": 64})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.student_overrides["head_dim"] = 3  # type: ignore[index]
    assert hash(config) == hash(Config(student_overrides={"head_dim": 64}))


def test_full_size_models_have_the_published_shapes() -> None:
    qwen, gpt_oss = MODELS["qwen3-30b-a3b"], MODELS["gpt-oss-20b"]
    assert (qwen.num_layers, qwen.emb_dim, qwen.num_experts, qwen.num_experts_per_tok) == (48, 2048, 128, 8)
    assert (qwen.num_query_heads, qwen.num_kv_heads, qwen.head_dim) == (32, 4, 128)
    assert (qwen.moe_mlp_dim, qwen.vocab_size, qwen.qk_norm) == (768, 151936, True)
    assert (gpt_oss.num_layers, gpt_oss.emb_dim, gpt_oss.num_experts, gpt_oss.num_experts_per_tok) == (24, 2880, 32, 4)
    assert (gpt_oss.num_query_heads, gpt_oss.num_kv_heads, gpt_oss.head_dim) == (64, 8, 64)
    assert (gpt_oss.moe_mlp_dim, gpt_oss.vocab_size, gpt_oss.sliding_window) == (2880, 201088, 128)
    assert (gpt_oss.rope, gpt_oss.rope_factor, gpt_oss.rope_original_context) == ("yarn", 32.0, 4096)


@pytest.mark.parametrize(("tiny", "full"), [("tiny-qwen3", "qwen3-30b-a3b"), ("tiny-gpt-oss", "gpt-oss-20b")])
def test_a_tiny_model_differs_from_the_full_one_in_sizes_only(tiny: str, full: str) -> None:
    sizes = {"name", "num_layers", "emb_dim", "num_query_heads", "num_kv_heads", "head_dim", "num_experts"}
    sizes |= {"num_experts_per_tok", "moe_mlp_dim", "vocab_size", "sliding_window"}
    one, other = dataclasses.asdict(MODELS[tiny]), dataclasses.asdict(MODELS[full])
    assert {key for key in one if one[key] != other[key]} <= sizes
    assert bool(one["sliding_window"]) == bool(other["sliding_window"])


def test_windows_alternate_from_the_first_layer_on() -> None:
    assert [MODELS["gpt-oss-20b"].window_of(layer) for layer in range(4)] == [128, 0, 128, 0]
    assert [MODELS["qwen3-30b-a3b"].window_of(layer) for layer in range(2)] == [0, 0]


def test_overrides_change_one_side_by_maxtext_s_names() -> None:
    config = Config(
        model_name="qwen3-30b-a3b",
        student_overrides={"base_num_query_heads": 16, "head_dim": 256, "base_num_kv_heads": 2},
        teacher_overrides={"rope_max_timescale": 1_000_000},
    )
    assert (config.student.num_query_heads, config.student.head_dim, config.student.num_kv_heads) == (16, 256, 2)
    assert (config.teacher.num_query_heads, config.teacher.rope_max_timescale) == (32, 1e6)


def test_the_feature_loss_compares_the_given_layers_or_all_or_none() -> None:
    assert Config(distill_beta=1.0, distill_layer_indices=(0, 2)).feature_layers == (0, 2)
    assert Config(distill_beta=1.0).feature_layers == (0, 1, 2, 3)
    assert Config(distill_layer_indices=(0, 2)).feature_layers == ()


def test_tokens_per_step_count_devices_and_micro_batches() -> None:
    config = Config(per_device_batch_size=2, max_target_length=64, gradient_accumulation_steps=3)
    assert config.sequences_per_step(4) == 24
    assert config.tokens_per_step(4) == 24 * 64


# One value per rule: (key, value, what the message names as allowed).
REFUSED = [
    ("model_name", "llama", "one of qwen3-30b-a3b"),
    ("steps", 0, "at least 1"),
    ("steps", 2.5, "a whole number"),
    ("steps", True, "a whole number"),
    ("steps", "many", "a whole number"),
    ("learning_rate", float("nan"), "a number"),
    ("learning_rate", float("inf"), "a number"),
    ("learning_rate", -1e-4, "at least 0"),
    ("distill_alpha", 1.5, "from 0 to 1"),
    ("distill_temperature", 0, "more than 0"),
    ("adam_b1", 1.0, "from 0 to below 1"),
    ("warmup_steps_fraction", 1.0, "from 0 to below 1"),
    ("adamw_mask", ["("], "regular expressions"),
    ("float32_logits", "yes", "true or false"),
    ("remat_policy", "some", "full, minimal, custom"),
    ("context", "host", "device, offload, remat"),
    ("sa_q_layout", "SEQ", "HEAD_DIM_MINOR, SEQ_MINOR"),
    ("attention", "fast", "flash, dot_product"),
    ("dtype", "float64", "bfloat16, float32"),
    ("sa_block_q", 0, "at least 1"),
    ("sa_block_kv_compute", 384, "a divisor of sa_block_kv=512"),
    ("wo_tile_drhs_mlp_dim", -1, "at least 1"),
    ("loss_chunks", 3, "a divisor of max_target_length=512"),
    ("ici_data_parallelism", 0, "at least 1, or -1"),
    ("ici_data_parallelism", -1, "one axis"),
    ("distill_layer_indices", [0, 4], "from 0 to 3"),
    ("distill_layer_indices", [1, 1], "each layer once"),
    ("distill_layer_indices", 3, "a list"),
    ("profiler_steps", 25, "at most steps=30"),
    ("learning_rate_schedule_steps", 0, "at least 1, or -1"),
    ("dataset_type", "hf", "bundled, grain"),
    ("student_overrides", [1], "a mapping"),
    ("student_overrides", {"base_num_query_heads": 3}, "a multiple of the 2 kv heads"),
    ("student_overrides", {"head_dim": 33}, "an even number"),
    ("student_overrides", {"head_dim": "wide"}, "a whole number"),
    ("student_overrides", {"num_experts_per_tok": 9}, "at most the 8 experts"),
    ("student_overrides", {"base_emb_dim": 0}, "more than 0"),
    ("student_overrides", {"vocab_size": 300}, "the teacher's 512"),
    ("student_overrides", {"model_name": "llama"}, "one of qwen3-30b-a3b"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), REFUSED)
def test_a_value_that_cannot_work_is_refused_with_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        Config(**{key: value})
    message = str(caught.value)
    inner = next(iter(value)) if isinstance(value, dict) else key
    assert inner in message
    assert "allowed: " in message
    assert allowed in message


def test_what_goes_together_is_checked_together() -> None:
    with pytest.raises(UsageError, match="grain_train_files"):
        Config(dataset_type="grain")
    with pytest.raises(UsageError, match="models of one emb_dim"):
        Config(distill_beta=1.0, student_overrides={"base_emb_dim": 64})
    with pytest.raises(UsageError, match="an even number: windowed and full layers alternate"):
        Config(model_name="tiny-gpt-oss", student_overrides={"base_num_decoder_layers": 3})
    Config(profiler="", skip_first_n_steps_for_profiler=10, steps=2)


def test_blocks_are_held_to_the_sequence_for_a_tpu_only() -> None:
    config = Config(max_target_length=640)
    with pytest.raises(UsageError, match=r"sa_block_q=512.*divides max_target_length=640"):
        check_for_tpu(config)
    check_for_tpu(dataclasses.replace(config, attention="dot_product"))
    check_for_tpu(Config(max_target_length=256))


def test_numbers_are_taken_as_yaml_and_people_write_them(tmp_path: Path) -> None:
    config = load(write(tmp_path, "learning_rate: 1e-4\nper_device_batch_size: 6.0\nadam_eps: 1.e-5\n")).config
    assert (config.learning_rate, config.per_device_batch_size, config.adam_eps) == (1e-4, 6, 1e-5)
    assert isinstance(config.per_device_batch_size, int)


def test_command_line_overrides_win_and_reach_into_mappings() -> None:
    config = load(
        "qwen3-30b-opt",
        [
            "steps=40",
            "learning_rate=1e-5",
            "student_overrides.head_dim=128",
            "distill_layer_indices=[0, 1]",
            "run_name=",
        ],
    ).config
    assert (config.steps, config.learning_rate, config.distill_layer_indices, config.run_name) == (40, 1e-5, (0, 1), "")
    assert (config.student.head_dim, config.student.num_query_heads) == (128, 16)


@pytest.mark.parametrize("text", ["steps", "=3", "steps=[", ""])
def test_an_override_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        load("tiny-qwen3-base", [text])


def test_a_name_that_is_neither_recipe_nor_file_is_answered_with_the_recipes() -> None:
    with pytest.raises(UsageError, match="recipes: gpt-oss-20b-base"):
        load("tiny-qwen")


def test_a_file_that_is_no_mapping_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        load(write(tmp_path, "- 1\n- 2\n"))
    with pytest.raises(UnreadableError):
        load(tmp_path)


def test_a_maxtext_file_is_taken_as_it_is_and_what_has_no_effect_is_named(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        base_config: "base.yml"
        student_overrides: {model_name: "qwen3-30b-a3b-base", override_model_config: True, head_dim: 256}
        teacher_overrides: {model_name: "qwen3-30b-a3b-base", load_parameters_path: "somewhere"}
        attention: autoselected
        dataset_type: synthetic
        distill_layer_indices: None
        log_period: 10
        no_such_key: 1
        """,
    )
    loaded = load(file)
    assert loaded.config.model_name == "qwen3-30b-a3b-base"
    assert (loaded.config.student.head_dim, loaded.config.teacher.head_dim) == (256, 128)
    assert (loaded.config.attention, loaded.config.dataset_type) == ("flash", "bundled")
    assert loaded.unknown == {"no_such_key": 1}
    assert loaded.no_effect == {"log_period": 10, "student_overrides.override_model_config": True}
    assert "base.yml is not beside run.yml" in loaded.notes[0]
    assert loaded.to_dict()["no_such_key"] == 1


def test_a_base_configuration_lies_below_and_its_idle_keys_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "steps: 7\nprofiler: ''\nlearning_rate: 0.5\nlog_period: 1\nmodel_name: default\n", "base.yml")
    loaded = load(write(tmp_path, "base_config: base.yml\nlearning_rate: 0.25\n"))
    assert (loaded.config.steps, loaded.config.learning_rate, loaded.config.model_name) == (7, 0.25, "tiny-qwen3")
    assert loaded.no_effect == {}
    assert loaded.notes == ("1 further keys of the base configuration have no effect here",)


def test_base_configurations_that_include_each_other_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="without end"):
        load(write(tmp_path, "base_config: run.yml\n"))
