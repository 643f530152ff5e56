"""One optimizer step: the teacher's forward pass, the student's forward and backward pass, the update.

``build`` makes the one jitted function that training runs and that an ahead-of-time compile lowers. Its scopes tell a
trace what every op is for: teacher, student, loss, optimizer.

Letters in shapes: G microbatches, B sequences of a microbatch on all devices, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distill import losses
from distill.config import Config, ModelSpec
from distill.kernels import Kernels
from distill.mesh import BATCH
from distill.model import Params, forward, init_params, logits, param_shardings
from distill.optimizer import global_norm, make_optimizer, make_schedule
from distill.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]

# Arrays of a batch, all [G · B, T].
BATCH_DTYPES = {
    "tokens": jnp.int32,
    "targets": jnp.int32,
    "segment_ids": jnp.int32,
    "positions": jnp.int32,
    "loss_mask": jnp.int32,
}
LOSSES = ("loss", "kl", "cross_entropy", "feature_loss", "load_balance_loss", "z_loss")


@dataclass(frozen=True)
class TrainStep:
    """The step of one configuration on one mesh.

    Attributes:
        step_fn: jitted (state, teacher parameters, batch) → (new state, metrics). The state's buffers are donated: it
            must not be used again. Metrics are float32 scalars: ``LOSSES``, ``grad_norm``, ``learning_rate``.
        optimizer: what ``state.opt_state`` belongs to.
    """

    config: Config
    mesh: Mesh
    optimizer: optax.GradientTransformation
    step_fn: Any

    def abstract_arguments(self) -> tuple[TrainState, Params, dict[str, jax.ShapeDtypeStruct]]:
        """The arguments of ``step_fn`` as ShapeDtypeStruct with NamedSharding: enough to compile it without data."""
        return (
            abstract_state(self.config, self.mesh, self.optimizer),
            abstract_params(self.config.teacher, self.mesh, self.config.dtype),
            abstract_batch(self.config, self.mesh),
        )

    def init_state(self) -> TrainState:
        """A new student at step 0, made where it will live; init_weights_seed decides its values."""
        key = jax.random.fold_in(jax.random.key(self.config.init_weights_seed), 0)

        def init(key: jax.Array) -> TrainState:
            params = init_params(self.config.student, key, jnp.dtype(self.config.weight_dtype))
            return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params))

        return jax.jit(init, out_shardings=_shardings(self.abstract_arguments()[0]))(key)

    def init_teacher(self) -> Params:
        """A new teacher: other values than the student's, from the same seed, held in ``dtype``."""
        key = jax.random.fold_in(jax.random.key(self.config.init_weights_seed), 1)

        def init(key: jax.Array) -> Params:
            return init_params(self.config.teacher, key, jnp.dtype(self.config.dtype))

        return jax.jit(init, out_shardings=param_shardings(self.config.teacher, self.mesh))(key)


