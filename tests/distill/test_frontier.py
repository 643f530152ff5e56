"""Combinations of knobs, compiled: which are asked for, what is said about them, and what is written."""

from __future__ import annotations

import importlib.util
import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jsonschema
import pytest

import profiler
from distill import cli, points
from distill.aot import Cache, OutOfMemory, OutOfVmem, compile_step, pool
from distill.aot.counts import KernelCalls
from distill.aot.export import export_profile
from distill.aot.pool import compile_all
from distill.config import load
from distill.frontier import frontier, parse_knobs, to_text
from distill.frontier_figure import to_svg
from distill.points import Estimate, Lead
from profiler.analysis.memory import Memory
from profiler.errors import ProfilerError, UsageError

GIB = 1 << 30
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "frontier.schema.json"


def estimate_of(profile):
    """An estimate that a made profile's name stands for: larger batches take less time per token."""
    batch = int(profile.name.partition("per_device_batch_size-")[2].partition(".")[0].partition("_")[0])
    step = 1.0 * batch + 0.5
    rate = batch * 512 / step
    return Estimate(
        step_s=step,
        step_s_band=(0.8 * step, 1.5 * step),
        token_s=1 / rate,
        tokens_per_s=rate,
        tokens_per_s_band=(rate / 1.5, rate / 0.8),
        mfu=0.2 * rate / 400,
        mfu_band=(0.2 * rate / 600, 0.2 * rate / 320),
    )


@pytest.fixture
def made(monkeypatch, compiled):
    """Compiles without a compiler: 4 GiB a sequence, of 16; the profiles of a frontier are empty files."""
    asked = []

    def compile_step(config, topology, *, quick, progress, cache):
        asked.append(config)
        size = 4 * GIB * config.per_device_batch_size
        if config.ici_data_parallelism == 3:
            raise UsageError("3 devices do not go into 4")
        kept = config.remat_policy == "custom" and config.context == "device"
        calls = [KernelCalls("splash forward", "student forward", ("splash",), 4)]
        calls += [] if kept else [KernelCalls("splash forward", "re-run", ("splash",), 4)]
        return compiled(
            config,
            topology,
            quick=quick,
            memory=Memory(size - GIB, size, GIB, 0, ()),
            calls=tuple(calls),
            error=OutOfMemory(size, 16 * GIB, ()) if size > 16 * GIB else None,
        )

    def export(compiled, asked, path, *, coarse, kernels):
        path.write_text("coarse" if coarse else "")
        return path

    monkeypatch.setattr(pool, "compile_step", compile_step)
    monkeypatch.setattr(points, "export_profile", export)
    monkeypatch.setattr(points, "estimated", estimate_of)
    monkeypatch.setattr("distill.frontier.ahead", lambda *_: Lead(1.07, (1.02, 1.1), ("x differs: y",)))
    monkeypatch.setattr(points, "require", dict)
    return asked


