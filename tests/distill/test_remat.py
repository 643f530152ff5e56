"""What a remat policy keeps: counted in the compiled gradient, by the marker op of the attention's forward pass."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from distill import remat
from distill.config import MODELS, REMAT_TENSORS, Config
from distill.kernels import select
from distill.model import Params, forward, init_params, param_specs
from profiler.errors import UsageError
from profiler.hlo import parse

L, B, T = 4, 2, 16
SPECS = {
    name: replace(MODELS[name], emb_dim=16, num_experts=4, moe_mlp_dim=8, vocab_size=32, head_dim=8, num_layers=L)
    for name in ("tiny-qwen3", "tiny-gpt-oss")
}


@cache
def compiled(name: str, **keys: str) -> jax.stages.Compiled:
    """The gradient of a student's loss, next to a teacher's forward pass of the same shape."""
    spec, config = SPECS[name], Config(dtype="float32", **keys)
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    tokens = jnp.arange(B * T).reshape(B, T) % spec.vocab_size
    positions, segments = jnp.tile(jnp.arange(T), (B, 1)), jnp.ones((B, T), jnp.int32)
    model = partial(forward, spec=spec, config=config, mesh=mesh, kernels=select(config, "cpu"))

    def loss(student: Params, teacher: Params) -> jax.Array:
        target = model(teacher, tokens, positions, segments, scope="teacher", remat=False)
        ours = model(student, tokens, positions, segments, scope="student", remat=True)
        return jnp.mean((ours.hidden - jax.lax.stop_gradient(target.hidden)) ** 2)

    shapes = jax.eval_shape(lambda: init_params(spec, jax.random.key(0), jnp.float32))
    return jax.jit(jax.value_and_grad(loss)).lower(shapes, shapes).compile()


def runs(name: str, scope: str, **keys: str) -> dict[str, float]:
    """Executions of the dots whose name stack ends in a scope, loops counted: by phase of the step."""
    module = parse(compiled(name, **keys).runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    counts = {"teacher": 0.0, "student forward": 0.0, "re-run": 0.0}
    for instruction in module.instructions.values():
        if instruction.opcode == "dot" and f"/{scope}/" in instruction.op_name:
            phase = "teacher" if "teacher" in instruction.op_name else "student forward"
            phase = "re-run" if "rematted_computation" in instruction.op_name else phase
            counts[phase] += module.executions(instruction.name)
    return counts


QK = "attention_forward/qk"


@pytest.mark.parametrize("name", SPECS)
def test_full_remat_runs_the_attention_forward_pass_twice_per_layer(name: str) -> None:
    assert runs(name, QK) == {"teacher": L, "student forward": L, "re-run": L}


@pytest.mark.parametrize("name", SPECS)
def test_context_on_the_device_runs_it_once_per_layer(name: str) -> None:
    assert runs(name, QK, remat_policy="custom", context="device") == {"teacher": L, "student forward": L, "re-run": 0}


def test_custom_with_its_defaults_is_full() -> None:
    assert runs("tiny-qwen3", QK, remat_policy="custom") == runs("tiny-qwen3", QK)


def test_a_projection_runs_again_only_where_it_is_not_kept() -> None:
    assert runs("tiny-gpt-oss", "query_proj")["re-run"] == L
    assert runs("tiny-gpt-oss", "query_proj", remat_policy="custom", query_proj="device")["re-run"] == 0


def test_minimal_keeps_the_matmuls_and_runs_attention_again() -> None:
    assert runs("tiny-gpt-oss", QK, remat_policy="minimal")["re-run"] == L
    for projection in ("query_proj", "key_proj", "value_proj", "out_proj"):
        assert runs("tiny-gpt-oss", projection, remat_policy="minimal")["re-run"] == 0, projection


def test_a_kept_query_does_not_spare_its_projection_where_it_is_normalised() -> None:
    assert runs("tiny-qwen3", "query_proj", remat_policy="minimal")["re-run"] == L
    assert runs("tiny-qwen3", "value_proj", remat_policy="minimal")["re-run"] == 0


def test_every_policy_computes_the_same_gradient() -> None:
    spec = SPECS["tiny-gpt-oss"]
    noise = np.random.default_rng(0)
    student, teacher = (
        jax.tree.map(lambda leaf: jnp.array(0.3 * noise.standard_normal(leaf.shape, np.float32)), param_specs(spec))
        for _ in range(2)
    )
    loss, gradient = compiled("tiny-gpt-oss")(student, teacher)
    kept_loss, kept = compiled("tiny-gpt-oss", remat_policy="custom", context="device")(student, teacher)
    np.testing.assert_allclose(kept_loss, loss, rtol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), kept, gradient)


def test_every_tensor_that_a_key_names_exists_in_a_layer_or_is_said_to_be_absent() -> None:
    spec, config = SPECS["tiny-qwen3"], Config(dtype="float32")
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    ids = jax.ShapeDtypeStruct((B, T), jnp.int32)
    params = jax.eval_shape(lambda: init_params(spec, jax.random.key(0), jnp.float32))
    model = partial(
        forward, spec=spec, config=config, mesh=mesh, scope="student", remat=False, kernels=select(config, "cpu")
    )

    def total(params: Params, *ids: jax.Array) -> jax.Array:
        return model(params, *ids).hidden.sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(total))(params, ids, ids, ids))
    named = {name for name in REMAT_TENSORS if f"name={name}]" in jaxpr or f"name={name}\n" in jaxpr}
    assert named == set(REMAT_TENSORS) - set(remat.ABSENT)


class _NoHostMemory:
    platform = "cpu"

    def addressable_memories(self) -> list[object]:
        return []


def test_offload_without_host_memory_is_one_clear_error() -> None:
    config = Config(remat_policy="custom", decoder_layer_input="offload")
    with pytest.raises(UsageError, match=r"decoder_layer_input=offload needs pinned host memory, which cpu devices"):
        remat.policy(config, _NoHostMemory())


def test_offloaded_tensors_leave_the_device() -> None:
    if not any(memory.kind == "pinned_host" for memory in jax.devices()[0].addressable_memories()):
        pytest.skip("no pinned host memory on this backend")
    assert runs("tiny-qwen3", QK, remat_policy="custom", context="offload")["re-run"] == 0
