"""What the student minimises: per-token distillation losses, feature loss, load-balance loss.

Letters in shapes: B batch, T sequence, V vocabulary, E embedding, N chosen layers, L layers, X experts.

Per-token losses are sums over tokens weighted by ``weights`` [B, T]: the loss mask divided by the number of unmasked
tokens of the global batch. So they are means over unmasked tokens, and pieces (loss chunks, microbatches of gradient
accumulation) add up to the whole whatever their masks are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

LogitsFn = Callable[[jax.Array], jax.Array]


class TokenLosses(NamedTuple):
    """Weighted sums over tokens, float32 scalars, in nats (``z`` in nats²)."""

    kl: jax.Array
    cross_entropy: jax.Array
    z: jax.Array


def token_weights(loss_mask: jax.Array, count: jax.Array) -> jax.Array:
    """[B, T] weights whose sum over the global batch is 1 (0 if it has no unmasked token).

    Args:
        loss_mask: [B, T], 1 for tokens that count, 0 for padding.
        count: unmasked tokens of the global batch.
    """
    return loss_mask.astype(jnp.float32) / jnp.maximum(count.astype(jnp.float32), 1.0)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def token_losses(
    student_logits: jax.Array,
    teacher_logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    temperature: float,
) -> TokenLosses:
    """Distillation, cross-entropy and z loss of one batch from full logits.

    With p, q the student's and teacher's distributions, τ the temperature and Z the student's partition function:

    - kl = τ² · KL(q_τ ‖ p_τ) = τ² Σ_v q_τ(v) (log q_τ(v) − log p_τ(v)); τ² keeps the gradient's size independent of τ
      (Hinton, Vinyals, Dean 2015, "Distilling the Knowledge in a Neural Network", section 2).
    - cross_entropy = −log p(target), at temperature 1.
    - z = log² Z at temperature 1, which keeps logits from drifting (PaLM, Chowdhery et al. 2022, section 5).

    The gradient is written by hand so that only the logits as they are (bf16) and three log-sum-exps per token are kept
    for it. Differentiating the formula would keep float32 softmaxes over the whole vocabulary: at qwen3's size and six
    sequences per device 27.8 GiB each. No gradient flows to the teacher, to targets or to weights.

    Args:
        student_logits, teacher_logits: [B, T, V], any float type.
        targets: [B, T] token ids.
        weights: [B, T] float32, see ``token_weights``.
        temperature: τ of the distillation loss, positive.
    """
    return _forward(student_logits, teacher_logits, targets, weights, temperature)[0]


def _forward(
    student_logits: jax.Array, teacher_logits: jax.Array, targets: jax.Array, weights: jax.Array, temperature: float
) -> tuple[TokenLosses, tuple[jax.Array, ...]]:
    s, t = student_logits.astype(jnp.float32), teacher_logits.astype(jnp.float32)  # fused into the sums, not stored
    log_z = jax.nn.logsumexp(s, axis=-1)  # [B, T], as are the next two
    log_z_student = jax.nn.logsumexp(s / temperature, axis=-1)
    log_z_teacher = jax.nn.logsumexp(t / temperature, axis=-1)
    q = jnp.exp(t / temperature - log_z_teacher[..., None])
    log_ratio = (t - s) / temperature - (log_z_teacher - log_z_student)[..., None]
    kl = temperature**2 * jnp.sum(q * log_ratio, axis=-1)
    picked = _pick(student_logits, targets).astype(jnp.float32)
    losses = TokenLosses(
        kl=jnp.sum(weights * kl),
        cross_entropy=jnp.sum(weights * (log_z - picked)),
        z=jnp.sum(weights * log_z**2),
    )
    return losses, (student_logits, teacher_logits, targets, weights, log_z, log_z_student, log_z_teacher)


def _pick(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """[B, T], the logit of each target.

    A gather of bits: libtpu 0.0.42 cannot compile one of bfloat16 from a large vocabulary. A masked sum over the
    vocabulary is no way round it: with it libtpu 0.0.52 keeps one more [B, T, V] alive at the peak, 13.9 GiB.
    """
    bits = jax.lax.bitcast_convert_type(logits, jnp.dtype(f"uint{8 * logits.dtype.itemsize}"))
    picked = jnp.take_along_axis(bits, targets[..., None], axis=-1)[..., 0]
    return jax.lax.bitcast_convert_type(picked, logits.dtype)


def _backward(
    temperature: float, residuals: tuple[jax.Array, ...], gradient: TokenLosses
) -> tuple[jax.Array | None, ...]:
    student_logits, teacher_logits, targets, weights, log_z, log_z_student, log_z_teacher = residuals
    s, t = student_logits.astype(jnp.float32), teacher_logits.astype(jnp.float32)
    p = jnp.exp(s - log_z[..., None])
    p_tau = jnp.exp(s / temperature - log_z_student[..., None])
    q_tau = jnp.exp(t / temperature - log_z_teacher[..., None])
    is_target = jax.lax.broadcasted_iota(targets.dtype, s.shape, s.ndim - 1) == targets[..., None]
    per_token = (
        gradient.kl * temperature * (p_tau - q_tau)
        + gradient.cross_entropy * (p - is_target.astype(jnp.float32))
        + gradient.z * (2.0 * log_z)[..., None] * p
    )
    return (weights[..., None] * per_token).astype(student_logits.dtype), None, None, None


token_losses.defvjp(_forward, _backward)


def chunked_token_losses(
    student_hidden: jax.Array,
    teacher_hidden: jax.Array,
    student_logits: LogitsFn,
    teacher_logits: LogitsFn,
    targets: jax.Array,
    weights: jax.Array,
    temperature: float,
    chunks: int,
) -> TokenLosses:
    """``token_losses`` of the hidden states' logits, computed for T / chunks positions at a time.

    One chunk's logits are alive at a time, forward and backward: they are made again for the gradient. With one chunk
    they are whole and kept, as the case's recipes do.

    Args:
        student_hidden, teacher_hidden: [B, T, E] (the two E may differ).
        student_logits, teacher_logits: unembeddings, [B, t, E] → [B, t, V].
        targets, weights, temperature: see ``token_losses``.
        chunks: a divisor of T.
    """

    def losses(student: jax.Array, teacher: jax.Array, *rest: jax.Array) -> TokenLosses:
        return token_losses(student_logits(student), jax.lax.stop_gradient(teacher_logits(teacher)), *rest, temperature)

    if chunks == 1:
        return losses(student_hidden, teacher_hidden, targets, weights)

    def split(x: jax.Array) -> jax.Array:  # [B, T, …] → [chunks, B, T / chunks, …]
        return jnp.moveaxis(x.reshape(x.shape[0], chunks, x.shape[1] // chunks, *x.shape[2:]), 1, 0)

    @partial(jax.checkpoint, prevent_cse=False)
    def body(total: TokenLosses, chunk: tuple[jax.Array, ...]) -> tuple[TokenLosses, None]:
        return TokenLosses(*map(jnp.add, total, losses(*chunk))), None

    zero = TokenLosses(*(jnp.zeros((), jnp.float32),) * 3)
    pieces = tuple(map(split, (student_hidden, teacher_hidden, targets, weights)))
    return jax.lax.scan(body, zero, pieces)[0]


def feature_loss(student: jax.Array, teacher: jax.Array, weights: jax.Array) -> jax.Array:
    """Mean cosine distance, 1 − cos(student, teacher), over chosen layers and unmasked tokens; scalar in [0, 2].

    Args:
        student, teacher: [N, B, T, E] activations of the chosen layers, compared in float32.
        weights: [B, T], see ``token_weights``.
    """
    student, teacher = student.astype(jnp.float32), jax.lax.stop_gradient(teacher).astype(jnp.float32)
    distance = optax.losses.cosine_distance(student, teacher, axis=-1, epsilon=1e-6)  # [N, B, T]
    return jnp.sum(distance.mean(axis=0) * weights)


def load_balance_loss(fraction: jax.Array, probability: jax.Array) -> jax.Array:
    """Mean over layers of X · Σ_x fraction_x · probability_x: how unevenly the router uses the experts.

    Switch Transformers (Fedus, Zoph, Shazeer 2021, equations 4 to 6) for one choice per token. With K choices fractions
    sum to K here, as in MaxText and Hugging Face's transformers, so that the loss is K when experts are used evenly.

    Both statistics are of the global batch: a mean of the devices' own losses would be another loss, and would change
    with the number of devices. Microbatches of gradient accumulation have one loss each.

    Args:
        fraction: [L, X] choices of each expert per token; no gradient.
        probability: [L, X] mean router probability.
    """
    experts = fraction.shape[-1]
    return experts * jnp.mean(jnp.sum(jax.lax.stop_gradient(fraction) * probability, axis=-1))
