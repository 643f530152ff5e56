"""What a configuration must satisfy before any work is done."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_type_hints

from distill.settings.values import bad, fit

if TYPE_CHECKING:
    from distill.settings.schema import Config

# (smallest, largest) of each number that has bounds; None: no bound on that side.
_POSITIVE: tuple[float, None] = (1, None)
_BOUNDS: dict[str, tuple[float, float | None]] = {
    "distill_alpha": (0, 1),
    "distill_beta": (0, None),
    "load_balance_loss_weight": (0, None),
    "z_loss_multiplier": (0, None),
    "loss_chunks": _POSITIVE,
    "per_device_batch_size": _POSITIVE,
    "max_target_length": (2, None),
    "gradient_accumulation_steps": _POSITIVE,
    "steps": _POSITIVE,
    "learning_rate": (0, None),
    "learning_rate_final_fraction": (0, 1),
    "adam_eps": (0, None),
    "adam_weight_decay": (0, None),
    "gradient_clipping_threshold": (0, None),
    "checkpoint_period": _POSITIVE,
    "max_num_checkpoints_to_keep": _POSITIVE,
    "skip_first_n_steps_for_profiler": (0, None),
    "profiler_steps": _POSITIVE,
    "data_shuffle_seed": (0, 2**32 - 1),
    "init_weights_seed": (0, 2**32 - 1),
}


def fit_fields(config: Config) -> None:
    """Bring each field to its type, in place: this runs while the configuration is being made.

    Raises:
        UsageError: a value of another type.
    """
    kinds = get_type_hints(type(config))
    for item in fields(config):
        object.__setattr__(config, item.name, fit(item.name, kinds[item.name], getattr(config, item.name)))


def check(config: Config) -> None:
    """Ranges of single keys, then keys that must go together, then the two models.

    Raises:
        UsageError: the first thing that is wrong, with what is allowed.
    """
    for item in fields(config):
        value = getattr(config, item.name)
        tile = "_tile_" in item.name or item.name.startswith("sa_block_")
        bounds = _POSITIVE if tile else _BOUNDS.get(item.name)
        if bounds is not None:
            _within(item.name, value, *bounds)
    if config.distill_temperature <= 0:
        raise bad("distill_temperature", config.distill_temperature, "more than 0")
    for key in ("adam_b1", "adam_b2", "warmup_steps_fraction"):
        if not 0 <= getattr(config, key) < 1:
            raise bad(key, getattr(config, key), "from 0 to below 1")
    for key in ("ici_data_parallelism", "ici_fsdp_parallelism"):
        if getattr(config, key) < 1 and getattr(config, key) != -1:
            raise bad(key, getattr(config, key), "at least 1, or -1 for all devices that are left")
    for pattern in config.adamw_mask:
        try:
            re.compile(pattern)
        except re.error as error:
            raise bad("adamw_mask", pattern, "regular expressions") from error
    _check_together(config)
    _check_models(config)


def _within(key: str, value: Any, low: float, high: float | None) -> None:
    if value < low or (high is not None and value > high):
        raise bad(key, value, f"at least {low}" if high is None else f"from {low} to {high}")


def _check_together(config: Config) -> None:
    if config.ici_data_parallelism == config.ici_fsdp_parallelism == -1:
        raise bad("ici_data_parallelism", -1, "-1 for one axis of the mesh only")
    if config.max_target_length % config.loss_chunks:
        raise bad("loss_chunks", config.loss_chunks, f"a divisor of max_target_length={config.max_target_length}")
    if config.learning_rate_schedule_steps < 1 and config.learning_rate_schedule_steps != -1:
        raise bad("learning_rate_schedule_steps", config.learning_rate_schedule_steps, "at least 1, or -1 for steps")
    if config.profiler and config.skip_first_n_steps_for_profiler + config.profiler_steps > config.steps:
        raise bad(
            "profiler_steps",
            config.profiler_steps,
            f"skip_first_n_steps_for_profiler={config.skip_first_n_steps_for_profiler} and it together at most "
            f'steps={config.steps}, or profiler=""',
        )
    if config.dataset_type == "grain" and not config.grain_train_files:
        raise bad("grain_train_files", "", "a path or pattern of ArrayRecord files, or dataset_type=bundled")
    for key, outer in (("sa_block_kv_compute", "sa_block_kv"), ("sa_block_kv_dkv_compute", "sa_block_kv_dkv")):
        if getattr(config, outer) % getattr(config, key):
            raise bad(key, getattr(config, key), f"a divisor of {outer}={getattr(config, outer)}")


def _check_models(config: Config) -> None:
    student, teacher = config.student, config.teacher
    if student.vocab_size != teacher.vocab_size:
        raise bad(
            "student_overrides.vocab_size",
            student.vocab_size,
            f"the teacher's {teacher.vocab_size}: the loss compares their logits",
        )
    layers = min(student.num_layers, teacher.num_layers)
    for index in config.distill_layer_indices:
        if not 0 <= index < layers:
            raise bad("distill_layer_indices", index, f"from 0 to {layers - 1}, layers that both models have")
    if len(set(config.distill_layer_indices)) < len(config.distill_layer_indices):
        raise bad("distill_layer_indices", list(config.distill_layer_indices), "each layer once")
    if config.distill_beta > 0 and student.emb_dim != teacher.emb_dim:
        raise bad(
            "distill_beta",
            config.distill_beta,
            f"0, or models of one emb_dim (student {student.emb_dim}, teacher {teacher.emb_dim})",
        )


def check_for_tpu(config: Config) -> None:
    """What the splash kernel needs in addition: blocks (cut to the sequence) that divide it, in whole lanes of 128.

    Raises:
        UsageError: a block that the kernel would refuse.
    """
    if config.attention != "flash":
        return
    length = config.max_target_length
    for item in fields(config):
        if not item.name.startswith("sa_block_"):
            continue
        block = min(getattr(config, item.name), length)
        if length % block or block % 128:
            raise bad(
                item.name, getattr(config, item.name), f"a multiple of 128 that divides max_target_length={length}"
            )
