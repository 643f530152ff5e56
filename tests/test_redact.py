"""--redact: nothing of where and by whom a run was made is left, in any command and any format."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler import cli, results
from profiler.redact import redacted
from profiler.xplane.write import SpaceBuilder

Say = Callable[..., tuple[int, str, str]]

SECRETS = (
    "ada",
    "lovelace",
    "t1v-n-0042",
    "wheatstone",
    "engine-prod",
    "analytical",
    "difference",
    "10.17.3.9",
    "babbage",
)
CONFIG = """\
run_name: distilled
user: {user}
owner: charles.babbage@example.org
coordinator_address: t1v-n-0042.wheatstone.internal:8476
base_output_directory: gs://engine-prod/analytical/{user}
load_parameters_path: /home/ada/analytical/ckpt/0
dataset_path: C:\\Users\\ada\\difference
peer: 10.17.3.9
per_device_batch_size: {batch}
note: kept by ada on t1v-n-0042
"""


def recording(folder: Path, length: int) -> str:
    """A training-like trace of a host, with sources in a home and a run info of its own."""
    space = SpaceBuilder(hostnames=("t1v-n-0042",))
    plane = space.plane("/device:TPU:0", stats={"device_type_string": "TPU v6 Lite"})
    modules, ops = plane.line("XLA Modules"), plane.line("XLA Ops")
    steps = plane.line("Steps")
    for step in range(5):
        at = step * 1_000_000
        steps.event(str(step), at, 900_000 + step * 100)
        modules.event("jit_train_step(7)", at, 900_000)
        for index, name in enumerate(("fusion.1", "all-reduce.2", "copy.3")):
            opcode = name.split(".")[0]
            ops.event(
                f"%{name} = f32[8]{{0}} {opcode}(f32[8]{{0}} %x)",
                at + index * 200_000,
                length + index,
                display_name=name,
                metadata_stats={
                    "program_id": 7, "symbol_id": index + 1, "hlo_category": opcode, "flops": 16, "bytes_accessed": 64,
                    "tf_op": f"jit(train_step)/jvp(decoder)/{opcode}:",
                    "source": "/home/ada/analytical/layers/moe.py:412",
                },
            )  # fmt: skip
    info = {
        "config": {"user": "ada", "remat_policy": "full", "output": "/home/ada/analytical/out"},
        "hosts": ["t1v-n-0042"], "versions": {"jax": "0.12.0", "libtpu": "0.0.52"},
        "xla_flags": ["--xla_dump_to=/home/ada/analytical/dump", "--xla_latency_hiding_scheduler_rerun=2"],
        "git_commit": "abc", "tokens_per_step": 4096,
    }  # fmt: skip
    space.plane("/host:run_info", stats={"run_info": json.dumps(info)})
    path = folder / "home" / "ada" / "analytical" / "plugins" / "profile" / "2026_01_01" / "t1v-n-0042.xplane.pb"
    path.parent.mkdir(parents=True)
    return str(space.write(path))


@pytest.fixture(scope="module")
def secret_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Two recordings full of names, and their configurations."""
    folder = tmp_path_factory.mktemp("pair")
    files, configs = [], []
    for side, length in (("before", 150_000), ("after", 120_000)):
        files.append(recording(folder / side, length))
        config = folder / f"{side}.yml"
        config.write_text(
            CONFIG.format(user="ada" if side == "before" else "lovelace", batch=4 if length > 130_000 else 6)
        )
        configs.append(str(config))
    return files, configs


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*args: object) -> tuple[int, str, str]:
        code = cli.main([str(arg) for arg in args])
        return code, *capfd.readouterr()

    return run


def commands(files: list[str], configs: list[str]) -> dict[str, list[str]]:
    one, both = ["--config", configs[0]], ["--config", *configs]
    return {
        "summary": [files[0], *one], "ops": [files[0]], "kernels": [files[0], *one], "memory": [files[0]],
        "comm": [files[0], *one], "remat": [files[0], *one], "roofline": [files[0], *one], "diff": [*files, *both],
        "check": [*files, *both, "--warn-on", "step_time>+1%", "mfu<-1%"], "ladder": [*files, *both],
        "config": list(configs),
    }  # fmt: skip


NAMES = ("summary", "ops", "kernels", "memory", "comm", "remat", "roofline", "diff", "check", "ladder", "config")


