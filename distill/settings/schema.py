"""Every key of a run, with its default and what it does.

The keys are MaxText's, so that one YAML file serves both. The defaults are MaxText's too, except where the comment says
(ours: ...). Sizes are in tokens unless a comment says otherwise; "per device" means per JAX device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from distill.settings import check
from distill.settings.models import ModelSpec, resolve

Where = Literal["device", "offload", "remat"]
Layout = Literal["HEAD_DIM_MINOR", "SEQ_MINOR"]
Dtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True)
class Config:
    """One run. Checked when it is made: a value that cannot work raises `UsageError` before anything else happens."""

    # Models. Both sides start from model_name; the overrides are MaxText's base_* names (settings/models.py).
    model_name: str = "tiny-qwen3"  # the architecture and shape of student and teacher (ours: MaxText has "default")
    student_overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)  # what the student has differently
    teacher_overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)  # what the teacher has differently
    dtype: Dtype = "bfloat16"  # of activations and matmuls
    weight_dtype: Dtype = "float32"  # of the student's parameters and optimizer state; the teacher is held in dtype

    # Loss.
    distill_alpha: float = 0.5  # weight of the KL term; the cross-entropy has 1 - alpha
    distill_temperature: float = 1.0  # both logits are divided by it inside the KL term
    distill_beta: float = 0.0  # weight of the feature loss; 0: none is computed
    distill_layer_indices: tuple[int, ...] = ()  # layers whose attention outputs the feature loss compares; []: all
    load_balance_loss_weight: float = 0.0  # weight of the router's load-balance loss
    z_loss_multiplier: float = 0.0  # weight of the mean squared log-sum-exp of the student's logits
    loss_chunks: int = 1  # pieces of the sequence whose logits exist one at a time (ours); 1: all at once

    # Batch and length of the run.
    per_device_batch_size: int = 4  # sequences per device and micro-batch (ours: MaxText has 12)
    max_target_length: int = 512  # T, tokens per sequence (ours: MaxText has 2048)
    gradient_accumulation_steps: int = 1  # micro-batches per optimizer step
    steps: int = 30  # optimizer steps (ours: MaxText has 150001)

    # Mesh.
    ici_data_parallelism: int = 1  # devices along "data": each holds whole parameters' shards of its fsdp group
    ici_fsdp_parallelism: int = -1  # devices along "fsdp", over which parameters are split; -1: all that are left

    # Rematerialisation: which tensors of a student layer the backward pass finds in memory. The named ones count with
    # remat_policy=custom only: device keeps it in HBM, offload moves it to host memory, remat computes it again.
    remat_policy: Literal["full", "minimal", "custom"] = "full"  # full: keep the layer input; minimal: every matmul
    decoder_layer_input: Where = "device"  # the residual stream that enters the layer [B, T, E]
    context: Where = "remat"  # attention output and log-sum-exp [B, T, H, D], [B, H, T]; kept: no second forward kernel
    query_proj: Where = "remat"  # q as attention takes it [B, T, H, D]
    key_proj: Where = "remat"  # k as attention takes it [B, T, KV, D]
    value_proj: Where = "remat"  # v as attention takes it [B, T, KV, D]
    qkv_proj: Where = "remat"  # q, k and v of a fused projection
    out_proj: Where = "remat"  # attention block's output, before the residual sum [B, T, E]
    mlpwi: Where = "remat"  # first matmul of a dense MLP (no model here has one)
    mlpwi_0: Where = "remat"  # gate matmul of a dense MLP (no model here has one)
    mlpwi_1: Where = "remat"  # up matmul of a dense MLP (no model here has one)
    mlpwo: Where = "remat"  # down matmul of a dense MLP (no model here has one)
    moe_mlpwi_0: Where = "remat"  # gate matmul of the experts [B·T·K, F]
    moe_mlpwi_1: Where = "remat"  # up matmul of the experts [B·T·K, F]
    moe_mlpwo: Where = "remat"  # down matmul of the experts [B·T·K, E]

    # Attention. The sa_ keys reach the splash kernel, which exists on TPU (and interpreted in tests).
    attention: Literal["flash", "dot_product"] = "flash"  # flash: the fastest kernel of the backend; or plain (ours)
    float32_logits: bool = False  # q and k go to the scores in float32
    use_tokamax_splash: bool = False  # tokamax's splash kernel instead of the one in jax.experimental.pallas
    sa_block_q: int = 512  # forward: query rows per tile
    sa_block_kv: int = 512  # forward: key rows per tile that is fetched
    sa_block_kv_compute: int = 512  # forward: key rows per matmul inside a tile; divides sa_block_kv
    sa_block_q_dkv: int = 512  # backward (dk, dv, and dq when fused): query rows per tile
    sa_block_kv_dkv: int = 512  # backward: key rows per tile that is fetched
    sa_block_kv_dkv_compute: int = 512  # backward: key rows per matmul inside a tile; divides sa_block_kv_dkv
    sa_block_q_dq: int = 512  # separate dq kernel: query rows per tile; unused when fused
    sa_block_kv_dq: int = 512  # separate dq kernel: key rows per tile; unused when fused
    sa_use_fused_bwd_kernel: bool = False  # one backward kernel for dq, dk and dv instead of two
    sa_q_layout: Layout = "HEAD_DIM_MINOR"  # which dimension of q lies along the lanes of a TPU register
    sa_k_layout: Layout = "HEAD_DIM_MINOR"  # the same for k
    sa_v_layout: Layout = "HEAD_DIM_MINOR"  # the same for v

    # Grouped matmuls of the experts (megablox, TPU). wi: gate and up; wo: down. fwd: the product; dlhs: gradient
    # of the activations; drhs: gradient of the weights. batch_seq tiles the rows (B·T·K), embed_dim E and mlp_dim F.
    wi_tile_fwd_batch_seq: int = 512  # rows per tile
    wi_tile_fwd_embed_dim: int = 1024  # E per tile (contracted)
    wi_tile_fwd_mlp_dim: int = 1024  # F per tile
    wi_tile_dlhs_batch_seq: int = 512  # rows per tile
    wi_tile_dlhs_embed_dim: int = 1024  # E per tile
    wi_tile_dlhs_mlp_dim: int = 1024  # F per tile (contracted)
    wi_tile_drhs_batch_seq: int = 512  # rows per tile (contracted)
    wi_tile_drhs_embed_dim: int = 1024  # E per tile
    wi_tile_drhs_mlp_dim: int = 1024  # F per tile
    wo_tile_fwd_batch_seq: int = 512  # rows per tile
    wo_tile_fwd_embed_dim: int = 1024  # E per tile
    wo_tile_fwd_mlp_dim: int = 1024  # F per tile (contracted)
    wo_tile_dlhs_batch_seq: int = 512  # rows per tile
    wo_tile_dlhs_embed_dim: int = 1024  # E per tile (contracted)
    wo_tile_dlhs_mlp_dim: int = 1024  # F per tile
    wo_tile_drhs_batch_seq: int = 512  # rows per tile (contracted)
    wo_tile_drhs_embed_dim: int = 1024  # E per tile
    wo_tile_drhs_mlp_dim: int = 1024  # F per tile

    # Optimizer: AdamW with linear warmup and cosine decay.
    learning_rate: float = 3e-5  # peak
    learning_rate_final_fraction: float = 0.1  # learning rate at the end, as a share of the peak
    learning_rate_schedule_steps: int = -1  # steps that warmup and decay take together; -1: steps
    warmup_steps_fraction: float = 0.1  # share of the schedule that rises linearly from 0
    adam_b1: float = 0.9  # decay of the mean gradient
    adam_b2: float = 0.95  # decay of the mean squared gradient
    adam_eps: float = 1e-8  # added to the root of the mean square
    adam_weight_decay: float = 0.1  # pull towards zero, per step and times the learning rate
    adamw_mask: tuple[str, ...] = (".*embedding.*", ".*norm.*", ".*bias", ".*sinks")  # not decayed (ours)
    gradient_clipping_threshold: float = 1.0  # gradients of a larger global norm are scaled down to it; 0: never

    # Data and seeds.
    dataset_type: Literal["bundled", "grain"] = "bundled"  # bundled: text made here (ours); grain: ArrayRecord files
    grain_train_files: str = ""  # grain: path or pattern of ArrayRecord files
    tokenizer_path: str = ""  # grain: a tokenizer.json for records of text; none for records of token ids
    data_shuffle_seed: int = 0  # same seed, same batches
    init_weights_seed: int = 0  # same seed, same initial parameters

    # Output and checkpoints.
    base_output_directory: str = "distill_runs"  # folder of all runs (ours: MaxText has none)
    run_name: str = ""  # folder of this run in it; "": the recipe's name
    enable_checkpointing: bool = False  # save, and resume where a run of this name stopped (ours: MaxText has true)
    checkpoint_period: int = 10_000  # steps between checkpoints; the last step is always saved
    max_num_checkpoints_to_keep: int = 3  # older ones are deleted after a save (ours: MaxText keeps all)
    load_parameters_path: str = ""  # student's initial parameters; the overrides have this key for either side

    # Profile.
    profiler: Literal["", "xplane"] = "xplane"  # "": no trace (ours: MaxText has "")
    skip_first_n_steps_for_profiler: int = 10  # steps before the trace starts, compile included (ours: MaxText has 1)
    profiler_steps: int = 5  # steps in the trace

    # The machine.
    hardware: str = ""  # chip or slice the recipe is meant for, such as tpu7x-4x4x4; kept with the results (ours)
    xla_flags: tuple[str, ...] = ()  # set before jax starts, on backends that know them (ours: MaxText's are outside)

    def __post_init__(self) -> None:
        check.fit_fields(self)
        check.check(self)

    @cached_property
    def student(self) -> ModelSpec:
        """Shape of the student."""
        return resolve(self.model_name, self.student_overrides, "student_overrides")

    @cached_property
    def teacher(self) -> ModelSpec:
        """Shape of the teacher."""
        return resolve(self.model_name, self.teacher_overrides, "teacher_overrides")

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers that the feature loss compares: none without distill_beta, all when no indices are given."""
        if self.distill_beta == 0:
            return ()
        return self.distill_layer_indices or tuple(range(min(self.student.num_layers, self.teacher.num_layers)))

    @property
    def schedule_steps(self) -> int:
        """Steps of the learning-rate schedule."""
        return self.steps if self.learning_rate_schedule_steps < 0 else self.learning_rate_schedule_steps

    def sequences_per_step(self, num_devices: int) -> int:
        """Sequences in one optimizer step, all devices and micro-batches together."""
        return self.per_device_batch_size * num_devices * self.gradient_accumulation_steps

    def tokens_per_step(self, num_devices: int) -> int:
        """Tokens in one optimizer step, all devices and micro-batches together."""
        return self.sequences_per_step(num_devices) * self.max_target_length

    def to_dict(self) -> dict[str, Any]:
        """Every key, defaults included, as plain JSON and YAML values; `Config(**config.to_dict())` is the same."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


REMAT_TENSORS: tuple[str, ...] = tuple(item.name for item in fields(Config) if item.type == "Where")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
