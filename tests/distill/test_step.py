"""The step: what it trains, what it leaves alone, and that the way it is split over microbatches changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distill.config import Config
from distill.data import open_data
from distill.kernels import select
from distill.mesh import local_rows, make_mesh, put_batch
from distill.step import LOSSES, build

SMALL = {
    "student_overrides": {"base_num_decoder_layers": 2, "base_emb_dim": 32, "num_experts": 4, "base_moe_mlp_dim": 16},
    "teacher_overrides": {"base_num_decoder_layers": 2, "base_emb_dim": 32, "num_experts": 4, "base_moe_mlp_dim": 16},
    "dtype": "float32",
    "per_device_batch_size": 4,
    "max_target_length": 32,
    "distill_beta": 1.0,
    "distill_layer_indices": [0, 1],
    "load_balance_loss_weight": 0.01,
    "z_loss_multiplier": 1e-4,
    "learning_rate": 1e-3,
    "warmup_steps_fraction": 0.0,
    "profiler": "",
}


def make(**changes):
    config = Config(**SMALL | changes)
    mesh = make_mesh(config, jax.devices()[:1])
    return build(config, mesh, select(config, "cpu"))


def batch(step, number=0):
    data = open_data(step.config, step.mesh.size)
    return put_batch(step.mesh, data.batch(number, local_rows(step.mesh, data.global_batch)), data.global_batch)


def copy(tree):
    return jax.tree.map(jnp.copy, tree)


def difference(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)))) for x, y in pairs)


@pytest.fixture(scope="module")
def whole():
    """A step, its state, teacher and batch, and what one step of it gives."""
    step = make()
    state, teacher, data = step.init_state(), step.init_teacher(), batch(step)
    return step, state, teacher, data, step.step_fn(copy(state), teacher, data)


def test_the_loss_is_the_weighted_sum_of_its_parts(whole):
    step, _, _, _, (_, metrics) = whole
    config, parts = step.config, {name: float(metrics[name]) for name in LOSSES}
    expected = (
        config.distill_alpha * parts["kl"]
        + (1 - config.distill_alpha) * parts["cross_entropy"]
        + config.distill_beta * parts["feature_loss"]
        + config.load_balance_loss_weight * parts["load_balance_loss"]
        + config.z_loss_multiplier * parts["z_loss"]
    )
    assert parts["loss"] == pytest.approx(expected, rel=1e-6)
    assert all(value > 0 for value in parts.values())


def test_the_teacher_is_an_input_and_nothing_else(whole):
    _, state, teacher, _, (after, _) = whole
    before = copy(teacher)
    assert difference(before, teacher) == 0
    # Nothing of the teacher's size is in the state, before or after: no moments, no gradient.
    student = {leaf.size for leaf in jax.tree.leaves(state.params)} | {1}
    assert {leaf.size for leaf in jax.tree.leaves(after)} <= student
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_the_teacher_has_no_optimizer_state_even_where_it_is_larger_than_the_student():
    step = make(teacher_overrides=SMALL["teacher_overrides"] | {"base_num_decoder_layers": 4}, distill_beta=0.0)
    state, teacher, _ = step.abstract_arguments()
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    moments = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim)
    assert moments == 2 * weights  # Adam's two, of the student
    assert sum(leaf.size for leaf in jax.tree.leaves(teacher)) > weights


def test_no_gradient_reaches_the_teacher(whole):
    step, state, teacher, data, _ = whole
    slope = jax.grad(lambda fixed: step.step_fn(copy(state), fixed, data)[1]["loss"])(teacher)
    assert difference(slope, jax.tree.map(jnp.zeros_like, slope)) == 0


def test_a_step_moves_every_parameter_of_the_student(whole):
    _, state, _, _, (after, _) = whole
    for path, before in jax.tree_util.tree_leaves_with_path(state.params):
        moved = jax.tree_util.tree_leaves_with_path(after.params)
        assert any(p == path and bool(jnp.any(leaf != before)) for p, leaf in moved), jax.tree_util.keystr(path)
    assert int(after.step) == 1


def test_the_states_buffers_are_donated(whole):
    step, state, teacher, data, _ = whole
    mine = copy(state)
    step.step_fn(mine, teacher, data)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(mine.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(teacher))


def test_abstract_arguments_are_the_real_ones(whole):
    step, state, teacher, data, _ = whole
    abstract = step.abstract_arguments()
    assert jax.tree.structure(abstract) == jax.tree.structure((state, teacher, data))
    for expected, real in zip(jax.tree.leaves(abstract), jax.tree.leaves((state, teacher, data)), strict=True):
        assert (expected.shape, expected.dtype) == (real.shape, real.dtype)
        assert expected.sharding.is_equivalent_to(real.sharding, real.ndim)


def test_the_scopes_tell_teacher_student_loss_and_optimizer_apart(whole):
    step = whole[0]
    text = step.step_fn.lower(*step.abstract_arguments()).as_text(debug_info=True)
    for scope in ("/teacher/", "jvp(student)", "transpose(jvp(student))", "/optimizer/", "loss"):
        assert scope in text


def test_accumulated_microbatches_give_the_whole_batchs_gradient(whole):
    changes = {"load_balance_loss_weight": 0.0}  # the one loss that is not a sum over tokens
    one, parts = make(**changes), make(**changes, per_device_batch_size=2, gradient_accumulation_steps=2)
    _, state, teacher, data, _ = whole
    data = data | {"loss_mask": data["loss_mask"].at[0, :20].set(0)}  # unequal masks: a mean of means would be wrong
    (after, ours), (accumulated, theirs) = (each.step_fn(copy(state), teacher, data) for each in (one, parts))
    for name in ("loss", "kl", "cross_entropy", "feature_loss", "z_loss", "grad_norm"):
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-5), name
    assert difference(after.opt_state, accumulated.opt_state) < 1e-6


@pytest.mark.parametrize("changes", [{"loss_chunks": 4}, {"remat_policy": "custom", "context": "device"}], ids=str)
def test_how_a_step_is_computed_does_not_change_it(whole, changes):
    _, state, teacher, data, (after, metrics) = whole
    other, theirs = make(**changes).step_fn(copy(state), teacher, data)
    for name, value in metrics.items():
        assert float(theirs[name]) == pytest.approx(float(value), rel=1e-5), name
    assert difference(after.opt_state, other.opt_state) < 1e-6
