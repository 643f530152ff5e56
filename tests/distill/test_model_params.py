"""Parameters: shapes, sharding, first values."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

from distill.config import MODELS
from distill.model import ParamSpec, init_params, param_shardings, param_specs
from profiler.errors import UsageError


@pytest.mark.parametrize(("name", "count"), [("qwen3-30b-a3b", 30_532_122_624), ("gpt-oss-20b", 20_914_757_184)])
def test_a_model_of_the_case_has_as_many_parameters_as_the_published_one(name: str, count: int) -> None:
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_specs(MODELS[name]))) == count


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gpt-oss"])
def test_matrices_decay_and_are_cut_and_vectors_are_not(name: str) -> None:
    spec = MODELS[name]
    for path, leaf in jax.tree_util.tree_leaves_with_path(param_specs(spec)):
        is_matrix = path[-1].key in {"embed", "head", "query", "key", "value", "out", "kernel", "wi_0", "wi_1", "wo"}
        assert leaf.decay == is_matrix, path
        assert ("fsdp" in leaf.partition) == is_matrix, path
        if is_matrix:
            assert leaf.shape[leaf.partition.index("fsdp")] == spec.emb_dim, path


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gpt-oss"])
def test_first_values_follow_the_specs_and_the_key(name: str) -> None:
    spec = MODELS[name]
    start = jax.jit(partial(init_params, spec, dtype=jnp.bfloat16))
    first, again, other = (start(jax.random.key(i)) for i in (0, 0, 1))
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), first, again))
    assert not jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), first, other))

    def check(leaf: ParamSpec, value: jax.Array) -> None:
        assert value.shape == leaf.shape and value.dtype == jnp.bfloat16
        if leaf.init.kind == "normal":  # cut at two standard deviations, which leaves 0.88 of one
            assert np.std(np.asarray(value, np.float32)) == pytest.approx(0.88 * leaf.init.std, rel=0.1)
        else:
            assert (value == (leaf.init.kind == "ones")).all()

    jax.tree.map(check, param_specs(spec), first)


def test_no_two_matrices_start_alike() -> None:
    spec = replace(MODELS["tiny-qwen3"], vocab_size=8)
    experts = jax.jit(lambda key: init_params(spec, key, jnp.float32)["layers"][0]["experts"])(jax.random.key(0))
    assert not (experts["wi_0"] == experts["wi_1"]).any()
    assert not (experts["wi_0"][0] == experts["wi_0"][1]).any()


def test_shardings_follow_the_mesh() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    shardings = param_shardings(MODELS["tiny-gpt-oss"], mesh)
    specs = param_specs(MODELS["tiny-gpt-oss"])
    assert jax.tree.all(jax.tree.map(lambda leaf, at: at.spec == leaf.partition and at.mesh == mesh, specs, shardings))


def test_a_width_that_fsdp_does_not_divide_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"ici_fsdp_parallelism: emb_dim 128 of tiny-qwen3 cannot be cut into 3"):
        param_shardings(MODELS["tiny-qwen3"], AbstractMesh((1, 3), ("data", "fsdp")))
