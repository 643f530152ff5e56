"""Families and phases: names as compilers write them today, the recordings, and anything at all."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis.families import (
    FAMILIES,
    PHASES,
    OpFacts,
    ProgramFacts,
    family,
    kernel_name,
    opcode_of,
    phase,
    program_facts,
    rank,
)
from profiler.hlo import parse
from profiler.xplane.schema import xspace

# ruff: noqa: E501 - the tables below are read across: one op, one line
FORWARD = "jit(step)/jvp(student)/layers/while/body/closed_call/"
BACKWARD = "jit(step)/transpose(jvp(student))/layers/while/body/closed_call/checkpoint/"
RERUN = BACKWARD + "rematted_computation/"
TEACHER = "jit(step)/teacher/layers/while/body/closed_call/"
SPLASH = "self_attention/shard_map/vmap(jit(_splash_attention))/"
DISTILLATION = ProgramFacts.of([FORWARD, BACKWARD, TEACHER])
PALLAS: dict[str, Any] = {"opcode": "custom-call", "custom_call_target": "tpu_custom_call"}
FUSED_DKV = "(f32[4,2048,256]{2,1,0}, bf16[4,4,16,8192,256]{4,3,2,1,0}, bf16[4,2,8192,256]{3,2,1,0}, bf16[4,2,8192,256]{3,2,1,0})"
PLAIN_DKV = "(f32[4,2048,256]{2,1,0}, bf16[4,2,8192,256]{3,2,1,0}, bf16[4,2,8192,256]{3,2,1,0})"


def op(name: str, stack: str | None = None, **facts: Any) -> OpFacts:
    return OpFacts(name=name, name_stack=stack, **facts)


def fusion(name: str, stack: str | None, *opcodes: str, **facts: Any) -> OpFacts:
    return op(name, stack, opcode="fusion", fused_opcodes=frozenset({"parameter", *opcodes}), **facts)


KERNELS = [
    ("splash_mha_fwd_segmented_residuals", FORWARD + SPLASH, "splash forward", "student forward", {}),
    ("splash_mha_fwd_segmented_residuals", RERUN + SPLASH, "splash forward", "re-run", {}),
    ("splash_mha_fwd_segmented_no_residuals", TEACHER + SPLASH, "splash forward", "teacher", {}),
    ("splash_mha_dkv_segmented_no_residuals", BACKWARD + SPLASH, "splash backward (dkv)", "student backward", {}),
    ("splash_mha_dkv_segmented_no_residuals", BACKWARD + SPLASH, "splash backward (dkv)", "student backward", {"shape": PLAIN_DKV}),
    ("splash_mha_dkv_segmented_no_residuals", BACKWARD + SPLASH, "splash backward (fused)", "student backward", {"shape": FUSED_DKV}),
    ("splash_mha_dq_segmented_no_residuals", BACKWARD + SPLASH, "splash backward (dq)", "student backward", {}),
    ("jit(gmm)", FORWARD + "moe_block/shard_map/moe_wi_0/", "gmm forward", "student forward", {}),
    ("jit(gmm)", RERUN + "moe_block/shard_map/moe_wi_0/", "gmm forward", "re-run", {}),
    ("jit(gmm)", BACKWARD + "moe_block/shard_map/moe_wo/", "gmm dlhs", "student backward", {}),
    ("jit(tgmm)", BACKWARD + "moe_block/shard_map/moe_wo/", "tgmm", "student backward", {}),
    ("pallas_tpu_ragged_dot_gmm", FORWARD + "moe_block/", "gmm forward", "student forward", {}),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "scope", "expected", "when", "facts"), KERNELS)
@pytest.mark.parametrize("name", ["pallas_call.3", "transpose_jvp_jit_gmm___.2"])
def test_pallas_kernels_are_known_by_their_scope_whatever_the_instruction_is_called(
    name, kernel, scope, expected, when, facts
):
    facts = op(name, f"{scope}{kernel}/pallas_call", **PALLAS, **facts)
    assert family(facts) == expected
    assert phase(facts, DISTILLATION) == when
    assert kernel_name(facts) == kernel.removeprefix("jit(").removesuffix(")")


OPS = [
    # collectives, by op and never by scope
    (op("all-gather.248.cloned.1.call-start", TEACHER + "moe_block/all_gather"), "all-gather"),
    (op("all-reduce-start.1", opcode="all-reduce-start"), "all-reduce"),
    (op("psum.3", FORWARD + "mlp/psum", category="all-reduce"), "all-reduce"),
    (op("all-reduce-scatter.1", category="all-reduce-scatter fusion"), "reduce-scatter"),
    (op("ragged-all-to-all.1", opcode="ragged-all-to-all"), "all-to-all"),
    (op("collective-permute-done.2", category="collective-permute-done"), "collective-permute"),
    (op("async-start.1", opcode="async-start", fused_opcodes=frozenset({"reduce-scatter"})), "reduce-scatter"),
    (op("ac-start.1", hlo_text="%ac-start.1 = ((f32[4]{0}), f32[8]{0}) async-start(f32[4]{0} %p), calls=%all-gather.c"), "all-gather"),
    (fusion("fusion.1", FORWARD + "mlp/dot_general", "dot", "all-gather"), "dense matmul"),
    (op("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"), "all-reduce"),
    (op("ncclDevKernel_SendRecv(ncclDevComm*)"), "collective (other)"),
    # transfers and waiting
    (op("copy-start.1", hlo_text="%copy-start.1 = (bf16[8]{0:S(5)}, bf16[8]{0}, u32[]) copy-start(bf16[8]{0} %x)"), "host transfer"),
    (op("copy-done.1", hlo_text="%copy-done.1 = bf16[8]{0:S(1)} copy-done((bf16[8]{0:S(1)}, bf16[8]{0}) %x)"), "async copy"),
    (op("slice-done.1", category="async-done"), "async copy"),
    (fusion("dus_fusion", None, "dynamic-update-slice", shape="bf16[48,4]{1,0:S(5)}"), "host transfer"),
    (op("send.1", hlo_text="%send.1 = (f32[]) send(f32[] %x, token[] %t), is_host_transfer=true"), "host transfer"),
    (op("infeed.1", opcode="infeed"), "host transfer"),
    (op("MemcpyH2D", kernel="MemcpyH2D"), "host transfer"),
    (op("MemcpyD2D", kernel="MemcpyD2D"), "copy / layout"),
    (op("barrier-done.1", opcode="barrier-done"), "wait"),
    (op("while.1", opcode="while"), "control flow"),
    # attention and its projections
    (fusion("fusion.1", FORWARD + "self_attention/query/dot_general", "dot"), "dense matmul"),
    (fusion("fusion.2", FORWARD + "self_attention/btd,bsd->bts/dot_general", "dot"), "attention"),
    (fusion("fusion.3", "jit(f)/transpose(jvp(bsd,de->bse))/dot_general", "dot"), "dense matmul"),
    (op("dot.5", FORWARD + "self_attention/dot_general", opcode="dot", shape="f32[128,64]{1,0}"), "dense matmul"),
    (op("dot.6", FORWARD + "self_attention/dot_general", opcode="dot", shape="f32[4,32,32]{2,1,0}"), "attention"),
    (op("exp.7", FORWARD + "self_attention/exp", opcode="exponential"), "attention"),
    (fusion("fusion.4", FORWARD + "self_attention/add_any", "add"), "norm / elementwise"),
    (fusion("fusion.5", FORWARD + "self_attention/query_norm/mul", "multiply", "reduce"), "norm / elementwise"),
    (fusion("fusion.6", FORWARD + "self_attention/rotary_embedding/mul", "multiply"), "norm / elementwise"),
    (op("x", opcode="custom-call", custom_call_target="__cudnn$fmhaSoftmax"), "attention"),
    (op("triton", "jit(f)/mha_forward/pallas_call", opcode="custom-call", custom_call_target="__gpu$xla.gpu.triton"), "attention"),
    (op("te_fused_attn_forward_ffi.10", kernel="void ck_tile::kentry<FmhaFwdKernel>"), "attention"),
    # mixture of experts
    (fusion("fusion.1", RERUN + "moe_block/router/dot_general", "dot"), "router"),
    (fusion("fusion.1", "jit(step)/jvp()/while/body/MoeBlock_0/gate/dot_general", "dot"), "router"),
    (fusion("fusion.1", "jit(step)/jvp()/while/body/mlp/gate/dot_general", "dot"), "dense matmul"),
    (op("sort.3", FORWARD + "moe_block/router/top_k", opcode="sort"), "router"),
    (op("sort.4", FORWARD + "moe_block/permute/sort", opcode="sort"), "MoE dispatch"),
    (fusion("fusion.2", FORWARD + "moe_block/unpermute/mul", "multiply", "reduce"), "MoE dispatch"),
    (fusion("fusion.3", FORWARD + "moe_block/silu/mul", "multiply", "logistic"), "norm / elementwise"),
    (op("ragged-dot.1", "jit(f)/transpose(jvp())/ragged_dot_general", opcode="ragged-dot", shape="f32[8,64,64]{2,1,0}"), "tgmm"),
    # the ends of the model
    (fusion("gather_fusion", FORWARD + "token_embedder/gather", "gather"), "embedding"),
    (fusion("fusion.1", BACKWARD + "token_embedder/scatter-add", "scatter", "add"), "embedding"),
    (fusion("fusion.2", "jit(step)/jvp(student)/decoder/logits_dense/dot_general", "dot"), "loss and logits"),
    (fusion("fusion.3", "jit(step)/jvp(loss)/log_softmax/exp", "exponential"), "loss and logits"),
    (fusion("fusion.4", "jit(step)/jvp(loss)/teacher/layers/dot_general", "dot"), "dense matmul"),
    (fusion("fusion.5", "jit(loss_fn)/jvp()/mul", "multiply"), "norm / elementwise"),
    (fusion("fusion.6", "jit(step)/optimizer/add", "add", "multiply"), "optimizer"),
    # the rest, with and without HLO
    (op("custom-call.3", opcode="custom-call", custom_call_target="__cublas$lt$matmul$f8"), "quantized matmul"),
    (op("custom-call.1", "jit(f)/dot_general", kernel="Cijk_Alik_Bljk_BBS_BH_Bias_HA"), "dense matmul"),
    (op("custom-call.4", opcode="custom-call", custom_call_target="__cublas$gemm"), "dense matmul"),
    (op("dot.1", hlo_text="%dot.1 = f32[8,8]{1,0} dot(f8e4m3fn[8,16]{1,0:T(8,128)} %a, f8e4m3fn[16,8]{1,0} %b), x={1}"), "quantized matmul"),
    (op("dot.2", hlo_text="%dot.2 = f32[8,8]{1,0} dot(bf16[8,16]{1,0} %a, s8[16,8]{1,0} %b), x={1}"), "dense matmul"),
    (op("cudnn-conv.1", opcode="custom-call", custom_call_target="__cudnn$convForward"), "convolution"),
    (op("convolution.1", "jit(f)/conv_general_dilated", category="convolution", hlo_text="%c = f32[1]{0} convolution(f32[1] %a)"), "convolution"),
    (op("convolution.2", "jit(f)/dot_general:", category="convolution", hlo_text="%c = f32[1]{0} convolution(f32[1] %a)"), "dense matmul"),
    (op("gemm_fusion_dot.6", kernel="gemm_fusion_dot_6.kd"), "dense matmul"),
    (op("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"), "dense matmul"),
    (op("volta_scudnn_128x64_relu_interior_nn_v1"), "convolution"),
    (op("sm80_xmma_gemm_e4m3e4m3_f32_tn_n"), "quantized matmul"),
    (op("void Eigen::internal::EigenMetaKernel<TensorCwiseBinaryOp<scalar_product_op<half>>>"), "norm / elementwise"),
    (op("loop_transpose_fusion.2"), "copy / layout"),
    (op("input_reduce_fusion.1"), "reduction"),
    (op("wrapped_exponential"), "norm / elementwise"),
    (op("multiply_add_fusion.4"), "norm / elementwise"),
    (op("copy.773", FORWARD + "self_attention/transpose", category="data formatting"), "copy / layout"),
    (op("custom-call.9", opcode="custom-call", custom_call_target="TopK"), "other"),
    (op("something else"), "other"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "expected"), OPS, ids=[f"{o.name[:30]}-{e}" for o, e in OPS])
def test_ops_have_the_family_of_what_they_are_for(facts, expected):
    assert family(facts) == expected


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ("jit(step)/teacher/layers/while/body/checkpoint/mul", "teacher"),  # a checkpoint alone is not a re-run
        ("jit(step)/jvp(loss)/jvp(teacher)/mul", "teacher"),
        ("jit(step)/jvp(student)/mul", "student forward"),
        ("jit(step)/transpose(jvp(student))/checkpoint/mul", "student backward"),
        ("jit(step)/transpose(jvp(student))/checkpoint/rematted_computation/mul", "re-run"),
        ("jit(step)/jvp(loss)/mul", "student forward"),
        ("jit(step)/optimizer/mul", "optimizer"),
        ("jit(step)/adamw/mul", "optimizer"),
        ("jit(step)/add", None),
        ("", None),
    ],
)
def test_phases_of_a_step_with_model_scopes(stack, expected):
    assert phase(op("fusion.1", stack), DISTILLATION) == expected


def test_a_step_without_model_scopes_has_a_teacher_only_if_the_run_is_known_to_be_a_distillation():
    stacks = ["jit(step)/jvp()/while/body/mul", "jit(step)/transpose(jvp())/while/body/mul"]
    teacher = op("fusion.1", "jit(step)/while/body/checkpoint/shard_map/mul")
    known, unknown = ProgramFacts.of(stacks, distillation=True), ProgramFacts.of(stacks)
    assert [phase(o, known) for o in (teacher, op("a", stacks[0]), op("b", stacks[1]), op("c", "jit(step)/add"))] == [
        "teacher",
        "student forward",
        "student backward",
        None,
    ]
    assert [phase(o, unknown) for o in (teacher, op("a", stacks[0]), op("b", stacks[1]))] == [
        None,
        "forward",
        "backward",
    ]


def test_a_program_without_derivatives_is_forward_and_one_without_names_is_unknown():
    serving = program_facts([op("fusion.1", "jit(step_fun)/aten::mul.Tensor/mul:")])
    assert phase(op("copy.1"), serving) == "forward"
    assert phase(op("volta_gemm"), program_facts([op("volta_gemm")])) is None
    assert phase(op("fusion.1.remat2"), serving) == "re-run"
    assert phase(op("infeed.1"), serving) == "input"


@pytest.mark.parametrize(
    ("name", "stack", "target", "expected"),
    [
        ("RPA-bq_32-bkvp_32-p_128-.23", None, "tpu_custom_call", "RPA"),
        ("x.1", "jit(f)/jit(ragged_paged_attention)/RPA-bq_32-bkvp_64-p_128-/pallas_call:", None, "RPA"),
        ("quantized_matmul_kernel_512_5120_2560.64", None, "tpu_custom_call", "quantized_matmul_kernel"),
        ("te_fused_attn_forward_ffi.10", "jit(f)/jvp()/x", "te_fused_attn_forward_ffi", "te_fused_attn_forward_ffi"),
        ("my_kernel.2", "jit(f)/while/body/my_kernel/pallas_call", "tpu_custom_call", "my_kernel"),
    ],
)
def test_kernel_names_are_free_of_tile_sizes(name, stack, target, expected):
    assert kernel_name(op(name, stack, opcode="custom-call", custom_call_target=target)) == expected


def test_what_xla_compiles_itself_is_no_custom_kernel():
    assert kernel_name(fusion("fusion.1", FORWARD + "mlp/dot_general", "dot")) is None
    assert kernel_name(op("something")) is None


def test_the_opcode_comes_from_the_best_source_there_is():
    text = "%fusion.1 = (bf16[4]{0:T(8,128)S(1)}, f32[]{:T(128)}) custom-call(bf16[4] %a)"
    assert opcode_of(op("fusion.1", hlo_text=text)) == "custom-call"
    assert opcode_of(op("fusion.1", category="loop fusion")) == "fusion"
    assert opcode_of(op("dot.5")) == "dot"
    assert opcode_of(op("dot_general.3")) is None


def test_ranks_put_compute_first_and_containers_last():
    assert [rank(f) for f in ("splash forward", "all-gather", "async copy", "wait", "control flow")] == [0, 1, 2, 3, 4]
    assert len(set(FAMILIES)) == len(FAMILIES)


# --- the recordings ---------------------------------------------------------------------------------------------------


def self_times(events: list[tuple[int, int, Any]]) -> Counter[Any]:
    """Time per key less that of enclosed events: a stack over (start, duration, key)."""
    totals: Counter[Any] = Counter()
    stack: list[tuple[int, Any]] = []
    for start, duration, key in sorted(events, key=lambda e: (e[0], -e[1])):
        while stack and stack[-1][0] < start + duration:
            stack.pop()
        if stack:
            totals[stack[-1][1]] -= duration
        totals[key] += duration
        stack.append((start + duration, key))
    return totals


def shares(file: Path, device: str = "") -> tuple[Counter[str], Counter[str | None]]:
    """Self time in ps by family and by phase, over all devices or one."""
    space = xspace().XSpace()
    space.ParseFromString(file.read_bytes())
    programs: dict[str, Any] = {}
    times: Counter[OpFacts] = Counter()
    for plane in sorted(space.planes, key=lambda p: p.name != b"/host:metadata"):
        stats = {e.key: e.value.name.decode() for e in plane.stat_metadata}
        events = {e.key: e.value for e in plane.event_metadata}

        def read(message: Any, stats: dict[int, str] = stats) -> dict[str, Any]:
            found = {}
            for stat in message.stats:
                value = getattr(stat, stat.WhichOneof("value"))
                if stat.WhichOneof("value") == "ref_value":
                    value = stats.get(value)
                found[stats.get(stat.metadata_id, "")] = (
                    value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                )
            return found

        if plane.name == b"/host:metadata":
            for event in events.values():
                data = [s.bytes_value for s in event.stats if s.bytes_value]
                programs |= {event.name.decode().partition("(")[0]: parse(d) for d in data}
        elif plane.name.startswith(b"/device:") and plane.name.decode().endswith(device):
            about = {key: read(value) for key, value in events.items()}
            for line in plane.lines:
                if line.name != b"XLA Ops" and not line.name.startswith(b"Stream"):
                    continue
                spans = []
                for event in line.events:
                    own = read(event)
                    facts = describe(events[event.metadata_id], about[event.metadata_id], own, programs)
                    start = own.get("device_offset_ps", event.offset_ps)
                    spans.append((start, own.get("device_duration_ps", event.duration_ps), facts))
                times.update(self_times(spans))
    program = program_facts(times)
    families, phases = Counter(), Counter()
    for facts, time_ps in times.items():
        families[family(facts)] += time_ps
        phases[phase(facts, program)] += time_ps
    return families, phases


def describe(event: Any, about: dict[str, Any], own: dict[str, Any], programs: dict[str, Any]) -> OpFacts:
    name = event.name.decode("utf-8", "replace")
    if "hlo_category" in about:
        return OpFacts(
            event.display_name.decode(), category=about["hlo_category"], name_stack=about.get("tf_op"), hlo_text=name
        )
    module = programs.get(own.get("hlo_module", ""))
    found = module.instructions.get(own.get("hlo_op")) if module else None
    if found is None:
        return OpFacts(own.get("hlo_op") or name, kernel=name)
    return OpFacts(
        found.name, found.opcode, found.opcode, found.op_name or None, None, found.shape, found.custom_call_target or None,
        name, found.fused_opcodes, found.fused_op_names, found.source,
    )  # fmt: skip


@pytest.mark.recordings
@pytest.mark.parametrize(
    "name",
    [
        "tpu_qwen3_serving_bf16",
        "tpu_qwen3_serving_fp4",
        "tpu_v6e_inference",
        "mi300x_conv_old",
        "mi300x_conv_new",
        "gfx950_fused_attention",
        "nvidia_8gpu_tf2",
    ],
)
def test_next_to_nothing_in_the_recordings_is_unexplained(recordings, name):
    families, _ = shares(recordings / f"{name}.xplane.pb")
    assert families["other"] < 0.01 * families.total()


@pytest.mark.recordings
def test_the_serving_pair_shows_what_is_known_of_it(recordings):
    """profiles/README.md: convolution fusions 42.31 → 0.29 ms; what stays is the logits."""
    ms = 10**9
    before, phases = shares(recordings / "tpu_qwen3_serving_bf16.xplane.pb", "TPU:0")
    after, _ = shares(recordings / "tpu_qwen3_serving_fp4.xplane.pb", "TPU:0")
    assert before.total() / ms == pytest.approx(67.209, abs=0.001)
    assert after.total() / ms == pytest.approx(63.780, abs=0.001)
    assert (before["dense matmul"] + before["loss and logits"]) / ms == pytest.approx(42.31, abs=0.01)
    assert after["dense matmul"] == 0
    assert [f["loss and logits"] / ms for f in (before, after)] == pytest.approx([0.29, 0.29], abs=0.01)
    assert (before["quantized matmul"], after["quantized matmul"] / ms) == (0, pytest.approx(25.11, abs=0.01))
    assert [f["attention"] / ms for f in (before, after)] == pytest.approx([17.01, 20.54], abs=0.01)
    assert [f["all-reduce"] / ms for f in (before, after)] == pytest.approx([3.43, 3.53], abs=0.02)
    assert set(phases) == {"forward"}


@pytest.mark.recordings
def test_the_training_step_on_amd_shows_fused_attention_in_both_directions(recordings):
    families, phases = shares(recordings / "gfx950_fused_attention.xplane.pb")
    assert families["attention"] / families.total() == pytest.approx(0.556, abs=0.001)
    assert families["dense matmul"] / families.total() == pytest.approx(0.347, abs=0.001)
    assert set(phases) == {"forward", "backward"}


@pytest.mark.recordings
def test_waiting_for_host_copies_is_a_host_transfer(recordings):
    families, _ = shares(recordings / "tpu_v6e_inference.xplane.pb")
    assert families["host transfer"] / 10**12 == pytest.approx(304.03, abs=0.01)
    assert families["all-reduce"] / 10**12 == pytest.approx(1.46, abs=0.01)


# --- a program from JAX on the CPU ------------------------------------------------------------------------------------


def test_a_jax_step_on_the_cpu_shows_forward_backward_and_re_run():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def layer(x: Any, w: Any) -> Any:
        with jax.named_scope("self_attention"):
            q, k, v = (x @ w[n] for n in "qkv")
            scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k), axis=-1)
            x = x + jnp.einsum("bts,bsd->btd", scores, v)
        with jax.named_scope("mlp"):
            return x + jax.nn.silu(x @ w["i"]) @ w["o"], None

    def loss(params: Any, tokens: Any) -> Any:
        with jax.named_scope("embedding"):
            x = params["embedding"][tokens]
        with jax.named_scope("layers"):
            x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        with jax.named_scope("loss"):
            return -jnp.mean(jax.nn.log_softmax(x @ params["embedding"].T)[..., 0])

    def step(params: Any, tokens: Any) -> Any:
        gradients = jax.grad(loss)(params, tokens)
        with jax.named_scope("optimizer"):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    weights = {n: jnp.ones((3, 16, 16)) for n in "qkvio"}
    compiled = (
        jax.jit(step).lower({"embedding": jnp.ones((64, 16)), "layers": weights}, jnp.ones((2, 8), int)).compile()
    )
    module = parse(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    ops = [
        OpFacts(i.name, i.opcode, None, i.op_name, None, i.shape, None, None, i.fused_opcodes, i.fused_op_names)
        for c in module.computations.values()
        if not c.is_fusion
        for i in c.instructions
    ]
    program = program_facts(ops)
    seen = {(family(o), phase(o, program)) for o in ops}
    for direction in ("forward", "backward", "re-run"):
        assert {("dense matmul", direction), ("attention", direction), ("norm / elementwise", direction)} <= seen
    assert {("optimizer", "optimizer"), ("embedding", "forward"), ("embedding", "backward")} <= seen
    assert {("loss and logits", "forward"), ("loss and logits", "backward")} <= seen
    assert ("loss and logits", "re-run") not in seen


# --- anything at all --------------------------------------------------------------------------------------------------

PARTS = (
    "jit(step) jvp() transpose(jvp(student)) teacher while body checkpoint rematted_computation moe_block gate loss "
    "self_attention a,b->c dot_general pallas_call fusion.1 custom-call all-gather-start S(5) ( ) / : ; = [8,4]"
)
words = st.text(max_size=40) | st.lists(st.sampled_from(PARTS.split()), max_size=8).map("/".join)
maybe = st.none() | words


@given(
    facts=st.builds(
        OpFacts,
        words,
        maybe,
        maybe,
        maybe,
        maybe,
        maybe,
        maybe,
        maybe,
        st.frozensets(words),
        st.lists(words).map(tuple),
        maybe,
    )
)
def test_any_op_has_a_family_and_nothing_raises(facts):
    assert family(facts) in FAMILIES
    assert rank(family(facts)) in range(5)
    for program in (None, program_facts([facts]), program_facts([facts], distillation=True), DISTILLATION):
        assert phase(facts, program) in (*PHASES, None)
    assert kernel_name(facts) is None or isinstance(kernel_name(facts), str)
    assert opcode_of(facts) is None or isinstance(opcode_of(facts), str)


@pytest.mark.slow
def test_ops_are_classified_in_proportion_to_their_number():
    stacks = (FORWARD, BACKWARD, RERUN, TEACHER)
    ops = [
        op(f"fusion.{n}", f"{stacks[n % 4]}block_{n % 50}/part_{n % 300}/dot_general", category="loop fusion", hlo_text=f"%fusion.{n} = "
           "bf16[1024,5120]{1,0:T(8,128)(2,1)} fusion(bf16[1024,5120]{1,0:T(8,128)} %p), kind=kLoop, calls=%fused")
        for n in range(20_000)
    ]  # fmt: skip
    seconds = []
    for part in (ops[:2_000], ops[2_000:]):
        begin = time.process_time()
        for each in part:
            family(each), phase(each, DISTILLATION)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 30 * seconds[0]