def build(config: Config, mesh: Mesh, kernels: Kernels) -> TrainStep:
    """The step of a configuration.

    Args:
        config: what to train and how.
        mesh: axes "data" and "fsdp"; its devices may be a topology's that no hardware stands behind.
        kernels: for the platform that the step will run on.
    """
    optimizer, schedule = make_optimizer(config), make_schedule(config)

    def gradients(params: Params, teacher: Params, batch: Batch, count: jax.Array) -> tuple[Params, Metrics]:
        """Of one microbatch, arrays [B, T]; ``count`` is the unmasked tokens of the whole step."""
        inputs = batch["tokens"], batch["positions"], batch["segment_ids"]
        run: dict[str, Any] = {"config": config, "mesh": mesh, "kernels": kernels}
        # The barriers behind both forward passes make the compiler pick the chosen layers' features before the logits:
        # else it may keep all layers' beside them, 12 GiB each for qwen3-30b at eight sequences per device.
        soft = forward(teacher, *inputs, spec=config.teacher, scope="teacher", remat=False, **run)
        soft = jax.lax.optimization_barrier(jax.lax.stop_gradient(soft))
        weights = losses.token_weights(batch["loss_mask"], count)

        def teacher_logits(hidden: jax.Array) -> jax.Array:
            with jax.named_scope("teacher"):
                return logits(teacher, hidden, config.teacher, config)

        def loss_fn(params: Params) -> tuple[jax.Array, Metrics]:
            ours = forward(params, *inputs, spec=config.student, scope="student", remat=True, **run)
            ours = jax.lax.optimization_barrier(ours)

            def student_logits(hidden: jax.Array) -> jax.Array:
                with jax.named_scope("student"):
                    return logits(params, hidden, config.student, config)

            with jax.named_scope("loss"):
                tokens = losses.chunked_token_losses(
                    ours.hidden,
                    soft.hidden,
                    student_logits,
                    teacher_logits,
                    batch["targets"],
                    weights,
                    config.distill_temperature,
                    config.loss_chunks,
                )
                balance = losses.load_balance_loss(ours.router.fraction, ours.router.probability)
                # A microbatch is 1 / G of the step; token losses are that part already, by their weights.
                balance /= config.gradient_accumulation_steps
                features = jnp.zeros((), jnp.float32)
                if ours.features is not None and soft.features is not None:
                    features = losses.feature_loss(ours.features, soft.features, weights)
                return _weighed(config, tokens, features, balance)

        (_, parts), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return grads, parts

    def train_step(state: TrainState, teacher: Params, batch: Batch) -> tuple[TrainState, Metrics]:
        count = jnp.sum(batch["loss_mask"])
        if config.gradient_accumulation_steps == 1:
            grads, metrics = gradients(state.params, teacher, batch, count)
        else:
            grads, metrics = _accumulated(
                lambda micro: gradients(state.params, teacher, micro, count),
                _microbatches(batch, config.gradient_accumulation_steps, mesh),
            )
        with jax.named_scope("optimizer"):
            metrics["grad_norm"] = global_norm(grads)
            metrics["learning_rate"] = jnp.asarray(schedule(state.step), jnp.float32)
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), metrics

    state = abstract_state(config, mesh, optimizer)
    teacher = abstract_params(config.teacher, mesh, config.dtype)
    arguments = (state, teacher, abstract_batch(config, mesh))
    step_fn = jax.jit(
        train_step,
        in_shardings=_shardings(arguments),
        out_shardings=(_shardings(state), NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )
    return TrainStep(config, mesh, optimizer, step_fn)


def abstract_params(spec: ModelSpec, mesh: Mesh, dtype: str) -> Params:
    """A model's parameters as ShapeDtypeStruct with NamedSharding."""
    shapes = jax.eval_shape(lambda key: init_params(spec, key, jnp.dtype(dtype)), jax.random.key(0))
    return jax.tree.map(_abstract, shapes, param_shardings(spec, mesh))


def abstract_state(config: Config, mesh: Mesh, optimizer: optax.GradientTransformation) -> TrainState:
    """The state as ShapeDtypeStruct with NamedSharding: moments lie where their parameters do, counters everywhere."""
    params = abstract_params(config.student, mesh, config.weight_dtype)
    everywhere = NamedSharding(mesh, PartitionSpec())
    opt_state = optax.tree_map_params(
        optimizer,
        lambda leaf, param: _abstract(leaf, param.sharding),
        jax.eval_shape(optimizer.init, params),
        params,
        transform_non_params=lambda leaf: _abstract(leaf, everywhere),
    )
    return TrainState(jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere), params, opt_state)


def abstract_batch(config: Config, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The batch of one step on all devices, [G · B, T] each, as ShapeDtypeStruct with NamedSharding."""
    shape = (config.sequences_per_step(mesh.size), config.max_target_length)
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, BATCH))
        for name, dtype in BATCH_DTYPES.items()
    }


def _weighed(
    config: Config, tokens: losses.TokenLosses, features: jax.Array, balance: jax.Array
) -> tuple[jax.Array, Metrics]:
    """α · kl + (1 − α) · cross-entropy + β · features + weighted regularisers; and the parts, unweighted."""
    loss = (
        config.distill_alpha * tokens.kl
        + (1 - config.distill_alpha) * tokens.cross_entropy
        + config.distill_beta * features
        + config.load_balance_loss_weight * balance
        + config.z_loss_multiplier * tokens.z
    )
    return loss, dict(zip(LOSSES, (loss, tokens.kl, tokens.cross_entropy, features, balance, tokens.z), strict=True))


def _microbatches(batch: Batch, count: int, mesh: Mesh) -> Batch:
    """[G · B, T] → [G, B, T]. Every device keeps its own sequences: its G · b rows become b rows of each microbatch."""
    sharding = NamedSharding(mesh, PartitionSpec(None, *BATCH))

    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree.map(split, batch)


def _accumulated(gradients: Callable[[Batch], tuple[Params, Metrics]], microbatches: Batch) -> tuple[Params, Metrics]:
    """Sums of the microbatches' gradients and metrics, one microbatch alive at a time."""

    def body(total: Any, micro: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradients(micro)), None

    first = jax.tree.map(lambda x: x[0], microbatches)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradients, first))
    total: tuple[Params, Metrics] = jax.lax.scan(body, zeros, microbatches)[0]
    return total


def _abstract(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, tree)
