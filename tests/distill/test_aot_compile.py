"""Compiling for a TPU: names of slices, the worker's surroundings, the cache, and real compiles by libtpu."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import profiler
from distill import cli
from distill.aot import Cache, OutOfMemory, OutOfVmem, compile_step, compiler, environment, find, topologies
from distill.aot import cache as caching
from distill.aot.compiler import Compiled
from distill.aot.export import export_profile
from distill.aot.report import to_dict, to_text
from distill.config import Config, load
from profiler.analysis.memory import Memory
from profiler.errors import ProfilerError, UnreadableError, UsageError
from profiler.hlo import buffers

GIB = 1 << 30

# --- slices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "libtpu", "devices", "chip"),
    [
        ("v5e-16", "v5e:4x4", 16, "tpu-v5e"),
        ("v5litepod-4", "v5e:2x2", 4, "tpu-v5e"),
        ("v5p-8", "v5p:2x2x1", 4, "tpu-v5p"),
        ("v6e-8", "v6e:2x4", 8, "tpu-v6e"),
        ("v4-8", "v4:2x2x1", 4, "tpu-v4"),
        ("tpu7x-4x4x4", "tpu7x:4x4x4", 128, "tpu-v7x"),
        ("tpu7x-128", "tpu7x:4x4x4", 128, "tpu-v7x"),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 8, "tpu-v7x"),
        ("V7X-8", "tpu7x:2x2x1", 8, "tpu-v7x"),
        ("v5p-4x4x12", "v5p:4x4x12", 192, "tpu-v5p"),
    ],
)
def test_a_slice_is_found_by_the_names_that_people_write(name, libtpu, devices, chip):
    found = find(name)
    assert (found.libtpu_name, found.devices, found.chip.key) == (libtpu, devices, chip)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tpu9-8", "no such topology"),
        ("v5e", "no such topology"),
        ("v5e-12", "sizes, in chips: 1, 4, 8"),
        ("v5p-6", "TensorCores, 2 a chip: 8, 16"),
        ("tpu7x-3x2x1", "the first two even"),
        ("tpu7x-4x4", "3 axes"),
        ("v6e-0x2", "2 axes"),
        ("v6e-32x32", "256 chips at most"),
    ],
)
def test_a_slice_that_does_not_exist_is_a_usage_error_with_what_does(name, says):
    with pytest.raises(UsageError, match=says):
        find(name)


def test_every_listed_slice_is_found_by_both_its_names():
    for each in topologies():
        assert find(each.name) == find(each.size_name) == each


def test_topologies_are_listed(capsys):
    assert cli.main(["topologies"]) == 0
    assert "tpu7x-128    tpu7x-4x4x4         64 chips   128 devices  TPU v7x" in capsys.readouterr().out


# --- surroundings -----------------------------------------------------------------------------------------------------


def test_the_recipes_flags_reach_libtpu_and_those_of_other_compilers_do_not():
    config = Config(xla_flags=("--xla_tpu_a=1", "--xla_gpu_b=2", "--xla_dump_to=elsewhere"))
    base = {"LIBTPU_INIT_ARGS": "--xla_tpu_a=0", "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "HOME": "h"}
    found = environment.worker_environment(config, Path("dump"), base)
    assert found["LIBTPU_INIT_ARGS"] == "--xla_tpu_a=0 --xla_tpu_a=1"
    assert found["XLA_FLAGS"].startswith("--xla_dump_to=dump ")
    assert "host_platform" not in found["XLA_FLAGS"]
    assert (found["JAX_PLATFORMS"], found["HOME"]) == ("cpu", "h")


def test_without_libtpu_it_is_said_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "versions", lambda: {"jax": "1", "jaxlib": "1", "libtpu": None, "tokamax": None})
    with pytest.raises(ProfilerError, match=r"needs libtpu.*pip install 'profiler\[distill,tpu\]'"):
        compile_step(load("tiny-qwen3-opt").config, "v5e-4", cache=Cache(tmp_path))


# --- the cache --------------------------------------------------------------------------------------------------------


def key(config=None, topology="v5e-2x2", flags="", quick=False, **versions):
    return caching.key(config or Config(), topology, {"jax": "1", **versions}, flags, quick)


def test_an_entry_is_named_by_all_that_decides_about_the_program_and_nothing_else():
    different = [
        key(),
        key(Config(per_device_batch_size=3)),
        key(Config(student_overrides={"head_dim": 64})),
        key(topology="v5e-4x4"),
        key(flags="--xla_tpu_a=1"),
        key(libtpu="2"),
        key(quick=True),
    ]
    assert len(set(different)) == len(different)
    assert key(Config(run_name="a", hardware="v5e-4", data_shuffle_seed=3)) == key()


def test_the_sources_of_the_program_are_part_of_the_name(monkeypatch):
    before = key()
    monkeypatch.setattr(caching, "SOURCES", caching.SOURCES[1:])
    assert key() != before


def test_an_entry_appears_whole_or_not_at_all(tmp_path):
    cache = Cache(tmp_path)
    with pytest.raises(KeyboardInterrupt), cache.making("a") as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert cache.find("a") is None
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):  # two processes that make the same entry
        with cache.making("a") as folder:
            (folder / "whole").touch()
    assert [path.name for path in cache.find("a").iterdir()] == ["whole"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def an_entry(monkeypatch, tmp_path):
    """The folder of a compile in a cache, and whether the cache answers; nothing is compiled."""

    class Missing(Exception): ...

    def missing(*_):
        raise Missing

    def parse(program):
        if program != b"a program":
            raise UnreadableError("damaged")
        return object()

    versions = {"jax": "1", "jaxlib": "1", "libtpu": "1", "tokamax": "1"}
    monkeypatch.setattr(compiler, "require", lambda: versions)
    monkeypatch.setattr(compiler, "_compile", missing)
    monkeypatch.setattr(compiler, "parse", parse)
    monkeypatch.setattr(compiler, "memory", lambda module: Memory(GIB, GIB, GIB, 0, ()))
    monkeypatch.setattr(compiler, "kernel_calls", lambda module: ())
    config, cache = load("tiny-qwen3-opt").config, Cache(tmp_path / "cache")
    flags = environment.compiler_flags(config, os.environ)
    with cache.making(caching.key(config, find("v5e-4").name, versions, flags, quick=False)) as folder:
        (folder / "program.hlo.pb").write_bytes(b"a program")
        (folder / "schedule.pb").write_bytes(b"a schedule")
        facts = {"quick": False, "capacity_bytes": None, "error": None, "seconds": {}, "kernels": [], "notes": []}
        facts |= {"versions": versions, "flags": flags, "file_bytes": compiler._sizes(folder)}
        (folder / "compiled.json").write_text(json.dumps(facts))
    folder = cache.root / next(cache.root.iterdir()).name

    def answers():
        try:
            return compile_step(config, "v5e-4", quick=True, cache=cache, out=tmp_path / "out").from_cache
        except Missing:
            return False

    return folder, answers


def test_a_whole_entry_answers(an_entry, tmp_path):
    _, answers = an_entry
    assert answers()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compiled.json", "program.hlo.pb", "schedule.pb"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("program.hlo.pb", None),
        ("program.hlo.pb", b""),
        ("program.hlo.pb", b"\xff\xff"),
        ("schedule.pb", b"a sch"),
        ("schedule.pb", None),
        ("compiled.json", None),
        ("compiled.json", b'{"quick": fal'),
        ("compiled.json", b"[]"),
        ("compiled.json", b"{}"),
    ],
)
def test_a_damaged_entry_is_removed_and_compiled_again(an_entry, name, content):
    folder, answers = an_entry
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert not answers()
    assert not [*folder.parent.iterdir()]


# --- the report -------------------------------------------------------------------------------------------------------


def a_result(**changes):
    memory = Memory(60 * GIB, 64 * GIB, 20 * GIB, 12 * GIB, ())
    result = Compiled(
        config=load("qwen3-30b-opt").config,
        topology=find("tpu7x-4x4x4"),
        quick=True,
        folder=Path("out"),
        module=None,
        memory=memory,
        calls=(),
        capacity_bytes=95 * GIB,
        error=None,
        seconds={"compile": 40.0},
        process_peak_bytes=None,
        analysis={},
        kernels=("splash attention (tokamax)", "megablox"),
        notes=("jax's splash attention runs instead",),
        versions={"jax": "1", "tokamax": None},
        flags="",
        from_cache=False,
    )
    return replace(result, **changes)


def test_what_fits_says_how_much_is_left():
    text = to_text(a_result())
    assert text.startswith("Fits tpu7x-4x4x4, 128 devices (TPU v7x): 64.00 GiB of 95.00 GiB per device, 31.00 GiB left")
    assert "host memory       12.00 GiB" in text
    assert "Note: jax's splash attention runs instead" in text


def test_too_much_memory_says_how_much_and_what_is_left_to_try():
    text = to_text(a_result(error=OutOfMemory(110 * GIB, 95 * GIB, ())))
    assert "needs 110.00 GiB of HBM per device, 95.00 GiB are available, 15.00 GiB too much" in text
    assert "context=remat" in text
    assert "per_device_batch_size=5" in text
    assert "decoder_layer_input=offload" not in text  # beside a kept context it frees nothing
    assert "decoder_layer_input=offload" in to_text(
        a_result(config=load("qwen3-30b-base").config, error=OutOfMemory(110 * GIB, 95 * GIB, ()))
    )
    config = load("qwen3-30b-opt", ["context=remat", "decoder_layer_input=offload"]).config
    text = to_text(a_result(config=config, error=OutOfMemory(110 * GIB, 95 * GIB, ())))
    assert "context=remat" not in text
    assert "decoder_layer_input" not in text


def test_too_much_vmem_names_kernel_and_knobs_with_their_values():
    error = OutOfVmem(80 << 20, 16 << 20, "gmm", "a/b", ("wi_tile_fwd_batch_seq", "wi_tile_fwd_embed_dim"))
    text = to_text(a_result(error=error, memory=None))
    assert "gmm needs 80.0 MiB of VMEM, 16.0 MiB are allowed" in text
    assert "wi_tile_fwd_batch_seq=512, wi_tile_fwd_embed_dim=2048" in text


def test_the_result_is_plain_json():
    document = to_dict(a_result(error=OutOfVmem(2, 1, "gmm", "", ("a",))))
    assert json.loads(json.dumps(document))["error"]["knobs"] == ["a"]
    assert (document["fits"], document["peak_bytes"], document["host_bytes"]) == (False, 60 * GIB, 12 * GIB)


def test_out_of_memory_ends_the_command_with_1(monkeypatch, capsys):
    error = OutOfMemory(110 * GIB, 95 * GIB, ())
    monkeypatch.setattr("distill.aot.compile_step", lambda *_, **__: a_result(error=error))
    assert cli.main(["compile", "qwen3-30b-opt", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "out of memory"


def test_a_recipe_without_hardware_needs_a_topology(capsys):
    assert cli.main(["compile", "tiny-qwen3-opt", "hardware="]) == 2
    assert "--topology" in capsys.readouterr().err


# --- the real compiler ------------------------------------------------------------------------------------------------

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None and not os.environ.get("CI"),
    reason="no TPU compiler: libtpu is missing",
)
LAYERS = 2
SMALL = [
    f"student_overrides.base_num_decoder_layers={LAYERS}",
    f"teacher_overrides.base_num_decoder_layers={LAYERS}",
    "dtype=bfloat16",
    "max_target_length=256",
    "per_device_batch_size=1",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache"))


def counted(compiled):
    return {(each.family, each.phase): each.calls for each in compiled.calls}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "reruns"), [("tiny-qwen3-base", LAYERS), ("tiny-qwen3-opt", 0)])
def test_keeping_the_context_halves_the_students_attention_forward_passes(cache, recipe, reruns):
    compiled = compile_step(load(recipe, SMALL).config, "tpu7x-2x2x1", quick=True, cache=cache)
    calls = counted(compiled)
    assert calls["splash forward", "teacher"] == LAYERS
    assert calls["splash forward", "student forward"] == LAYERS
    assert calls.get(("splash forward", "re-run"), 0) == reruns
    backward = [calls.get((f"splash backward ({kind})", "student backward"), 0) for kind in ("fused", "dkv")]
    assert sum(backward) == LAYERS
    gmm = {phase: calls["gmm forward", phase] for phase in ("teacher", "student forward", "re-run")}
    assert gmm == dict.fromkeys(gmm, 3 * LAYERS)
    assert calls["gmm dlhs", "student backward"] == calls["tgmm", "student backward"] == 3 * LAYERS


def more_in_another_memory(compiled):
    """libtpu's own peak takes the fullest of all memories for HBM's, which can be VMEM in a program this small."""
    assignment = buffers.messages().Assignment.FromString(compiled.module.buffer_assignment)
    by_id = {buffer.id: buffer for buffer in assignment.buffers}
    traces = [trace for trace in assignment.traces if trace.events]
    peaks = {by_id[trace.events[0].buffer].color: buffers._replay(trace, by_id)[0] for trace in traces}
    return max(peaks.values()) - peaks[buffers.DEVICE]


@needs_libtpu
@pytest.mark.slow
def test_a_whole_compile_agrees_with_its_own_memory_analysis_and_is_found_again(cache, tmp_path):
    config, seen = load("tiny-qwen3-base", SMALL).config, []
    compiled = compile_step(
        config, "tpu7x-8", out=tmp_path / "out", cache=cache, progress=lambda phase, *_: seen.append(phase)
    )
    assert compiled.fits
    assert not compiled.quick
    assert compiled.analysis["peak_memory_in_bytes"] == compiled.memory.peak_bytes + more_in_another_memory(compiled)
    assert compiled.memory.argument_bytes == compiled.analysis["argument_size_in_bytes"]
    assert sum(each.bytes for each in compiled.memory.live) == compiled.memory.peak_bytes
    assert compiled.capacity_bytes == pytest.approx(94.75 * GIB, abs=0.02 * GIB)
    assert set(compiled.seconds) == {"start", "trace", "lower", "compile"}
    assert "compile" in seen
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compiled.json", "program.hlo.pb", "schedule.pb"}
    again = compile_step(config, "tpu7x-8", quick=True, cache=cache)
    assert again.from_cache
    assert not again.quick
    assert counted(again) == counted(compiled)


@needs_libtpu
@pytest.mark.slow
def test_a_compile_becomes_a_profile_that_says_it_is_one(cache, tmp_path):
    sides = []
    for recipe in ("tiny-qwen3-base", "tiny-qwen3-opt"):
        compiled = compile_step(load(recipe, SMALL).config, "tpu7x-2x2x1", quick=True, cache=cache)
        sides.append(export_profile(compiled, load(recipe, SMALL).to_dict(), tmp_path / f"{recipe}.xplane.pb"))
    diff = profiler.diff(*map(str, sides))
    assert diff.baseline.kind == diff.optimized.kind == "compiled"
    assert "compiler estimates" in diff.verdict
    calls = {(row.family, row.phase): row.calls_per_step for row in diff.baseline.families}
    assert calls["splash forward", "re-run"] == LAYERS
    assert ("splash forward", "re-run") not in {(row.family, row.phase) for row in diff.optimized.families}
    assert "context" in {knob.key for knob in diff.knobs}
    assert diff.delta.significant is (diff.delta.step_time_ratio != 1)


# As people keep it for MaxText's distillation: its keys, its defaults below in base.yml, keys that nothing here reads.
MAXTEXT = """
base_config: "base.yml"
run_name: "distill-qwen3"
base_output_directory: "gs://bucket/out"
student_overrides:
  model_name: "qwen3-30b-a3b"
  base_num_query_heads: 16
  head_dim: 256
  base_num_kv_heads: 2
  base_num_decoder_layers: 1
