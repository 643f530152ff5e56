"""The reduced form: the figures of the profiles, in the same bytes every time, whole or not there at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from profiler import api, cli
from profiler.api import Options
from profiler.errors import UnreadableError, UsageError
from profiler.reduce import pool
from profiler.reduce.host_part import Packed
from profiler.reduced.write import reduce_run
from profiler.xplane.locate import locate

COMMANDS = ("summary", "ops", "kernels", "remat", "roofline", "memory", "comm", "health")


def answer(command: str, path: object, capsys: Any, *more: str) -> Any:
    """A command's JSON without what the files are called."""
    assert cli.main([command, str(path), "--format", "json", *more]) == 0
    return unnamed(json.loads(capsys.readouterr().out))


def unnamed(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: unnamed(value) for key, value in data.items() if key not in ("file", "files", "label")}
    return [unnamed(each) for each in data] if isinstance(data, list) else data


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def reduced(make_run, tmp_path) -> tuple[Path, Path]:
    """A run with a host that cannot be read and one that is cut, and its reduced form."""
    folder = make_run(5)
    (folder / "host-0.xplane.pb").write_bytes(b"nothing")
    cut = folder / "host-4.xplane.pb"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    api.reduce(str(folder), tmp_path / "run.parquet")
    return folder, tmp_path / "run.parquet"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_as_on_the_profiles(reduced, command: str, capsys) -> None:
    folder, target = reduced
    assert answer(command, target, capsys) == answer(command, folder, capsys)


def test_the_fleet_is_that_of_the_profiles_to_the_last_bit(reduced) -> None:
    one, other = (api.load(str(path)) for path in reduced)
    assert one.fleet.groups == other.fleet.groups
    assert (one.fleet.group_steps == other.fleet.group_steps).all()
    for first, second in zip(one.fleet.windows, other.fleet.windows, strict=True):
        assert (first.spans == second.spans).all()
        assert (first.names, first.source, first.unit) == (second.names, second.source, second.unit)
    assert [each.name for each in one.fleet.devices] == [each.name for each in other.fleet.devices]
    assert [(host.name, host.status, host.why) for host in one.hosts] == [
        (host.name, host.status, host.why) for host in other.hosts
    ]


def test_a_diff_of_reduced_runs_is_that_of_their_profiles(make_run, tmp_path, capsys) -> None:
    sides = [make_run(3, name="base"), make_run(3, name="opt", seed=1)]
    targets = [tmp_path / f"{side.name}.parquet" for side in sides]
    for side, target in zip(sides, targets, strict=True):
        api.reduce(str(side), target)
    found = []
    for base, opt in (sides, targets):
        assert cli.main(["diff", str(base), str(opt), "--format", "json"]) == 0
        found.append(unnamed(json.loads(capsys.readouterr().out)))
    assert found[0] == found[1]


def test_a_run_of_one_host_keeps_the_spans_of_all_its_devices(make_run, tmp_path, capsys) -> None:
    folder = make_run(1)
    api.reduce(str(folder), tmp_path / "one.parquet")
    for command in COMMANDS:
        assert answer(command, tmp_path / "one.parquet", capsys) == answer(command, folder, capsys)


def test_hosts_of_equal_content_are_told_by_the_names_of_their_files(tpu_space, tmp_path, capsys) -> None:
    steps = [(str(number), number * 10**9, 10**9) for number in range(4)]
    space = tpu_space({"TPU:0": {"Steps": steps, "XLA Ops": [("add.1", start, 10**8) for _, start, _ in steps]}})
    space._header.hostnames[:] = []  # the files do not say whose they are
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("a", "b", "c"):
        space.write(folder / f"{name}.xplane.pb")
    api.reduce(str(folder), tmp_path / "run.parquet")
    assert [each.name for each in api.load(str(tmp_path / "run.parquet")).fleet.devices] == [
        "a/TPU:0",
        "b/TPU:0",
        "c/TPU:0",
    ]
    assert answer("summary", tmp_path / "run.parquet", capsys) == answer("summary", folder, capsys)


def test_a_compiled_profile_stays_one(tmp_path, capsys) -> None:
    import sample_profiles

    path = sample_profiles.path("qwen3-30b/baseline.xplane.pb")
    api.reduce(str(path), tmp_path / "compiled.parquet")
    for command in ("summary", "memory", "remat"):
        assert answer(command, tmp_path / "compiled.parquet", capsys) == answer(command, path, capsys)