@pytest.mark.parametrize("command", NAMES)
def test_nothing_is_left_in_any_format(say: Say, secret_pair: Any, tmp_path: Path, command: str) -> None:
    arguments = commands(*secret_pair)[command]
    formats = ["text", "json", "markdown", *([] if command == "check" else ["csv"])]
    for how in formats:
        code, out, err = say(command, *arguments, "--format", how, "--redact")
        assert code == 0, err
        assert_hidden(out + err)
        assert len(out) > 50
    if command == "ops":
        say(command, *arguments, "--redact", "-o", tmp_path / "ops.parquet")
        assert_hidden(pl.read_parquet(tmp_path / "ops.parquet").write_csv())


def assert_hidden(text: str) -> None:
    found = [secret for secret in SECRETS if re.search(rf"(?i)(?<![a-z]){re.escape(secret)}(?![a-z])", text)]
    assert found == []
    assert "/tmp" not in text


def test_the_page_hides_the_same(say: Say, secret_pair: Any, tmp_path: Path) -> None:
    files, configs = secret_pair
    for target in (["report", *files, "-o"], ["diff", *files, "-o", str(tmp_path / "d.txt"), "--html"]):
        page = tmp_path / f"{target[0]}.html"
        code, _, err = say(*target, page, "--config", *configs, "--redact")
        assert code == 0, err
        assert_hidden(page.read_text())
        assert "host-1" in page.read_text()


def test_without_the_option_everything_is_said(say: Say, secret_pair: Any) -> None:
    files, configs = secret_pair
    _, text, _ = say("diff", *files, "--config", *configs, "--format", "json")
    assert all(secret in text for secret in ("ada", "t1v-n-0042", "engine-prod"))


def test_figures_versions_and_knobs_are_as_they_were(say: Say, secret_pair: Any) -> None:
    files, configs = secret_pair
    plain, hidden = (
        json.loads(say("diff", *files, "--config", *configs, "--format", "json", *more)[1])
        for more in ([], ["--redact"])
    )
    for key in ("delta", "contributions", "matched_time_fraction", "normalization"):
        assert plain[key] == hidden[key]
    assert hidden["baseline"]["run_info"]["versions"] == {"jax": "0.12.0", "libtpu": "0.0.52"}
    assert hidden["baseline"]["file"] != hidden["optimized"]["file"]
    assert [knob["key"] for knob in plain["knobs"]] == [knob["key"] for knob in hidden["knobs"]]
    knobs = {knob["key"]: (knob["baseline"], knob["optimized"]) for knob in hidden["knobs"]}
    assert knobs["per_device_batch_size"] == (4, 6)
    assert re.fullmatch(r"user-\d", knobs["user"][0])
    assert knobs["user"][0] != knobs["user"][1]


# --- one text at a time


def summary_of(info: dict[str, Any], **more: Any) -> results.Summary:
    fields: dict[str, Any] = {
        "file": "a.xplane.pb", "label": "a", "kind": "recorded",
        "devices": (results.DeviceInfo("TPU:0", "TPU7x", 1.0, 1, None, "/device:TPU:0"),),
        "steps": results.StepStats("Steps line", 3, 1e9, 1e9, 1e9, 1e9), "busy_fraction": 0.9, "mfu": None, "hfu": None,
        "mfu_inputs": results.MfuInputs(None, 1e9, 918.0, None), "families": (), "kernels": (),
        "remat": results.Remat(0, 0, 0), "memory": results.Memory(), "run_info": info, "warnings": (),
    }  # fmt: skip
    return results.Summary(**{**fields, **more})


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("output", "/data/exp/out.json", "path-1/out.json"),
        ("output", "gs://bucket/exp", "path-1"),
        ("output", "s3://bucket/a/b.npz", "path-1/b.npz"),
        ("output", "~/runs", "path-1"),
        ("tokenizer_path", "some/model", "path-1"),
        ("log", r"\\server7\share\x.txt", "path-1/x.txt"),
        ("log", "D:\\runs\\x.txt", "path-1/x.txt"),
        ("flag", "--xla_dump_to=/data/x/y --b=1", "--xla_dump_to=path-1 --b=1"),
        ("text", "wrote https://example.com/u/1?token=2, done", "wrote path-1, done"),
        ("hostname", "node7.corp.example.com", "host-1"),
        ("peer", "node7.corp.example.com:80", "host-1:80"),
        ("owner", "ada", "user-1"),
        ("text", "by ada@example.com", "by user-1"),
        ("peer", "192.168.0.7", "host-1"),
        # what stays
        ("model_name", "qwen3-30b-a3b", "qwen3-30b-a3b"),
        ("hf_name", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"),
        ("version", "0.0.52.1", "0.0.52.1"),
        ("stack", "jit(train_step)/jvp(decoder)/while/body/moe", "jit(train_step)/jvp(decoder)/while/body/moe"),
        ("plane", "/device:TPU:0", "/device:TPU:0"),
        ("rate", "tokens/s/device", "tokens/s/device"),
        ("profile", "on", "on"),
        ("context", "device", "device"),
        ("op", "fusion.12.clone", "fusion.12.clone"),
    ],
)
def test_a_value_of_the_run_info(key: str, value: str, shown: str) -> None:
    assert (redacted(summary_of({key: value})).run_info or {})[key] == shown