def run(capsys, *arguments):
    code = cli.main(["frontier", "tiny-qwen3-opt", "--topology", "v5e-4", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_values_are_yaml():
    knobs = parse_knobs(
        ["per_device_batch_size=2, 4", "context=device,remat", "xla_flags=[--a=1, --b],[]", "x='1',1e3"]
    )
    assert knobs == {
        "per_device_batch_size": [2, 4],
        "context": ["device", "remat"],
        "xla_flags": [["--a=1", "--b"], []],
        "x": ["1", "1e3"],
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--knob", "per_device_batch_size"], "is not a knob"),
        (["--knob", "=2"], "is not a knob"),
        (["--knob", "per_device_batch_size="], "has an empty value"),
        (["--knob", "per_device_batch_size=2,"], "has an empty value"),
        (["--knob", "per_device_batch_size=2,null"], "has an empty value"),
        (["--knob", "per_device_batch_size=2,,4"], "are not YAML"),
        (["--knob", "per_device_batch_size=2,2"], "are the same program"),
        (["--knob", "per_device_batch_size=2,2.0"], "are the same program"),
        (["--knob", "run_name=a,b"], "are the same program"),
        (["--knob", "per_device_batch_size=2", "--knob", "per_device_batch_size=4"], "is given twice"),
        (["--knob", "per_device_batchsize=2,4"], "is no key (did you mean per_device_batch_size?)"),
        (["--knob", "scan_layers=true,false"], "has no effect here"),
        (["--knob", "student_overrides.heads=2,4"], "student_overrides.heads is no key"),
        (["--knob", "context=device,deviec"], "context='deviec' is not possible"),
        (["--knob", "per_device_batch_size=0,2"], "per_device_batch_size=0 is not possible"),
        (["--knob", "per_device_batch_size=2", "--topology", "v5e-5"], "no slice of size 5"),
        (["--knob", "per_device_batch_size=2", "-o", "a,b"], "stands for several recordings"),
        ([], "--knob"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_compiled(capsys, made, monkeypatch, tmp_path, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out, made) == (2, "", [])
    assert says in err
    assert err.count("\n") == 1


def test_knobs_of_tensors_bring_the_policy_under_which_they_count(capsys, made):
    arguments = ["--topology", "v5e-4", "--knob", "context=device,remat"]
    assert cli.main(["frontier", "tiny-qwen3-base", "--knob", "per_device_batch_size=2", *arguments]) == 0
    out = capsys.readouterr().out
    assert {config.remat_policy for config in made} == {"custom"}
    assert "Note: remat_policy=custom instead of full: context would have no effect without" in out
    rows = [line.split() for line in out.splitlines() if " yes " in line]
    assert [row[-8:-6] for row in rows] == [["4", "0"], ["8", "4"]]


def test_a_policy_that_is_a_knob_itself_is_left_alone(made):
    frontier(
        "tiny-qwen3-base", {"remat_policy": ["full"], "per_device_batch_size": [2], "context": ["device"]}, "v5e-4"
    )
    assert [config.remat_policy for config in made] == ["full"]


# --- what is said ----------------------------------------------------------------------------------------------------


def test_every_combination_has_a_row_and_the_fastest_that_fits_is_marked(capsys, made):
    code, out, err = run(capsys, "--knob", "per_device_batch_size=2,4,6", "--knob", "context=device,remat")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("4 of 6 points fit v5e-2x2, 4 devices (TPU v5e, 16.00 GiB each); best by estimated time")
    assert "per_device_batch_size=4 context=device (2.197 ms, MFU 22.8 %)" in lines[0]
    assert [line[:3] for line in lines[4:10]] == ["  1", "  2", "* 3", "  4", "  5", "  6"]
    assert " ".join(lines[8].split()[1:]) == "6 device no 23.00 24.00 −8.000 0.00 4 0 n/a n/a n/a n/a"
    assert len({len(line) for line in lines[4:8]}) == 1
    assert "Estimates are coarse: from quick" in out
    assert "Tokens/s of the best over those of the next" in out
    assert "×1.070 (1.020–1.100)" in out
    assert "Not in the estimates: x differs: y" in out
    assert "per_device_batch_size=6 context=remat: needs 24.00 GiB of HBM, 16.00 GiB are available" in out
    assert "per_device_batch_size=2 context=device: fits, 2 s" in err


def test_a_point_that_cannot_be_compiled_says_why_and_the_others_go_on(capsys, made):
    code, out, _ = run(capsys, "--knob", "per_device_batch_size=2", "--knob", "ici_data_parallelism=1,3")
    assert code == 0
    assert out.startswith("1 of 2 points fit")
    assert "ici_data_parallelism=3: 3 devices do not go into 4" in out


def test_a_combination_that_is_not_possible_is_a_point_too(capsys, made):
    blocks = ["--knob", "sa_block_kv=128,256", "--knob", "sa_block_kv_compute=128,256"]
    code, out, _ = run(capsys, "--knob", "per_device_batch_size=2", *blocks)
    assert code == 0
    assert out.startswith("3 of 4 points fit")
    assert "sa_block_kv_compute=256: sa_block_kv_compute=256 is not possible" in out
    assert len(made) == 3


def test_where_nothing_fits_the_exit_code_is_1(capsys, made):
    code, out, _ = run(capsys, "--knob", "per_device_batch_size=6,8")
    assert code == 1
    assert out.startswith("0 of 2 points fit")
    assert "Estimates" not in out


def test_a_kernel_that_needs_too_much_vmem_is_named_with_its_keys(compiled):
    error = OutOfVmem(80 << 20, 16 << 20, "gmm", "a/b", ("wi_tile_fwd_batch_seq",))
    why = points._why(compiled(load("tiny-qwen3-opt").config, error=error))
    assert why == "gmm needs 80.00 MiB of VMEM, 16.00 MiB are allowed (wi_tile_fwd_batch_seq=512)"


def test_without_the_compiler_there_is_one_error_and_no_row(capsys, made, monkeypatch):
    def missing():
        raise ProfilerError("compiling for a TPU needs libtpu")

    monkeypatch.setattr(points, "require", missing)
    code, out, err = run(capsys, "--knob", "per_device_batch_size=2,4")
    assert (code, out, made) == (1, "", [])
    assert "needs libtpu" in err


def test_other_attention_kernels_have_no_splash_calls(compiled):
    assert points.Point("a", compiled(load("tiny-qwen3-opt").config)).splash_calls == (None, None)


# --- quick and finished compiles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "coarse"), [({2, 4}, False), ({2}, True), (set(), True)], ids=["all whole", "one of two", "none"]
)
def test_estimates_in_one_table_are_of_one_kind(made, monkeypatch, tmp_path, whole, coarse):
    inner = pool.compile_step

    def some_whole(config, topology, *, quick, progress, cache):
        quick = config.per_device_batch_size not in whole
        return inner(config, topology, quick=quick, progress=progress, cache=cache)

    monkeypatch.setattr(pool, "compile_step", some_whole)
    found = frontier("tiny-qwen3-opt", {"per_device_batch_size": [2, 4]}, "v5e-4", out=tmp_path)
    assert found.found.coarse is coarse
    assert {file.read_text() for file in tmp_path.iterdir()} == {"coarse" if coarse else ""}
    assert ("coarse" in to_text(found)) is coarse


def test_full_compiles_to_the_end(capsys, made, monkeypatch):
    seen = []

    def watched(*arguments, quick, **options):
        seen.append(quick)
        return compile_all(*arguments, quick=quick, **options)

    monkeypatch.setattr(points, "compile_all", watched)
    _, out, _ = run(capsys, "--knob", "per_device_batch_size=2,4", "--full")
    assert seen == [False]
    assert "Estimates are from finished compiles" in out


# --- what is written -------------------------------------------------------------------------------------------------


def closed(node):
    """The schema with no property allowed that it does not describe: every key we write is documented."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        return node
    return [closed(item) for item in node] if isinstance(node, list) else node


def test_the_json_follows_its_schema(capsys, made):
    knobs = ["--knob", "per_device_batch_size=2,6", "--knob", "ici_data_parallelism=1,3"]
    code, out, _ = run(capsys, *knobs, "--format", "json")
    document, schema = json.loads(out), json.loads(SCHEMA.read_text("utf-8"))
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, closed(schema), cls=jsonschema.Draft202012Validator)
    assert document["best"] == "per_device_batch_size=2 ici_data_parallelism=1"
    assert [point["fits"] for point in document["points"]] == [True, False, False, False]
    assert [point["compiled"] for point in document["points"]] == [True, False, True, False]
    assert document["points"][2]["headroom_bytes"] == -8 * GIB


def test_a_folder_gets_table_json_figure_and_a_profile_of_each_that_fits(capsys, made, tmp_path):
    (tmp_path / "per_device_batch_size-6.xplane.pb").write_text("of an earlier call")
    _, out, err = run(capsys, "--knob", "per_device_batch_size=2,4,6", "-o", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "frontier.json",
        "frontier.svg",
        "frontier.txt",
        "per_device_batch_size-2.xplane.pb",
        "per_device_batch_size-4.xplane.pb",
    ]
    assert (tmp_path / "frontier.txt").read_text() == out
    profiles = [point["profile"] for point in json.loads((tmp_path / "frontier.json").read_text())["points"]]
    assert profiles == ["per_device_batch_size-2.xplane.pb", "per_device_batch_size-4.xplane.pb", None]
    assert "wrote" in err


def test_the_names_of_profiles_differ_and_are_paths_that_profiler_takes(made, tmp_path):
    knobs = {"per_device_batch_size": [2], "xla_flags": [["--a=1,2"], ["--a=1;2"]], "run_name": ["../x"]}
    frontier("tiny-qwen3-opt", knobs, "v5e-4", out=tmp_path)
    names = [path.name for path in tmp_path.iterdir()]
    assert len(set(names)) == 2
    assert not any(sign in name for name in names for sign in "=,/;")


def test_the_figure_is_xml_whatever_the_labels_are(made):
    knobs = {"per_device_batch_size": [2, 6], "run_name": ['<b>&"\x1b']}
    found = frontier("tiny-qwen3-opt", knobs, "v5e-4")
    text = to_svg(found)
    root = ElementTree.fromstring(text)
    words = [each.text for each in root.iter() if each.text]
    assert any("<b>&" in each for each in words)
    assert "16.00 GiB to use" in words
    assert "does not fit" in words
    assert "24.00 GiB, 8.000 GiB too much" in words
    assert "best by estimated time per token" in words


def test_a_figure_without_any_compile_is_still_one(made):
    found = frontier("tiny-qwen3-opt", {"ici_data_parallelism": [3]}, "v5e-4")
    assert "not compiled" in to_svg(found)
    ElementTree.fromstring(to_svg(found))


# --- the real compiler -----------------------------------------------------------------------------------------------

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None and not os.environ.get("CI"),
    reason="no TPU compiler: libtpu is missing",
)
SMALL = [
    "student_overrides.base_num_decoder_layers=2",
    "teacher_overrides.base_num_decoder_layers=2",
    "dtype=bfloat16",
    "max_target_length=256",
    "per_device_batch_size=1",
]


@needs_libtpu
@pytest.mark.slow
def test_a_real_frontier_shows_what_keeping_the_context_saves_and_is_found_again(capsys, tmp_path):
    arguments = ["frontier", "tiny-qwen3-base", *SMALL, "--topology", "tpu7x-8", "--cache", str(tmp_path / "cache")]
    arguments += ["--knob", "context=device,remat", "--knob", "ici_data_parallelism=1,3", "-o", str(tmp_path / "out")]
    assert cli.main(arguments) == 0
    first = capsys.readouterr()
    document = json.loads((tmp_path / "out" / "frontier.json").read_text())
    assert [point["fits"] for point in document["points"]] == [True, False, True, False], first.out
    assert "do not fit 8 devices" in document["points"][1]["problem"]
    kept, again = document["points"][0], document["points"][2]
    assert (kept["student_splash_forward_calls"], kept["rerun_splash_forward_calls"]) == (2, 0)
    assert (again["student_splash_forward_calls"], again["rerun_splash_forward_calls"]) == (4, 2)
    assert document["best"] == kept["label"]
    assert 0 < kept["estimate"]["mfu"] < 1
    diff = profiler.diff(*(str(tmp_path / "out" / point["profile"]) for point in (again, kept)))
    assert diff.delta.mfu_points > 0
    assert cli.main(arguments) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert second.err.count("from the cache") == 2


@needs_libtpu
@pytest.mark.slow
def test_a_finished_compile_is_taken_as_coarsely_as_a_quick_one(tmp_path):
    loaded, steps = load("tiny-qwen3-opt", SMALL), {}
    for quick in (True, False):
        compiled = compile_step(loaded.config, "tpu7x-8", quick=quick, cache=Cache(tmp_path))
        for coarse in (True, False):
            profile = export_profile(compiled, {}, tmp_path / "a.xplane.pb", coarse=coarse)
            steps[quick, coarse] = points.estimated(profile).step_s
    assert steps[True, True] == steps[True, False]
    assert steps[False, True] == pytest.approx(steps[True, True], rel=0.01)
    assert steps[False, False] != steps[False, True]