@pytest.mark.recordings
@pytest.mark.parametrize("name", ["tpu_v6e_inference", "nvidia_8gpu_tf2", "mi300x_conv_new"])
def test_recordings_of_every_kind_survive(recordings, name: str, tmp_path, capsys) -> None:
    path = recordings / f"{name}.xplane.pb"
    api.reduce(str(path), tmp_path / "r.parquet")
    for command in ("summary", "ops", "comm"):
        assert answer(command, tmp_path / "r.parquet", capsys) == answer(command, path, capsys)


# --- what is kept --------------------------------------------------------------------------------------------------


def test_other_devices_spans_are_not_kept_and_that_is_one_clear_line(reduced) -> None:
    folder, target = reduced
    kept = api.load(str(folder)).devices[0].name
    assert api.load(str(target), Options(device=kept)).devices[0].name == kept
    message = rf"the spans of host-3/TPU:1 are not kept, only those of {kept} \(profiler reduce --keep all"
    with pytest.raises(UsageError, match=message):
        api.load(str(target), Options(device="host-3/TPU:1"))
    with pytest.raises(UsageError, match="are not kept"):
        api.load(str(target), Options(all_devices=True))


def test_the_op_table_of_every_device_is_kept(reduced, capsys) -> None:
    folder, target = reduced
    for more in (["--device", "host-3/TPU:1"], ["--host", "host-2"], ["--all-devices"]):
        assert answer("ops", target, capsys, *more) == answer("ops", folder, capsys, *more)


def test_with_all_spans_kept_every_device_can_be_shown(make_run, tmp_path, capsys) -> None:
    folder = make_run(3)
    api.reduce(str(folder), tmp_path / "all.parquet", keep="all")
    for more in ([], ["--device", "host-2/TPU:1"], ["--host", "host-0"], ["--all-devices"]):
        assert answer("summary", tmp_path / "all.parquet", capsys, *more) == answer("summary", folder, capsys, *more)


def test_equal_programs_and_ops_of_many_hosts_are_kept_once(make_run, tmp_path) -> None:
    import polars as pl

    api.reduce(str(make_run(4)), tmp_path / "run.parquet")
    assert pl.read_parquet(tmp_path / "run.parquet/ops.parquet").height == 3
    assert pl.read_parquet(tmp_path / "run.parquet/programs.parquet").height == 1
    assert len(json.loads((tmp_path / "run.parquet/run_info.json").read_text())) == 1


# --- the same bytes, whole or not at all ---------------------------------------------------------------------------


def test_the_same_profiles_give_the_same_bytes(make_run, tmp_path) -> None:
    folder = make_run(4)
    recording = locate(str(folder)).recordings[0]

    def backwards(tasks, workers):
        return iter(sorted(pool.run(tasks, 1), reverse=True, key=lambda found: found[0]))

    reduce_run(recording, tmp_path / "a.parquet", workers=1)
    reduce_run(recording, tmp_path / "b.parquet", workers=3)
    reduce_run(recording, tmp_path / "c.parquet", engine=backwards)
    once = content(tmp_path / "a.parquet")
    assert once == content(tmp_path / "b.parquet") == content(tmp_path / "c.parquet")
    reduce_run(recording, tmp_path / "a.parquet")
    assert content(tmp_path / "a.parquet") == once


def test_what_was_done_before_an_interruption_is_not_read_again(make_run, tmp_path) -> None:
    recording = locate(str(make_run(5))).recordings[0]
    read: list[str] = []

    def stopping(after: int):
        def engine(tasks, workers):
            for index, outcome in pool.run(tasks, 1):
                if len(read) == after:
                    raise KeyboardInterrupt
                if isinstance(outcome, Packed):
                    read.append(tasks[index].name)
                yield index, outcome

        return engine

    target = tmp_path / "run.parquet"
    with pytest.raises(KeyboardInterrupt):
        reduce_run(recording, target, engine=stopping(3))
    assert not target.exists()
    assert len(list((tmp_path / "run.parquet.partial").rglob("*.zip"))) == 3
    cut = next((tmp_path / "run.parquet.partial").rglob("*.zip"))
    cut.write_bytes(cut.read_bytes()[:100])
    made = reduce_run(recording, target, engine=stopping(99))
    assert (len(read), len(set(read))) == (6, 5)
    assert made.hosts_resumed == 2
    assert not (tmp_path / "run.parquet.partial").exists()
    reduce_run(recording, tmp_path / "once.parquet")
    assert content(target) == content(tmp_path / "once.parquet")