def test_a_name_is_hidden_wherever_else_it_stands() -> None:
    note = results.Note("cut", "/home/ada/x.pb: ada stopped node7 early")
    device = results.DeviceInfo("TPU:0", "TPU7x", 1.0, 1, "vm", "/device:TPU:0")
    found = redacted(summary_of({"hosts": ["node7", "node71"]}, label="ada-run", warnings=(note,), devices=(device,)))
    assert found.warnings[0].message == "path-1/x.pb: user-1 stopped host-2 early"
    assert found.label == "user-1-run"
    assert (found.run_info or {})["hosts"] == ["host-2", "host-3"]
    assert found.devices[0].host == "host-1"
    assert found.devices[0].plane == "/device:TPU:0"


@pytest.mark.parametrize(
    "folder",
    ["logs/plugins/profile/nightly", "2026_01_02_03_04_05", "/mnt/runs/2026_01_02-03_04_05-a", "runs/a.parquet"],
)
def test_files_in_the_folder_of_a_run_are_named_by_hosts(folder: str) -> None:
    for packed in ("", ".gz"):
        found = redacted(summary_of({}, file=f"{folder}/tpu-vm-17.xplane.pb{packed}"))
        assert found.file == f"path-1/host-1.xplane.pb{packed}"
    assert redacted(summary_of({}, file="mine/tpu-vm-17.xplane.pb")).file == "path-1/tpu-vm-17.xplane.pb"


def test_equal_folders_have_one_placeholder_and_others_another() -> None:
    found = redacted(summary_of({"a": "/d/one/x.py", "b": "/d/one/y.py", "c": "/d/two/x.py"}))
    assert list((found.run_info or {}).values()) == ["path-1/x.py", "path-1/y.py", "path-2/x.py"]


def test_sources_keep_the_file_and_the_line() -> None:
    frame = pl.DataFrame({"source": ["/home/ada/layers/moe.py:412", "layers/moe.py:3", None], "op": ["a", "b", "ada"]})
    diff = replace(_diff(), ops=frame)
    assert redacted(diff).ops.rows() == [("moe.py:412", "a"), ("moe.py:3", "b"), (None, "user-1")]


def _diff() -> results.Diff:
    side = summary_of({})
    return results.Diff(
        True, "step", "same", side, side, results.Delta(None, None, 1.0, None, None, 1e9, 1e9), (), 1, 1, 1,
        pl.read_csv(io.StringIO("a\n")),
    )  # fmt: skip


def test_a_compiled_profile_has_no_host_to_hide() -> None:
    device = results.DeviceInfo("TPU:0", "TPU7x", 1.0, 1, "qwen3-30b-base", "/device:TPU:0")
    side = summary_of({}, kind="compiled", label="qwen3-30b-base", devices=(device,))
    assert redacted(side) == side


ODD = st.text(alphabet=st.sampled_from("/\\~:.@-_ab1 \n\ud800漢"), max_size=30)


@given(st.dictionaries(ODD, st.one_of(ODD, st.lists(ODD, max_size=3)), max_size=5), ODD, ODD)
def test_any_text_is_redacted_without_failing_and_equally_twice(info: dict[str, Any], label: str, host: str) -> None:
    devices = (results.DeviceInfo("TPU:0", None, None, None, host, None),)
    side = summary_of(info, label=label, devices=devices)
    assert redacted(side) == redacted(side)


def test_the_folder_that_tells_runs_of_one_name_apart_is_hidden() -> None:
    @dataclass
    class Named:
        label: str

    assert redacted(Named("analytical/host-run")).label == "host-run"
