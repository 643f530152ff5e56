"""A run of several hosts: its median device is shown, all others are in the fleet, none is mixed with another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler import api, cli
from profiler.api import Options
from profiler.errors import UnreadableError, UsageError
from profiler.fleet import Fleet
from profiler.reduce import load, pool
from profiler.reduce.host_part import Failure, HostPart, Task
from profiler.trace import Device, Windows
from profiler.xplane.locate import locate


def lengths(folder: Path) -> dict[str, float]:
    """The mean step of every device, each file read by itself."""
    found = {}
    for file in sorted(folder.iterdir()):
        for index, device in enumerate((trace := api.load(str(file))).devices):
            spans = trace.windows[index].spans
            found[f"{device.host}/{device.name}"] = float((spans[:, 1] - spans[:, 0]).mean())
    return found


def assert_equal(one: Fleet, other: Fleet) -> None:
    assert one.devices == other.devices
    assert one.groups == other.groups
    assert np.array_equal(one.group_steps, other.group_steps)
    for first, second in zip(one.windows, other.windows, strict=True):
        assert np.array_equal(first.spans, second.spans)
        assert (first.source, first.unit, first.names) == (second.source, second.unit, second.names)


def test_the_median_device_is_shown_and_its_figures_are_those_of_its_file(make_run) -> None:
    folder = make_run(5)
    means = lengths(folder)
    median = sorted(means, key=means.__getitem__)[(len(means) - 1) // 2]
    trace = api.load(str(folder))
    assert [device.name for device in trace.devices] == [median]
    host, name = median.split("/")
    whole = api.summary(str(folder))
    alone = api.summary(str(folder / f"{host}.xplane.pb"), Options(device=name))
    assert whole.families == alone.families
    assert whole.steps == alone.steps
    assert whole.mfu_inputs == alone.mfu_inputs
    assert sum(row.time_ps_per_step for row in whole.families) == pytest.approx(whole.steps.mean_ps, rel=1e-12)


def test_the_fleet_has_every_device_with_the_steps_of_its_file(make_run) -> None:
    folder = make_run(4)
    fleet = api.load(str(folder)).fleet
    assert dict(zip((each.name for each in fleet.devices), fleet.mean_ps, strict=True)) == lengths(folder)
    assert [host.name for host in fleet.hosts] == ["host-0", "host-1", "host-2", "host-3"]
    assert all(fleet.host_of(each.index).file == each.file for each in fleet.devices)
    for index in range(len(fleet.devices)):
        assert fleet.group_ps(index).sum(axis=1) == pytest.approx(fleet.lengths_ps(index), rel=1e-12)
        assert fleet.windows[index].names == ("100", "101", "102", "103")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_it_does_not_matter_how_many_processes_read(make_run, workers: int) -> None:
    folder = make_run(4)
    whole = load(locate(str(folder)), all_devices=True)
    trace = load(locate(str(folder)), workers=workers)
    assert_equal(trace.fleet, replace(whole.fleet, shown=trace.fleet.shown))
    assert [host.status for host in trace.hosts] == ["read"] * 4
    assert trace.hosts == whole.hosts


def test_all_devices_are_the_mean_that_they_were(make_run) -> None:
    folder = make_run(3)
    summary = api.summary(str(folder), Options(all_devices=True))
    assert summary.steps.mean_ps == pytest.approx(np.mean(list(lengths(folder).values())))
    assert len(summary.devices) == 6
    assert summary.fleet is not None
    assert summary.fleet.choice == "all"


def test_one_file_stays_as_it_was_and_has_its_own_devices_as_a_fleet(make_run) -> None:
    folder = make_run(1)
    trace = api.load(str(folder))
    assert len(trace.devices) == 2
    assert trace.fleet.devices == trace.devices
    assert trace.fleet.group_ps(1).sum(axis=1) == pytest.approx(trace.fleet.lengths_ps(1))
    summary = api.summary(str(folder))
    assert summary.fleet is None
    assert summary.steps.mean_ps == pytest.approx(trace.fleet.mean_ps.mean())


def test_hosts_with_equal_planes_are_never_mixed(make_run) -> None:
    folder = make_run(3)
    fleet = api.load(str(folder)).fleet
    keys = [(each.file, each.host, each.plane) for each in fleet.devices]
    assert len(set(keys)) == len(keys) == 6
    assert len({each.plane for each in fleet.devices}) == 2
    by_host = fleet.mean_ps.reshape(3, 2)
    assert (by_host[0].max() < by_host[1].min()) and (by_host[1].max() < by_host[2].min())


def test_host_and_device_choose_and_the_median_of_what_is_left_is_shown(make_run) -> None:
    folder = str(make_run(3))
    assert [each.name for each in api.load(folder, Options(device="host-2/TPU:1")).devices] == ["host-2/TPU:1"]
    assert [each.name for each in api.load(folder, Options(device="TPU:0")).devices] == ["host-1/TPU:0"]
    only = api.load(folder, Options(host="host-2"))
    assert {each.host for each in only.fleet.devices} == {"host-2"}
    chosen = api.summary(folder, Options(device="host-2/TPU:1")).fleet
    assert chosen is not None
    assert (chosen.choice, chosen.devices) == ("chosen", 6)
    with pytest.raises(UsageError, match=r"no host 'x'.*host-0, host-1, host-2"):
        api.load(folder, Options(host="x"))
    with pytest.raises(UsageError, match=r"no device 'x'.*host-0/TPU:0, host-0/TPU:1"):
        api.load(folder, Options(device="x"))


def test_the_summary_says_what_is_shown_and_how_devices_spread(make_run, capsys) -> None:
    folder = make_run(4)
    means = lengths(folder)
    found = api.summary(str(folder)).fleet
    assert found is not None
    assert (found.min_ps, found.max_ps) == (min(means.values()), max(means.values()))
    assert (means[found.fastest or ""], means[found.slowest or ""]) == (found.min_ps, found.max_ps)
    assert found.median_ps == sorted(means.values())[3]
    assert means[found.shown[0]] == found.median_ps
    assert cli.main(["summary", str(folder), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["fleet"]
    assert (data["hosts_read"], data["devices"], data["choice"]) == (4, 8, "median")
    for style in ("text", "markdown"):
        assert cli.main(["summary", str(folder), "--format", style]) == 0
        text = capsys.readouterr().out
        assert "step by device" in text
        assert "the median" in text


def test_steps_that_are_chosen_are_those_of_the_spread(make_run) -> None:
    folder = str(make_run(2))
    trace = api.load(folder)
    found = api.summary(folder, Options(steps=(1, 3))).fleet
    expected = [trace.fleet.lengths_ps(index)[1:3].mean() for index in range(4)]
    assert found is not None
    assert (found.min_ps, found.max_ps) == (min(expected), max(expected))


# --- what is broken ------------------------------------------------------------------------------------------------


def test_hosts_that_are_broken_cut_or_gone_are_named_and_the_rest_is_kept(make_run, tmp_path) -> None:
    folder = make_run(5)
    (folder / "host-0.xplane.pb").write_bytes(b"\x00nothing")
    cut = folder / "host-1.xplane.pb"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    (folder / "host-2.xplane.pb").unlink()
    (folder / "host-2.xplane.pb").symlink_to(tmp_path / "gone")
    (folder / "host-5.xplane.pb").write_bytes(b"")
    side = locate(str(folder))
    gone = replace(side.recordings[0], files=(*side.recordings[0].files, folder / "host-6.xplane.pb"))
    for options in ({}, {"all_devices": True}):
        trace = load(replace(side, recordings=(gone,)), **options)  # type: ignore[arg-type]
        status = {host.name: host.status for host in trace.hosts}
        assert status == {
            "host-0": "failed",
            "host-1": "damaged",
            "host-3": "read",
            "host-4": "read",
            "host-5": "failed",
            "host-6": "failed",
        }
        notes = {note.code: note for note in trace.warnings}
        assert set(notes["hosts_unreadable"].host) == {"host-0", "host-5", "host-6"}
        assert all(name in notes["hosts_unreadable"].message for name in ("host-0", "host-5", "host-6"))
        assert "truncated" in notes
    assert notes["truncated"].message == "the file ends inside a message: what comes after the cut is missing"
    assert load(replace(side, recordings=(gone,))).warnings[-1].message.endswith("(on host-1)")


def test_without_any_readable_host_the_first_error_is_the_answer(make_run) -> None:
    folder = make_run(3)
    for file in folder.iterdir():
        file.write_bytes(b"no profile")
    for options in (Options(), Options(all_devices=True)):
        with pytest.raises(UnreadableError, match=r"host-0\.xplane\.pb: "):
            api.load(str(folder), options)


def test_devices_of_the_mesh_that_no_file_has_are_said(make_run) -> None:
    folder = str(make_run(2, mesh={"data": 4, "fsdp": 2}))
    notes = {note.code: note.message for note in api.load(folder).warnings}
    assert notes["hosts_missing"] == "the run had 8 devices by its mesh, these files have 4: files lack"


def test_what_holds_for_some_hosts_says_for_which_and_redaction_hides_their_names(make_run, capsys) -> None:
    folder = make_run(2, name="plugins/profile/x")
    from profiler.xplane.write import SpaceBuilder

    for number in (2, 3):
        space = SpaceBuilder(hostnames=(f"secret-{number}",))
        space.plane("/host:CPU").line("python").event("main", 0, 5)
        space.write(folder / f"secret-{number}.xplane.pb")
    for command in ("summary", "comm"):
        assert cli.main([command, str(folder), "--format", "json"]) == 0
        out = capsys.readouterr().out
        assert "no device ops on 2 of 4 hosts: secret-2, secret-3" in out
        assert cli.main([command, str(folder), "--format", "json", "--redact"]) == 0
        assert "secret" not in capsys.readouterr().out


# --- the choice ----------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.randoms())
def test_the_median_is_a_device_with_as_many_before_it_as_after_it(values: list[int], random) -> None:
    names = [f"d{index}" for index in range(len(values))]
    random.shuffle(names)
    devices = tuple(Device(index, name, "f", "h", "p", "tpu") for index, name in enumerate(names))
    windows = tuple(Windows(np.array([[0, value], [value, 2 * value]]), "x", "step") for value in values)
    fleet = Fleet((), devices, windows, (), np.zeros((2 * len(values), 1)), ())
    median = fleet.median()
    assert median is not None
    before = [(values[index], names[index]) < (values[median], names[median]) for index in range(len(values))]
    assert sum(before) == (len(values) - 1) // 2
    assert fleet.median([median]) == median
    assert fleet.median([]) is None


# --- processes -----------------------------------------------------------------------------------------------------


def test_a_process_that_dies_is_replaced_and_its_file_read_again_and_once(make_run, monkeypatch) -> None:
    folder = make_run(4)
    tasks = [Task(file, file.name) for file in sorted(folder.iterdir())]
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args, **kwargs):
        started.append(real(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    found = []
    for index, outcome in pool.run(tasks, 2):
        found.append((index, outcome))
        if len(found) == 1:
            for process in started[:2]:
                process.kill()
    assert sorted(index for index, _ in found) == [0, 1, 2, 3]
    assert all(isinstance(outcome, HostPart) for _, outcome in found)
    assert all(process.poll() is not None for process in started)


def test_a_file_that_ends_its_process_twice_is_named_and_the_others_are_read(make_run, monkeypatch) -> None:
    folder = make_run(3)
    tasks = [Task(file, file.name) for file in sorted(folder.iterdir())]
    monkeypatch.setattr(pool, "_START", _dying(pool._START, "host-1.xplane.pb"))
    found = dict(pool.run(tasks, 2))
    assert isinstance(found[1], Failure)
    assert found[1].what == "the process that read it died (exit code 7), twice"
    assert isinstance(found[0], HostPart) and isinstance(found[2], HostPart)


def _dying(start: str, name: str) -> str:
    die = (
        "import os, profiler.reduce.host_part as h; r = h.read_host; "
        f"h.read_host = lambda task: os._exit(7) if task.name == {name!r} else r(task); "
    )
    return start.replace("from profiler.reduce.worker", die + "from profiler.reduce.worker")


def test_a_small_run_starts_no_process(make_run, monkeypatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert len(api.load(str(make_run(4))).fleet.devices) == 8


def test_processes_are_as_many_as_there_are_cores_hosts_and_memory_for(tmp_path, monkeypatch) -> None:
    tasks = []
    for number in range(6):
        file = tmp_path / f"{number}.xplane.pb"
        with file.open("wb") as sparse:
            sparse.truncate(100 << 20)
        tasks.append(Task(file, file.name))
    need = (100 << 20) * pool.BYTES_PER_BYTE + pool.IDLE_BYTES
    monkeypatch.setattr(pool, "cores", lambda: 8)
    for available, expected in ((None, 8), (100 * need, 8), (3 * need, 3), (need // 2, 1)):
        monkeypatch.setattr(pool, "_available_bytes", lambda available=available: available)
        assert pool._fitting(tasks) == expected


def test_who_stops_listening_leaves_no_process_behind(make_run, monkeypatch) -> None:
    folder = make_run(4)
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    outcomes = pool.run([Task(file, file.name) for file in sorted(folder.iterdir())], 2)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert started
    assert all(process.poll() is not None for process in started)


def test_a_script_without_a_guard_uses_several_processes(make_run, tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from profiler.reduce import load\n"
        "from profiler.xplane.locate import locate\n"
        "print(len(load(locate(sys.argv[1]), workers=2).fleet.devices))\n"
    )
    done = subprocess.run([sys.executable, script, make_run(3)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("6\n", 0), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process group")
@pytest.mark.parametrize("command", ["summary", "diff"])
def test_ctrl_c_ends_every_process(make_run, tmp_path, command: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "from profiler import cli\n"
        "from profiler.reduce import pool\n"
        f"pool._START = {_sleeping(pool._START)!r}\n"
        "pool._fitting = lambda tasks: 2\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    paths = [str(make_run(4))] * (2 if command == "diff" else 1)
    process = subprocess.Popen(
        [sys.executable, str(script), command, *paths], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len(_group(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert _group(process.pid) == []


def _sleeping(start: str) -> str:
    sleep = "import time, profiler.reduce.host_part as h; h.read_host = lambda task: time.sleep(600); "
    return start.replace("from profiler.reduce.worker", sleep + "from profiler.reduce.worker")


def _group(number: int) -> list[str]:
    """The processes of a session that are alive."""
    done = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(number)], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.split()[1:] and not line.split()[1].startswith("Z")]


@pytest.mark.skipif("PROFILER_SCANNER" in os.environ, reason="chooses the scanner itself")
def test_the_python_scanner_gives_the_same_fleet(make_run, run_cli) -> None:
    folder = make_run(3)
    native, twin = (
        run_cli("summary", folder, "--format", "json", env={"PROFILER_SCANNER": name} if name else None)
        for name in (None, "python")
    )
    one, other = json.loads(native.stdout), json.loads(twin.stdout)
    assert one["fleet"] == other["fleet"]
    assert one["families"] == other["families"]
