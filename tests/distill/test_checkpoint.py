"""Checkpoints: whole or not at all, and no failure costs an earlier one."""

import resource
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distill.checkpoint import CheckpointError, Checkpoints, load_params
from distill.state import TrainState
from profiler.errors import UnreadableError

# An event loop inside orbax that the garbage collector finds before it is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def state(seed, size=1000):
    key = jax.random.key(seed)
    params = {"w": jax.random.normal(key, (size, 100)), "low": jnp.arange(8, dtype=jnp.bfloat16)}
    return TrainState(step=jnp.int32(seed), params=params, opt_state=(jnp.zeros(3), {"count": jnp.int32(seed)}))


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(np.asarray(left, np.float64), np.asarray(right, np.float64))


@contextmanager
def no_room(limit):
    """No file may grow beyond ``limit`` bytes: a full disk, as far as whoever writes can tell."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_state_comes_back_bit_for_bit_with_its_facts(tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest is None
        checkpoints.save(3, state(3), {"data": {"step": 3}, "config": {"steps": 5}})
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest == 3
        assert checkpoints.facts(3) == {"data": {"step": 3}, "config": {"steps": 5}}
        same(checkpoints.restore(3, abstract(state(0))), state(3))


def test_the_newest_two_are_kept(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step, 2), {})
        assert checkpoints.latest == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2", "3"]


def test_saving_a_step_twice_is_no_error(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1, 2), {})
        checkpoints.save(1, state(1, 2), {})


def test_a_full_disk_is_one_clear_error_and_loses_no_earlier_checkpoint(tmp_path, monkeypatch, capfd):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state(1), {})
        capfd.readouterr()
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100_000))
        with pytest.raises(CheckpointError) as caught:
            checkpoints.save(2, state(2), {})
        monkeypatch.undo()
        assert "cannot write a checkpoint: No space left on device: 0.1 MB free of 0.4 needed" in str(caught.value)
        assert capfd.readouterr().err == ""
        same(checkpoints.restore(1, abstract(state(1))), state(1))
        checkpoints.save(2, state(2), {})
        assert checkpoints.latest == 2


def test_a_disk_that_fills_up_while_saving_loses_no_earlier_checkpoint(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state(1), {})
        with no_room(100_000), pytest.raises(CheckpointError) as caught:
            checkpoints.save(2, state(2), {})
    assert "cannot write a checkpoint: File too large (earlier checkpoints are kept" in str(caught.value)
    assert "\n" not in str(caught.value)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest == 1
        same(checkpoints.restore(1, abstract(state(1))), state(1))


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write a checkpoint: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints")


def test_half_a_checkpoint_is_never_taken(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1, 2), {})
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest == 1


def test_another_model_is_one_clear_error(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1, 2), {})
        with pytest.raises(UnreadableError, match="no checkpoint of this configuration"):
            checkpoints.restore(1, abstract(state(1, 3)))


def test_parameters_alone_start_another_run_in_its_own_dtype(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1, 2), {})
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=x.sharding), state(0, 2).params)
    same(load_params(tmp_path / "1", like), jax.tree.map(lambda x: x.astype(jnp.bfloat16), state(1, 2).params))


def test_parameters_of_nothing_are_one_clear_error(tmp_path):
    with pytest.raises(UnreadableError, match="is no checkpoint"):
        load_params(tmp_path / "7", {})
