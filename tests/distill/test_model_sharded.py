"""One model on one device and cut over four, and with the kernels of a TPU: the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from distill.config import MODELS, Config, ModelSpec
from distill.kernels import Kernels, select
from distill.model import Params, forward, init_params, param_shardings

B = 4


def loss_and_gradient(
    spec: ModelSpec, params: Params, mesh: Mesh, config: Config, kernels: Kernels, T: int
) -> tuple[jax.Array, Params]:
    tokens = jax.random.randint(jax.random.key(3), (B, T), 0, spec.vocab_size)
    ids = tokens, jnp.tile(jnp.arange(T), (B, 1)), jnp.arange(T)[None, :] // jnp.array([[T], [5], [7], [9]])

    def loss(params: Params) -> jax.Array:
        out = forward(params, *ids, spec=spec, config=config, mesh=mesh, scope="student", remat=True, kernels=kernels)
        balance = spec.num_experts * (out.router.fraction * out.router.probability).sum(axis=1)
        return (out.hidden * jnp.cos(out.hidden)).mean() + balance.mean() + out.router.z.mean()

    return jax.jit(jax.value_and_grad(loss))(params)


SMALL = {
    name: replace(MODELS[name], num_layers=2, emb_dim=32, vocab_size=64) for name in ("tiny-qwen3", "tiny-gpt-oss")
}


def compare_meshes(spec: ModelSpec) -> None:
    """On a process with four devices: 1 × 1 against 2 × 2, parameters cut as param_shardings says."""
    config = Config(dtype="float32", remat_policy="custom", context="device")
    results = []
    for n in (1, 2):
        mesh = Mesh(np.array(jax.devices()[: n * n]).reshape(n, n), ("data", "fsdp"))
        start = jax.jit(partial(init_params, spec, dtype=jnp.float32), out_shardings=param_shardings(spec, mesh))
        params = start(jax.random.key(0))
        loss, gradient = loss_and_gradient(spec, params, mesh, config, select(config, "cpu"), T=24)
        results.append(jax.device_get((params, loss, gradient)))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(results[0]), jax.tree.leaves(results[1]), strict=True):
        limit = 1e-5 * np.abs(a).max() + 1e-9
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=limit, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", SMALL)
def test_four_devices_compute_what_one_computes(name: str) -> None:
    here = Path(__file__)
    code = f"""import sys
sys.path.insert(0, {str(here.parent)!r})
import {here.stem} as tests
tests.compare_meshes(tests.SMALL[{name!r}])"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    environment["PYTHONPATH"] = str(here.parents[2])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gpt-oss"])
@pytest.mark.parametrize("tokamax", [True, False])
def test_a_model_with_the_kernels_of_a_tpu_computes_what_plain_jax_computes(name: str, tokamax: bool) -> None:
    if tokamax:
        pytest.importorskip("tokamax")
    spec = MODELS[name]
    config = Config(
        dtype="float32", remat_policy="custom", context="device", use_tokamax_splash=tokamax, sa_block_q=128
    )
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    params = jax.jit(partial(init_params, spec, dtype=jnp.float32))(jax.random.key(0))
    plain, interpreted = (
        loss_and_gradient(spec, params, mesh, config, kernels, T=256)
        for kernels in (select(config, "cpu"), select(config, "tpu", interpret=True))
    )
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(interpreted), strict=True):
        limit = 1e-4 * float(jnp.abs(a).max()) + 1e-8
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=limit, err_msg=jax.tree_util.keystr(path))