def test_a_host_that_changed_meanwhile_is_read_again(make_run, write_host, tmp_path) -> None:
    folder = make_run(3)
    recording = locate(str(folder)).recordings[0]
    target = tmp_path / "run.parquet"

    def failing(tasks, workers):
        yield from list(pool.run(tasks, 1))[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reduce_run(recording, target, engine=failing)
    write_host(folder / "host-0.xplane.pb", "host-0", seed=9)
    assert reduce_run(recording, target).hosts_resumed == 1
    reduce_run(recording, tmp_path / "once.parquet")
    assert content(target) == content(tmp_path / "once.parquet")


def test_a_run_that_is_there_already_is_replaced_and_anything_else_is_not(make_run, tmp_path) -> None:
    folder = make_run(2)
    target = tmp_path / "run.parquet"
    api.reduce(str(folder), target)
    before = content(target)
    api.reduce(str(make_run(2, name="other", seed=3)), target)
    assert content(target) != before
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="exists and is no reduced run"):
        api.reduce(str(folder), tmp_path / "mine")
    with pytest.raises(UsageError, match="no such folder"):
        api.reduce(str(folder), tmp_path / "no/where")
    with pytest.raises(UsageError, match="is a reduced run already"):
        api.reduce(str(target), tmp_path / "again.parquet")
    with pytest.raises(UsageError, match="names several recordings"):
        api.reduce(f"{folder},{folder}", tmp_path / "two.parquet")


def test_nothing_is_written_where_no_host_can_be_read(make_run, tmp_path) -> None:
    folder = make_run(2)
    for file in folder.iterdir():
        file.write_bytes(b"x")
    with pytest.raises(UnreadableError, match=r"host-0\.xplane\.pb"):
        api.reduce(str(folder), tmp_path / "run.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hosts.parquet", "steps.parquet", "ops.parquet", "programs.parquet", "run_info.json"])
@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_table_that_is_damaged_is_one_clear_line(make_run, tmp_path, name: str, how: str, capsys) -> None:
    api.reduce(str(make_run(2)), tmp_path / "run.parquet")
    path = tmp_path / "run.parquet" / name
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if how == "empty" else path.stat().st_size // 2])
    assert cli.main(["summary", str(tmp_path / "run.parquet")]) == 3
    message = capsys.readouterr().err
    assert name in message
    assert "write it anew with profiler reduce" in message
    assert message.count("\n") == 1


def test_another_version_of_the_format_is_refused(make_run, tmp_path) -> None:
    api.reduce(str(make_run(2)), tmp_path / "run.parquet")
    path = tmp_path / "run.parquet/manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(UnreadableError, match="has version 2 of the format, this profiler reads 1"):
        api.summary(str(tmp_path / "run.parquet"))


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_what_is_lacking(make_run, tmp_path, run_cli) -> None:
    folder = make_run(3)
    (folder / "host-1.xplane.pb").write_bytes(b"x")
    done = run_cli("reduce", folder, "-o", tmp_path / "run.parquet", "--workers", 2)
    assert (done.returncode, done.stdout) == (0, "")
    first, *rest = done.stderr.splitlines()
    assert "wrote " in first and "2 of 3 hosts, 4 devices" in first
    assert "1 of 3 host is left out since it cannot be read: host-1" in rest[0]
    assert run_cli("reduce", folder, "-o", tmp_path / "run.parquet", "--workers", 0).returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="kills with a signal")
def test_a_reduce_that_is_killed_leaves_no_run_and_goes_on_where_it_was(make_run, tmp_path) -> None:
    folder, target = make_run(4), tmp_path / "run.parquet"
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from profiler import api\n"
        "die = lambda done, of: os.kill(os.getpid(), 9) if done == 2 else None\n"
        "api.reduce(sys.argv[1], Path(sys.argv[2]), progress=die)\n"
    )
    done = subprocess.run([sys.executable, script, folder, target], capture_output=True, check=False)
    assert done.returncode == -9
    assert not target.exists()
    assert api.reduce(str(folder), target).hosts_resumed == 2
    assert not (tmp_path / "run.parquet.partial").exists()
