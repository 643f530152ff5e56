"""Records the pair in cpu-remat/: one training step of a small language model on the CPU, two remat policies.

    python sample_profiles/record_cpu_pair.py [-o FOLDER]

Both sides train the same model from the same seed on the same tokens; only ``remat_policy`` differs. ``full`` keeps
nothing of a layer but its input and runs the layer again in the backward pass; ``none`` keeps every activation. The
losses must therefore agree, and the time between the two is what rematerialisation costs.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import yaml

SIDES = {"baseline": "full", "optimized": "none"}

# By default glibc gives large blocks back to the kernel after every step, and faulting their pages in again costs more
# the more activations are kept, which would hide the price of rematerialisation. An accelerator keeps its memory too.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Source locations from the repository's root or site-packages on, not from the recording machine's own folders.
    "JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": "^.*/(?=sample_profiles/|site-packages/)",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=4000000000:glibc.malloc.arena_max=1",
}


@dataclass(frozen=True)
class Config:
    """The whole run; key names are MaxText's where it has one."""

    remat_policy: str
    model_name: str = "sample-lm"
    base_num_decoder_layers: int = 4
    base_emb_dim: int = 512
    base_num_query_heads: int = 4
    head_dim: int = 128
    base_mlp_dim: int = 2048
    vocab_size: int = 512
    max_target_length: int = 256
    per_device_batch_size: int = 1
    learning_rate: float = 0.1
    warmup_steps: int = 4
    steps: int = 8
    seed: int = 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on."""
        return self.per_device_batch_size * self.max_target_length

    @property
    def model_tflops_per_step(self) -> float:
        """Useful FLOPs of a step, forward and backward, after MaxText: remat and the embedding lookup do not count."""
        b, t, e = self.per_device_batch_size, self.max_target_length, self.base_emb_dim
        hd = self.base_num_query_heads * self.head_dim
        projections = 2 * b * t * e * 3 * hd + 2 * b * t * hd * e
        attention = 4 * b * t**2 * hd / 2  # a causal mask leaves half
        mlp = 2 * 2 * b * t * e * self.base_mlp_dim
        logits = 2 * b * t * e * self.vocab_size
        forward = self.base_num_decoder_layers * (projections + attention + mlp) + logits
        return 3 * forward / 1e12


def init_params(config: Config, key: jax.Array) -> dict[str, jax.Array]:
    """Normal weights, scaled by fan-in; a layer's weights are stacked along axis 0 for ``lax.scan``."""
    layers, e, f = config.base_num_decoder_layers, config.base_emb_dim, config.base_mlp_dim
    hd = config.base_num_query_heads * config.head_dim
    shapes = {
        "embed": (config.vocab_size, e),
        "qkv": (layers, e, 3 * hd),
        "out": (layers, hd, e),
        "up": (layers, e, f),
        "down": (layers, f, e),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape) * shape[-2] ** -0.5
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    } | {"norms": jnp.ones((layers, 2, e))}


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x / rms(x) · scale over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def layer(config: Config, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """One decoder layer, [B, T, E] → [B, T, E]."""
    b, t, _ = x.shape
    h, d = config.base_num_query_heads, config.head_dim
    with jax.named_scope("self_attention"):
        qkv = rms_norm(x, weights["norms"][0]) @ weights["qkv"]
        q, k, v = jnp.moveaxis(qkv.reshape(b, t, 3, h, d), 2, 0)  # each [B, T, H, D]
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * d**-0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
        context = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
        x = x + context.reshape(b, t, h * d) @ weights["out"]
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(rms_norm(x, weights["norms"][1]) @ weights["up"]) @ weights["down"]


def loss_fn(config: Config, params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token; tokens are [B, T + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with jax.named_scope("embed"):
        x = params["embed"][inputs]

    def body(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return layer(config, x, weights), None

    if config.remat_policy == "full":
        body = jax.checkpoint(body, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)
    with jax.named_scope("layers"):
        x, _ = jax.lax.scan(body, x, {name: params[name] for name in ("qkv", "out", "up", "down", "norms")})
    with jax.named_scope("loss"):
        logits = rms_norm(x, jnp.ones(x.shape[-1])) @ params["embed"].T
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def make_step(config: Config):
    """The jitted training step: (params, tokens) → (params, loss), with plain gradient descent.

    Adam would read and write each weight's moments too, which on a CPU takes longer than the matmuls of so few tokens.
    """

    def train_step(params, tokens):
        loss, grads = jax.value_and_grad(lambda p: loss_fn(config, p, tokens))(params)
        with jax.named_scope("optimizer"):
            params = jax.tree.map(lambda p, g: p - config.learning_rate * g, params, grads)
        return params, loss

    return jax.jit(train_step, donate_argnums=0)


def record(config: Config, folder: Path) -> tuple[Path, list[float], list[float]]:
    """Trains; traces the steps after the warm-up.

    Returns:
        The trace, the loss of every step and the wall seconds of every traced step.
    """
    key = jax.random.key(config.seed)
    params = init_params(config, key)
    shape = (config.per_device_batch_size, config.max_target_length + 1)
    total = config.warmup_steps + config.steps
    tokens = jax.random.randint(key, shape, 0, config.vocab_size)  # one batch, learned by heart: the loss must fall
    step = make_step(config)

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python frames are most of a default trace and say nothing about the device
    options.host_tracer_level = 2
    losses: list[float] = []
    seconds: list[float] = []
    for i in range(total):
        if i == config.warmup_steps:
            jax.profiler.start_trace(str(folder), profiler_options=options)
        start = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            params, loss = step(params, tokens)
            jax.block_until_ready((params, loss))
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss))
    jax.profiler.stop_trace()
    (trace,) = folder.rglob("*.xplane.pb")
    return trace, losses, seconds[config.warmup_steps :]


def record_side(side: str, folder: Path) -> None:
    """Writes SIDE.xplane.pb.gz and SIDE.yml into the folder."""
    config = Config(remat_policy=SIDES[side])
    with tempfile.TemporaryDirectory() as temporary:
        trace, losses, seconds = record(config, Path(temporary))
        target = folder / f"{side}.xplane.pb.gz"
        with trace.open("rb") as source, target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            shutil.copyfileobj(source, packed)
        sizes = f"{trace.stat().st_size / 1e3:.0f} kB, {target.stat().st_size / 1e3:.0f} kB gzipped"
    facts = {
        "tokens_per_step": config.tokens_per_step,
        "model_tflops_per_device_per_step": config.model_tflops_per_step,
        "convention": "maxtext",
        "layers": config.base_num_decoder_layers,
    }
    (folder / f"{side}.yml").write_text(yaml.safe_dump(asdict(config) | facts, sort_keys=False))
    median = statistics.median(seconds) * 1e3
    print(f"{side}: remat_policy {config.remat_policy}, step {median:.1f} ms (median of {len(seconds)}), {sizes}")
    print(f"{side}: losses {' '.join(f'{loss:.6f}' for loss in losses)}", flush=True)


def main() -> None:
    """Records the sides, each in a process of its own, so that neither trace holds the other's programs."""
    parser = argparse.ArgumentParser(description="Record the CPU sample pair.")
    parser.add_argument("--side", choices=SIDES, help="record this side only, in this process")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "cpu-remat")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.side:
        record_side(args.side, args.output)
        return
    for side in SIDES:
        command = [sys.executable, __file__, "--side", side, "-o", str(args.output)]
        subprocess.run(command, env=os.environ | ENVIRONMENT, check=True)


if __name__ == "__main__":
    main()