teacher_overrides:
  model_name: "qwen3-30b-a3b"
  load_parameters_path: "gs://bucket/teacher/0/items"
  base_num_decoder_layers: 1
tokenizer_type: "huggingface"
tokenizer_path: "Qwen/Qwen3-30B-A3B"
dataset_type: "synthetic"
distill_alpha: 0.6
distill_temperature: 1.0
distill_beta: 1.0
distill_layer_indices: [0]
scan_layers: True
megablox: True
sparse_matmul: True
attention: "flash"
use_tokamax_splash: True
max_target_length: 2048
per_device_batch_size: 1
remat_policy: "custom"
context: "device"
ici_fsdp_parallelism: -1
sa_block_q: 1024
sa_block_kv: 1024
sa_block_kv_compute: 512
sa_q_layout: "SEQ_MINOR"
wi_tile_fwd_embed_dim: 2048
wi_tile_fwd_mlp_dim: 768
opt_type: "adamw"
enable_checkpointing: True
log_period: 10
"""


@needs_libtpu
@pytest.mark.slow
def test_a_maxtext_yaml_compiles_as_it_is(tmp_path, capsys):
    recipe = tmp_path / "distillation.yml"
    recipe.write_text(MAXTEXT)
    asked = ["compile", str(recipe), "--topology", "tpu7x-8", "--quick", "--format", "json", "--cache", str(tmp_path)]
    assert cli.main(asked) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["fits"]
    calls = {(each["family"], each["phase"]): each["calls"] for each in found["calls"]}
    assert calls["splash forward", "student forward"] == 1
    assert ("splash forward", "re-run") not in calls
    assert "keys without effect here" in said.err


@needs_libtpu
@pytest.mark.slow
def test_an_interrupted_compile_leaves_nothing(tmp_path):
    def interrupt(phase, *_):
        if phase == "compile":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_step(load("tiny-qwen3-opt", SMALL).config, "v5e-4", cache=Cache(tmp_path), progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@needs_libtpu
def test_a_flag_that_the_compiler_does_not_know_is_named(tmp_path):
    config = load("tiny-qwen3-opt", [*SMALL, "xla_flags=[--xla_no_such_flag=1]"]).config
    with pytest.raises(ProfilerError, match="Unknown command line flag 'xla_no_such_flag'"):
        compile_step(config, "v5e-4", cache=Cache(tmp_path))


@needs_libtpu
def test_a_mesh_that_the_slice_does_not_have_is_a_usage_error(tmp_path):
    config = load("tiny-qwen3-opt", [*SMALL, "ici_data_parallelism=3"]).config
    with pytest.raises(UsageError, match="do not fit 4 devices"):
        compile_step(config, "v5e-4", cache=Cache(tmp_path))


@needs_libtpu
def test_libtpu_has_every_listed_slice(tmp_path):
    code = (
        "from jax.experimental.topologies import get_topology_desc as get\n"
        "from distill.aot import topologies\n"
        "for each in topologies():\n"
        "    if each.chips <= 256:\n"
        "        got = get(platform='tpu', topology_name=each.libtpu_name, **each.options).devices\n"
        "        assert len(got) == each.devices, each"
    )
    surroundings = environment.worker_environment(Config(), tmp_path, {"PATH": ""})
    done = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
