"""What the configuration keys of a run are: default, meaning, and what of a step each of them can move.

Keys and defaults are MaxText's, as the trainer here has them too; where the two differ, the default is unknown. A
target is what a knob moves at first hand: a remat key decides how often forward ops run again, a tile how long a call
takes. What else may change with it (fusion, scheduling) is never credited to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from profiler.results import Contribution

UNKNOWN: Any = object()
CALLS, TIME, BOTH = "calls", "per call", "calls and time"


@dataclass(frozen=True, slots=True)
class Target:
    """Contributions that a knob can move: families by the start of their name, phases (none: any), and which part.

    ``amortised``: only in that more work shares what takes the same time: a larger value makes equal work cheaper.
    """

    families: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    part: str = TIME
    amortised: bool = False

    def holds(self, each: Contribution, part: str) -> bool:
        """Whether ``part`` (CALLS or TIME) of a contribution is meant."""
        return (
            self.part in (part, BOTH)
            and (each.family.startswith(self.families) if self.families else each.category != "idle")
            and (not self.phases or each.phase in self.phases)
        )

    def __str__(self) -> str:
        """ "calls of re-runs", "time per call of gmm forward, tgmm"."""
        part = {CALLS: "calls", TIME: "time per call", BOTH: "calls and time"}[self.part]
        return f"{part} of {', '.join((*self.families, *(f'{phase}s' for phase in self.phases))) or 'everything'}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key.

    Attributes:
        what: what it is, in a few words.
        group: the knobs that mean something only together; None: one alone.
        moves: what it moves at first hand.
        rest: it can move whatever no other knob explains.
        memory: it moves what fills HBM.
        learns: it changes what is learned, so that losses differ.
        default: UNKNOWN where it is not known for certain.
    """

    what: str
    group: str | None = None
    moves: tuple[Target, ...] = ()
    rest: bool = False
    memory: bool = False
    learns: bool = False
    default: Any = UNKNOWN

    @property
    def targets(self) -> tuple[str, ...]:
        """What the knob can move, in words."""
        rest = ("whatever else changed" if self.moves else "everything",) if self.rest else ()
        others = (("HBM",) if self.memory else ()) + (("what is learned",) if self.learns else ())
        return (*(str(each) for each in self.moves), *rest, *others)


COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective")
_RERUNS = Target(phases=("re-run",), part=CALLS)
_HOST = Target(("host transfer",), part=BOTH)
# What takes the same time whatever the batch, so that a bigger batch amortises it.
_FIXED = Target(("optimizer", "all-gather", "all-reduce", "reduce-scatter"), amortised=True)
_SPLASH = Target(("splash",))
_ATTENTION = Target(("splash", "attention"), part=BOTH)
_SCORES = Target(("splash", "attention"))
_ALL = Target(part=BOTH)

_REMAT_TENSORS = {
    "decoder_layer_input": "residual stream into a layer",
    "context": "attention output",
    "query_proj": "queries",
    "key_proj": "keys",
    "value_proj": "values",
    "qkv_proj": "fused queries, keys, values",
    "out_proj": "attention block's output",
    "mlpwi": "first dense MLP matmul",
    "mlpwi_0": "gate matmul, dense MLP",
    "mlpwi_1": "up matmul, dense MLP",
    "mlpwo": "down matmul, dense MLP",
    "moe_mlpwi_0": "gate matmul of experts",
    "moe_mlpwi_1": "up matmul of experts",
    "moe_mlpwo": "down matmul of experts",
}
_BLOCKS = {
    "sa_block_q": ("forward tile: query rows", "splash forward"),
    "sa_block_kv": ("forward tile: key rows", "splash forward"),
    "sa_block_kv_compute": ("forward: key rows a matmul", "splash forward"),
    "sa_block_q_dkv": ("backward tile: query rows", "splash backward (dkv)", "splash backward (fused)"),
    "sa_block_kv_dkv": ("backward tile: key rows", "splash backward (dkv)", "splash backward (fused)"),
    "sa_block_kv_dkv_compute": ("backward: key rows a matmul", "splash backward (dkv)", "splash backward (fused)"),
    "sa_block_q_dq": ("dq tile: query rows", "splash backward (dq)"),
    "sa_block_kv_dq": ("dq tile: key rows", "splash backward (dq)"),
}
_PASSES = {
    "fwd": ("product", "gmm forward"),
    "dlhs": ("token gradient", "gmm dlhs"),
    "drhs": ("weight gradient", "tgmm"),
}
_DIMS = {"batch_seq": ("rows", 512), "embed_dim": ("embed", 1024), "mlp_dim": ("mlp", 1024)}
_LEARNING = {
    "distill_alpha": (0.5, "weight of the KL loss"),
    "distill_temperature": (1.0, "temperature of both logits"),
    "load_balance_loss_weight": (0.0, "weight of router balance loss"),
    "z_loss_multiplier": (0.0, "weight of the z loss"),
    "learning_rate": (3e-5, "peak learning rate"),
    "learning_rate_final_fraction": (0.1, "final share of learning rate"),
    "learning_rate_schedule_steps": (-1, "steps of the schedule"),
    "warmup_steps_fraction": (0.1, "share of warmup steps"),
    "adam_b1": (0.9, "decay of mean gradient"),
    "adam_b2": (0.95, "decay of squared gradient"),
    "adam_eps": (1e-8, "added under Adam's root"),
    "adam_weight_decay": (0.1, "weight decay"),
    "adamw_mask": (UNKNOWN, "parameters that decay spares"),
    "gradient_clipping_threshold": (1.0, "largest gradient norm"),
    "dataset_type": (UNKNOWN, "where batches come from"),
    "grain_train_files": (UNKNOWN, "files of training data"),
    "tokenizer_path": (UNKNOWN, "tokenizer of text records"),
    "data_shuffle_seed": (0, "order of the data"),
    "init_weights_seed": (0, "seed of initial weights"),
    "load_parameters_path": ("", "initial parameters"),
}
_BOOKKEEPING = {
    "steps": "steps of the run",
    "base_output_directory": "folder of all runs",
    "run_name": "name of the run",
    "enable_checkpointing": "whether checkpoints are saved",
    "checkpoint_period": "steps between checkpoints",
    "max_num_checkpoints_to_keep": "checkpoints that are kept",
    "profiler": "kind of trace",
    "skip_first_n_steps_for_profiler": "steps before the trace",
    "profiler_steps": "steps in the trace",
    "hardware": "chip the recipe is for",
    "base_config": "included file, not read here",
}
MODEL = "model"
_MODEL = ("model_name", "student_overrides", "teacher_overrides", "base_", "head_dim", "num_experts", "vocab_size")


