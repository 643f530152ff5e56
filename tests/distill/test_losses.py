"""Losses against plain float64 formulae, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distill import losses

B, T, V, E = 2, 6, 17, 5


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def naive(student, teacher, targets, weights, temperature):
    """kl, cross-entropy and z in float64, straight from the definitions."""
    student, teacher, weights = (np.asarray(x, np.float64) for x in (student, teacher, weights))
    p, q = log_softmax(student / temperature), log_softmax(teacher / temperature)
    kl = temperature**2 * (np.exp(q) * (q - p)).sum(-1)
    ce = -np.take_along_axis(log_softmax(student), np.asarray(targets)[..., None], -1)[..., 0]
    z = np.log(np.exp(student).sum(-1)) ** 2
    return np.array([(weights * each).sum() for each in (kl, ce, z)])


def naive_jax(student, teacher, targets, weights, temperature):
    """The same in float32 JAX, for automatic differentiation."""
    p, q = jax.nn.log_softmax(student / temperature), jax.nn.log_softmax(teacher / temperature)
    kl = temperature**2 * jnp.sum(jnp.exp(q) * (q - p), -1)
    ce = -jnp.take_along_axis(jax.nn.log_softmax(student), targets[..., None], -1)[..., 0]
    return [jnp.sum(weights * each) for each in (kl, ce, jax.nn.logsumexp(student, -1) ** 2)]


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    student, teacher = (jnp.asarray(3 * rng.standard_normal((B, T, V)), jnp.float32) for _ in range(2))
    targets = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
    mask = jnp.asarray([[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1]])
    return student, teacher, targets, losses.token_weights(mask, mask.sum())


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_token_losses_are_their_definitions(batch, temperature):
    np.testing.assert_allclose(
        np.array(losses.token_losses(*batch, temperature)), naive(*batch, temperature), rtol=2e-6
    )


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("index", range(3))
def test_each_gradient_by_hand_is_the_automatic_one(batch, temperature, index):
    student, *rest = batch
    ours = jax.grad(lambda s: losses.token_losses(s, *rest, temperature)[index])(student)
    automatic = jax.grad(lambda s: naive_jax(s, *rest, temperature)[index])(student)
    np.testing.assert_allclose(ours, automatic, rtol=1e-4, atol=2e-7)


def test_a_student_equal_to_its_teacher_has_no_divergence_and_no_gradient(batch):
    student, _, targets, weights = batch
    value, gradient = jax.value_and_grad(lambda s: losses.token_losses(s, student, targets, weights, 2.0).kl)(student)
    assert abs(float(value)) < 1e-6
    assert float(jnp.abs(gradient).max()) < 1e-7


def test_masked_tokens_have_no_say(batch):
    student, teacher, targets, weights = batch
    changed = student.at[0, 4:].add(5.0)
    assert losses.token_losses(*batch, 1.0) == losses.token_losses(changed, teacher, targets, weights, 1.0)


def test_weights_are_a_mean_over_unmasked_tokens_and_zero_for_an_empty_batch():
    mask = jnp.asarray([[1, 1, 0], [0, 0, 1]])
    assert losses.token_weights(mask, mask.sum()).sum() == pytest.approx(1.0)
    assert losses.token_weights(0 * mask, jnp.zeros(())).sum() == 0


def test_the_teacher_receives_no_gradient(batch):
    student, teacher, targets, weights = batch
    gradient = jax.grad(lambda t: sum(losses.token_losses(student, t, targets, weights, 1.0)))(teacher)
    assert not gradient.any()


def test_what_is_kept_for_the_gradient_holds_no_float32_array_of_the_vocabulary(batch):
    student, teacher, targets, weights = batch
    low = (student.astype(jnp.bfloat16), teacher.astype(jnp.bfloat16))
    _, pullback = jax.vjp(lambda s: losses.token_losses(s, low[1], targets, weights, 1.0), low[0])
    kept = [leaf for leaf in jax.tree.leaves(pullback) if leaf.shape == (B, T, V)]
    assert kept
    assert {leaf.dtype for leaf in kept} == {jnp.dtype(jnp.bfloat16)}


def test_bfloat16_logits_give_the_float32_losses_of_the_same_numbers(batch):
    student, teacher, targets, weights = batch
    low = (student.astype(jnp.bfloat16), teacher.astype(jnp.bfloat16))
    same = tuple(x.astype(jnp.float32) for x in low)
    np.testing.assert_allclose(
        np.array(losses.token_losses(*low, targets, weights, 1.0)),
        np.array(losses.token_losses(*same, targets, weights, 1.0)),
        rtol=1e-6,
    )


@pytest.mark.parametrize("chunks", [2, 3, 6])
def test_chunked_losses_and_gradients_equal_the_whole(batch, chunks):
    _, _, targets, weights = batch
    rng = np.random.default_rng(1)
    ours, soft = (jnp.asarray(rng.standard_normal((B, T, E)), jnp.float32) for _ in range(2))
    head, fixed = (jnp.asarray(rng.standard_normal((E, V)), jnp.float32) for _ in range(2))

    def total(hidden, head, chunks):
        terms = losses.chunked_token_losses(
            hidden, soft, lambda x: x @ head, lambda x: x @ fixed, targets, weights, 1.5, chunks
        )
        return 0.6 * terms.kl + 0.4 * terms.cross_entropy + 1e-2 * terms.z

    def value_and_grad(n):
        return jax.jit(jax.value_and_grad(lambda h, w: total(h, w, n), (0, 1)))(ours, head)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), value_and_grad(1), value_and_grad(chunks)
    )


def test_feature_loss_is_the_mean_cosine_distance_over_layers_and_unmasked_tokens(batch):
    weights = batch[3]
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 3, B, T, E))
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    expected = ((1 - cosine).mean(0) * np.asarray(weights)).sum()
    ours = losses.feature_loss(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32), weights)
    assert float(ours) == pytest.approx(expected, rel=1e-5)
    gradient = jax.grad(lambda t: losses.feature_loss(jnp.asarray(a, jnp.float32), t, weights))
    assert not gradient(jnp.asarray(b, jnp.float32)).any()


def test_feature_loss_of_zero_activations_has_a_finite_gradient():
    weights = jnp.ones((1, 1))
    gradient = jax.grad(lambda s: losses.feature_loss(s, jnp.ones((1, 1, 1, E)), weights))(jnp.zeros((1, 1, 1, E)))
    assert jnp.isfinite(gradient).all()


def test_load_balance_loss_is_the_number_of_choices_when_experts_are_used_evenly_and_more_otherwise():
    even = losses.load_balance_loss(jnp.full((3, 8), 2 / 8), jnp.full((3, 8), 1 / 8))
    assert float(even) == pytest.approx(2.0)
    one = jnp.zeros((1, 8)).at[0, 0].set(1.0)
    assert float(losses.load_balance_loss(one, one)) == pytest.approx(8.0)
