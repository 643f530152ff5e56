"""Schedule, weight-decay mask and clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from distill.config import MODELS, Config
from distill.model.params import param_specs
from distill.optimizer import decay_mask, global_norm, make_optimizer, make_schedule


def test_the_schedule_rises_in_a_line_and_falls_in_a_half_cosine() -> None:
    config = Config(
        steps=100, learning_rate=1e-3, learning_rate_final_fraction=0.2, warmup_steps_fraction=0.1, profiler=""
    )
    rate = make_schedule(config)
    assert [float(rate(step)) for step in (0, 5, 10, 55, 100, 500)] == pytest.approx(
        [0, 0.5e-3, 1e-3, 0.6e-3, 0.2e-3, 0.2e-3]
    )


def test_the_schedule_can_be_longer_than_the_run() -> None:
    config = Config(steps=20, learning_rate_schedule_steps=200, warmup_steps_fraction=0.1)
    assert float(make_schedule(config)(20)) == pytest.approx(config.learning_rate)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.99])
def test_any_share_of_warmup_below_all_works(fraction: float) -> None:
    rate = make_schedule(Config(warmup_steps_fraction=fraction))
    assert np.isfinite([float(rate(step)) for step in range(32)]).all()


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-gpt-oss"])
def test_matrices_of_the_model_are_decayed_and_norms_biases_sinks_and_the_embedding_are_not(model: str) -> None:
    specs = param_specs(MODELS[model])
    mask = decay_mask(Config().adamw_mask)(jax.tree.map(lambda spec: np.zeros(()), specs, is_leaf=_is_spec))
    paths = {
        jax.tree_util.keystr(path, simple=True, separator="/"): decays
        for path, decays in jax.tree_util.tree_leaves_with_path(mask)
    }
    for path, decays in paths.items():
        plain = path != "embed" and not path.endswith(("norm", "bias", "sinks"))
        assert decays == plain, path
    assert any(paths.values())


def _is_spec(leaf: object) -> bool:
    return hasattr(leaf, "decay")


def test_without_patterns_everything_decays() -> None:
    assert decay_mask(())({"norm": jnp.ones(2), "w": jnp.ones(2)}) == {"norm": True, "w": True}


def test_weight_decay_pulls_what_the_mask_leaves_and_nothing_else() -> None:
    config = Config(learning_rate=0.1, warmup_steps_fraction=0.0, adam_weight_decay=0.5)
    params = {"w": jnp.ones(3), "final_norm": jnp.ones(3)}
    optimizer = make_optimizer(config)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    after = optax.apply_updates(params, updates)
    assert after["w"] == pytest.approx(1 - 0.1 * 0.5)
    assert after["final_norm"] == pytest.approx(1)


def test_one_step_is_adamw_by_hand() -> None:
    config = Config(
        learning_rate=0.1,
        warmup_steps_fraction=0.0,
        adam_weight_decay=0.0,
        gradient_clipping_threshold=0,
        adam_eps=1e-3,
    )
    params, grads = {"w": jnp.array([1.0])}, {"w": jnp.array([2.0])}
    optimizer = make_optimizer(config)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    # First step: both means are corrected to the gradient itself, so the update is rate · g / (|g| + eps).
    assert float(updates["w"][0]) == pytest.approx(-0.1 * 2 / (2 + 1e-3), rel=1e-5)


def test_gradients_above_the_threshold_are_scaled_down_to_it() -> None:
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    assert float(global_norm(grads)) == pytest.approx(5)

    def first_moment(threshold: float) -> float:
        optimizer = make_optimizer(Config(gradient_clipping_threshold=threshold, adam_b1=0.5))
        _, state = optimizer.update(grads, optimizer.init(grads), grads)
        (moment,) = (leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if "mu['a']" in _text(path))
        return float(moment[0])

    assert first_moment(0) == pytest.approx(0.5 * 3)
    assert first_moment(1.0) == pytest.approx(0.5 * 3 / 5)
    assert first_moment(10.0) == pytest.approx(0.5 * 3)


def _text(path: tuple[object, ...]) -> str:
    return jax.tree_util.keystr(path)