@cache
def table() -> dict[str, Entry]:
    """Every key that is known."""
    remat, tiles, mesh = "rematerialisation", "grouped matmul tiles", "mesh"
    found = {
        "remat_policy": Entry("what the backward pass keeps", remat, (_RERUNS, _HOST), True, True, default="full"),
        "per_device_batch_size": Entry("sequences per device", None, (_FIXED,), rest=True, memory=True),
        "max_target_length": Entry("tokens per sequence", None, (_FIXED, _SCORES), rest=True, memory=True, learns=True),
        "gradient_accumulation_steps": Entry(
            "micro-batches per step", None, (Target(part=CALLS), _FIXED), rest=True, memory=True, default=1
        ),
        "attention": Entry("which attention kernel", None, (_ATTENTION,), memory=True),
        "use_tokamax_splash": Entry("tokamax's splash kernel", None, (_SPLASH,), default=False),
        "float32_logits": Entry("attention scores in float32", None, (_ATTENTION,), default=False),
        "sa_use_fused_bwd_kernel": Entry(
            "one backward kernel for all", "splash tiles", (Target(("splash backward",), part=BOTH),), default=False
        ),
        "ici_data_parallelism": Entry(
            "devices that replicate", mesh, (Target(COLLECTIVES, part=BOTH),), True, True, default=1
        ),
        "ici_fsdp_parallelism": Entry(
            "devices that share weights", mesh, (Target(COLLECTIVES, part=BOTH),), True, True, default=-1
        ),
        "dtype": Entry("activations and matmuls", None, (), True, True, True, default="bfloat16"),
        "weight_dtype": Entry(
            "parameters and optimizer state",
            None,
            (Target(("optimizer", *COLLECTIVES)),),
            False,
            True,
            True,
            default="float32",
        ),
        "loss_chunks": Entry("pieces of the logits", None, (Target(("loss and logits",), part=BOTH),), memory=True),
        "distill_beta": Entry(
            "weight of the feature loss", None, (Target(("loss and logits",), part=BOTH),), learns=True, memory=True
        ),
        "distill_layer_indices": Entry("layers the feature loss compares", None, (), memory=True, learns=True),
    }
    for key, what in _REMAT_TENSORS.items():
        found[key] = Entry(
            what, remat, (_RERUNS, _HOST), True, True, default="device" if key == "decoder_layer_input" else "remat"
        )
    for key, (what, *families) in _BLOCKS.items():
        found[key] = Entry(what, "splash tiles", (Target(tuple(families)),), default=512)
    for letter in "qkv":
        found[f"sa_{letter}_layout"] = Entry(
            f"lanes of {letter}: dim or sequence", "splash layouts", (_SPLASH,), default="HEAD_DIM_MINOR"
        )
    for matmul, side in (("wi", "gate, up"), ("wo", "down")):
        for name, (kind, family) in _PASSES.items():
            for dim, (short, size) in _DIMS.items():
                found[f"{matmul}_tile_{name}_{dim}"] = Entry(
                    f"{side} {kind}: {short} tile", tiles, (Target((family,)),), default=size
                )
    found |= {key: Entry(what, learns=True, default=default) for key, (default, what) in _LEARNING.items()}
    return found | {key: Entry(what) for key, what in _BOOKKEEPING.items()}


def entry(key: str, source: str = "config") -> Entry | None:
    """What is known of a key; None for an unknown one. ``source``: "config", "xla_flags", "versions" or "mesh"."""
    if source == "xla_flags":
        return Entry("XLA flag", "XLA flags", rest=True, memory=True)
    if source == "versions":
        return Entry("software version", "versions", rest=True, memory=True)
    if source == "mesh":
        return Entry("devices along the axis", "mesh", (Target(COLLECTIVES, part=BOTH),), rest=True, memory=True)
    known = table().get(key)
    if known is None and key.startswith(("ici_", "dcn_")):
        return Entry("devices along an axis", "mesh", (Target(COLLECTIVES, part=BOTH),), rest=True, memory=True)
    if known is None and key.startswith("sa_"):
        return Entry("splash attention", "splash tiles", (_SPLASH,))
    if known is None and key.startswith(_MODEL):
        return Entry("shape of the model", MODEL, (_ALL,), memory=True, learns=True)
    return known
